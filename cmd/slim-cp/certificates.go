package main

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/auth"
)

const (
	// certificateInterval is how often the files of the certificates are read.
	certificateInterval = 10 * time.Second
	// expiryWarning is how long before its end a certificate is warned about, once in
	// each expiryRepeat.
	expiryWarning = 14 * 24 * time.Hour
	expiryRepeat  = 24 * time.Hour
)

// certificates are those of all listeners. A listener without a valid one is closed
// until there is one.
type certificates struct {
	logger hclog.Logger

	mu   sync.Mutex
	list []*certificate
}

// certificate is what is known of one listener's.
type certificate struct {
	listener string
	security *auth.Security
	open     func(valid bool) error // opens or closes the listener

	settled bool   // the listener is as it has to be
	closed  string // why there is no valid one
	unused  string // why the newest files are not used
	warned  time.Time
}

// add has a listener watched; plaintext needs no certificate.
func (c *certificates) add(listener string, security *auth.Security, open func(valid bool) error) {
	if security == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, &certificate{listener: listener, security: security, open: open})
}

// run looks until the context ends.
func (c *certificates) run(ctx context.Context) {
	ticker := time.NewTicker(certificateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.look(time.Now())
		}
	}
}

// look reads the files, and opens or closes listeners. One goroutine at a time calls it.
func (c *certificates) look(now time.Time) {
	c.mu.Lock()
	list := c.list
	c.mu.Unlock()
	for _, each := range list {
		unused, err := each.security.Refresh(now)
		c.mu.Lock()
		was := *each
		each.closed, each.unused = text(err), text(unused)
		c.mu.Unlock()
		switch {
		case err != nil && each.closed != was.closed:
			c.logger.Error("listener is closed until there is a valid certificate", "listener", each.listener, "error", err)
		case err == nil && was.closed != "":
			c.logger.Info("listener has a valid certificate again", "listener", each.listener)
		case unused != nil && each.unused != was.unused:
			c.logger.Warn("certificate files cannot be used, the certificate of before stays", "listener", each.listener, "error", unused)
		}
		if !each.settled || (err == nil) != (was.closed == "") {
			err := each.open(err == nil)
			if each.settled = err == nil; err != nil {
				c.logger.Error("listener cannot be opened or closed", "listener", each.listener, "error", err)
			}
		}
		c.warn(each, now)
	}
}

// warn says that a certificate expires soon.
func (c *certificates) warn(each *certificate, now time.Time) {
	expires := each.security.Expires()
	if expires.IsZero() || expires.Sub(now) > expiryWarning || now.Sub(each.warned) < expiryRepeat {
		return
	}
	each.warned = now
	c.logger.Warn("certificate expires soon", "listener", each.listener, "expires", expires.Format(time.RFC3339))
}

// notes say which listeners are closed.
func (c *certificates) notes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var notes []string
	for _, each := range c.list {
		if each.closed != "" {
			notes = append(notes, "listener "+each.listener+" is closed: "+each.closed)
		}
	}
	return notes
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
