package auth

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/slim-cp/slim-cp/config"
)

// errNoCertificate ends a handshake for which there is no valid certificate.
var errNoCertificate = errors.New("there is no valid certificate")

// Security is the TLS of a listener for as long as it is bound: its files may be
// missing at first, expire, and be replaced. Any goroutine may use it.
type Security struct {
	key      string
	settings config.ServerTLS
	mutual   bool
	current  atomic.Pointer[credentials] // nil: there are none that are valid
}

// credentials are what one reading of the files gave.
type credentials struct {
	server, client *tls.Config
	leaf           *x509.Certificate
	// authority is the one of those for clients that expires last, nil if there are none.
	authority *x509.Certificate
}

// NewSecurity returns the security of a listener, nil for plaintext. It has no
// certificate before Refresh. Mutual is for replicas, each of which is server and
// client. The error is about what cannot be a certificate, or its key, at all; that a
// file is missing or a certificate not valid now may pass.
func NewSecurity(key string, settings config.ServerTLS, mutual bool) (*Security, error) {
	if settings.Insecure {
		return nil, nil //nolint:nilnil // plaintext
	}
	s := &Security{key: key, settings: settings, mutual: mutual}
	var unread *fs.PathError
	if _, err := s.load(); err != nil && !errors.As(err, &unread) {
		return nil, err
	}
	return s, nil
}

// Refresh reads the files again. The error says why there is no valid certificate.
// While the earlier one is valid it stays in use, and unused says why the files are not.
func (s *Security) Refresh(now time.Time) (unused, err error) {
	next, err := s.load()
	if err == nil {
		err = next.check(s.key, now)
	}
	if err == nil {
		s.current.Store(next)
		return nil, nil
	}
	if earlier := s.current.Load(); earlier != nil && earlier.check(s.key, now) == nil {
		return err, nil
	}
	s.current.Store(nil)
	return nil, err
}

// Expires returns when the certificate, or the last of the clients' authorities, is
// not valid any more; zero if there is none.
func (s *Security) Expires() time.Time {
	current := s.current.Load()
	switch {
	case current == nil:
		return time.Time{}
	case current.authority != nil && current.authority.NotAfter.Before(current.leaf.NotAfter):
		return current.authority.NotAfter
	}
	return current.leaf.NotAfter
}

// Server returns the settings of a server, which uses what Refresh read last in each
// handshake.
func (s *Security) Server() *tls.Config {
	return &tls.Config{
		MinVersion: minVersion(s.settings),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			current := s.current.Load()
			if current == nil {
				return nil, errNoCertificate
			}
			return current.server, nil
		},
	}
}

// Client returns the settings of the next connection to another replica, nil while
// there is no valid certificate.
func (s *Security) Client() *tls.Config {
	current := s.current.Load()
	if current == nil {
		return nil
	}
	return current.client
}

func (s *Security) load() (*credentials, error) {
	c := &credentials{}
	var err error
	if s.mutual {
		c.server, c.client, err = PeerTLS(s.key, s.settings)
	} else if c.server, err = ServerTLS(s.key, s.settings); err == nil {
		c.server.NextProtos = []string{"h2"} // a server that chooses its settings late says it itself
	}
	if err != nil {
		return nil, err
	}
	c.leaf = c.server.Certificates[0].Leaf
	if s.settings.ClientCA.Type != config.SourceNone {
		c.authority, err = lastAuthority(s.key+".client_ca", s.settings.ClientCA)
	}
	return c, err
}

// check says why the credentials are not valid at a time, nil if they are.
func (c *credentials) check(key string, now time.Time) error {
	switch {
	case now.Before(c.leaf.NotBefore):
		return fmt.Errorf("%s.source: the certificate is not valid before %s", key, c.leaf.NotBefore.Format(time.RFC3339))
	case now.After(c.leaf.NotAfter):
		return fmt.Errorf("%s.source: the certificate expired at %s", key, c.leaf.NotAfter.Format(time.RFC3339))
	case c.authority != nil && now.After(c.authority.NotAfter):
		return fmt.Errorf("%s.client_ca: the last authority expired at %s", key, c.authority.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// lastAuthority returns the authority that expires last: a file may hold old ones
// beside those in use.
func lastAuthority(key string, source config.CASource) (last *x509.Certificate, err error) {
	rest, err := authorityPEM(key, source)
	for err == nil {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		parsed, err := x509.ParseCertificate(block.Bytes)
		if err == nil && (last == nil || parsed.NotAfter.After(last.NotAfter)) {
			last = parsed
		}
	}
	return last, err
}
