package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// gateLook is how often the gate looks whether nodes may be let in.
	gateLook = 250 * time.Millisecond
	// leaderPatience is how long nodes are let in after the last leader was seen
	// (protocol A2).
	leaderPatience = 10 * time.Second
)

// leavingCluster is why a replica that leaves lets no nodes in.
const leavingCluster = "this replica leaves its cluster"

// doors are the southbound listeners.
type doors interface {
	pause() error
	resume() error
}

// gate pauses the southbound listeners while nodes could not be registered. They
// are paused when it is made. One goroutine uses it.
type gate struct {
	doors    doors
	logger   hclog.Logger
	setReady func(bool)
	// obstacle says why nodes must not be let in, "" if they may.
	obstacle func() string
	// problem says why the replica is not healthy, "" if it is. Nodes stay with it: it
	// may be alone, or have a leader that is no better.
	problem func() string
	// changed gets a value when the obstacle may have changed.
	changed <-chan struct{}

	open    bool
	serving atomic.Bool
	ready   bool   // that was told last
	why     string // that was logged last
}

// serves reports whether nodes are let in. Any goroutine may ask.
func (g *gate) serves() bool { return g.serving.Load() }

// serve notes whether nodes are let in, and tells whether the replica is ready when
// that changes.
func (g *gate) serve(serving bool) {
	g.serving.Store(serving)
	problem := g.problem()
	ready := serving && problem == ""
	if ready == g.ready {
		return
	}
	if g.ready = ready; problem != "" {
		g.logger.Warn("this replica is not healthy", "problem", problem)
	}
	g.setReady(ready)
}

// look opens or closes the gate if that is due.
func (g *gate) look() error {
	why := g.obstacle()
	if why != g.why && why != "" {
		level := hclog.Warn
		if why == leavingCluster { // somebody asked for it
			level = hclog.Info
		}
		g.logger.Log(level, "southbound listeners are paused", "reason", why)
	}
	g.why = why
	switch {
	case why != "" && g.open:
		g.serve(false)
		if err := g.doors.pause(); err != nil {
			return err
		}
		g.open = false
	case why == "" && !g.open:
		if err := g.doors.resume(); err != nil {
			return err
		}
		g.logger.Info("southbound listeners accept nodes")
		g.open = true
	}
	g.serve(g.open)
	return nil
}

// run looks until the context ends.
func (g *gate) run(ctx context.Context) {
	ticker := time.NewTicker(gateLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-g.changed:
		}
		if err := g.look(); err != nil {
			g.logger.Error("southbound listeners cannot be paused or resumed", "error", err)
		}
	}
}
