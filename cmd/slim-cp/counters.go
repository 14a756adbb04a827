package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/budget"
)

// countersInterval is how often the log gets the counters.
const countersInterval = time.Hour

// counters is everything that a replica counts of those who connect to it.
type counters struct {
	nodes, operators, southbound string
}

func (r *process) counters() counters {
	render := func(counted any) string { return fmt.Sprintf("%+v", counted) }
	return counters{
		nodes:      render(r.nodeConns.Counters()),
		operators:  render(r.operatorConns.Counters()),
		southbound: render(r.nodes.Stats()),
	}
}

// logCounters leaves the counters in the log while they change, and at the end.
func (r *process) logCounters(ctx context.Context) {
	ticker := time.NewTicker(countersInterval)
	defer ticker.Stop()
	last := r.counters()
	for ended := false; !ended; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			ended = true
		}
		if now := r.counters(); now != last {
			last = now
			r.logger.Info("counters", "nodes", now.nodes, "operators", now.operators, "southbound", now.southbound)
		}
	}
}

// watchOperators says when operators use up their connections: those beyond the limit
// wait, and nobody would know why.
func watchOperators(ctx context.Context, conns *budget.Connections, limit int, logger hclog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-conns.Changed():
		}
		if conns.Full() {
			logger.Warn("operators use nearly all of their connections: those beyond the limit wait until others end",
				"open", conns.Counters().Open, "limit", limit)
		}
	}
}
