package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/auth"
	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/southbound"
)

// clusterOptions are those of the replica: alone by the database section, or one
// of several by the cluster section, whose port is bound then.
func (r *process) clusterOptions() (cluster.Options, error) {
	settings, section := r.settings, r.settings.Cluster
	if section == nil {
		return cluster.Options{Name: replicaName(), Version: versionText(), DataDir: settings.Database.Path}, nil
	}
	name := section.Name
	if name == "" {
		name = replicaName()
	}
	options := cluster.Options{
		Name: name, Version: versionText(), DataDir: section.DataDir, SnapshotThreshold: section.Raft.SnapshotThreshold,
		MaxLogBytes: section.Raft.MaxLogBytes,
		Timings: cluster.Timings{
			Heartbeat:   section.Raft.HeartbeatTimeout,
			Election:    section.Raft.ElectionTimeout,
			LeaderLease: section.Raft.LeaderLeaseTimeout,
		},
		Peers: &cluster.Peers{
			Advertise:       section.Advertise,
			BootstrapExpect: section.BootstrapExpect,
			Join:            section.Join,
			Identity:        peerIdentity(section.PeerIdentity),
			Autopilot: cluster.Autopilot{
				StabilizationTime: section.Autopilot.StabilizationTime,
				DeadServerCleanup: section.Autopilot.DeadServerCleanup,
				DeadAfter:         section.Autopilot.DeadAfter,
				MinQuorum:         section.Autopilot.MinQuorum,
			},
		},
	}
	return options, r.listenPeers(options.Peers, section)
}

// listenPeers binds the cluster port. With TLS it is paused until there is a valid
// certificate.
func (r *process) listenPeers(peers *cluster.Peers, section *config.Cluster) error {
	security, err := auth.NewSecurity("cluster.tls", section.TLS, true)
	if err != nil {
		return err
	}
	if security == nil {
		peers.Listener, err = net.Listen(section.Endpoint.Network, section.Endpoint.Address)
	} else {
		var listener *southbound.Listener
		if listener, err = southbound.Listen(section.Endpoint.Network, section.Endpoint.Address); err == nil {
			peers.Listener, peers.ServerTLS, peers.ClientTLS = listener, security.Server(), security.Client
			r.certificates.add("cluster", security, func(valid bool) error {
				if valid {
					return listener.Resume()
				}
				return listener.Pause()
			})
		}
	}
	if err != nil {
		return fmt.Errorf("cluster.endpoint: %w", err)
	}
	r.certificates.look(time.Now())
	return nil
}

// peerIdentity says what the certificates of the cluster port have to hold.
func peerIdentity(settings config.PeerIdentity) cluster.PeerIdentity {
	identity := cluster.PeerIdentity{Names: settings.Names}
	switch settings.Mode {
	case config.IdentityRequire:
		identity.Mode = cluster.IdentityRequire
	case config.IdentityWarn:
		identity.Mode = cluster.IdentityWarn
	case config.IdentityOff:
	}
	return identity
}

// openReplica opens the replica; a cluster port that was opened for one that does
// not start is closed.
func (r *process) openReplica(ctx context.Context) error {
	options, err := r.clusterOptions()
	if err != nil {
		return err
	}
	if options.Peers != nil {
		options.Peers.MaxStrangers = r.plan.Strangers
	}
	if r.replica, err = cluster.Open(ctx, options, r.store, r.logger.Named("cluster")); err != nil && options.Peers != nil {
		if closeErr := options.Peers.Listener.Close(); !errors.Is(closeErr, net.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
	}
	return err
}

// membershipLook is how often a replica looks whether it has become a member.
const membershipLook = 100 * time.Millisecond

// isMember reports whether the replica is part of a cluster.
func (r *process) isMember() bool { return len(r.replica.Members()) > 0 }

// waitingLine begins what is printed instead of startedLine by a replica that does not
// serve yet.
const waitingLine = "waiting: "

// waitMember returns when the replica is a member of a cluster, or the context has
// ended. It says how to make it one.
func (r *process) waitMember(ctx context.Context) {
	if r.isMember() {
		return
	}
	fmt.Fprintln(r.stdout, waitingLine+r.howToGoOn())
	ticker := time.NewTicker(membershipLook)
	defer ticker.Stop()
	for !r.isMember() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// howToGoOn says what an operator does with a replica that is not a member.
func (r *process) howToGoOn() string {
	section := r.settings.Cluster
	switch {
	case section.BootstrapExpect > 0:
		return fmt.Sprintf("not a member of a cluster; it is formed when %d replicas are there: %s",
			section.BootstrapExpect, strings.Join(section.Join, ", "))
	case len(section.Join) > 0:
		return "not a member of a cluster; tries to join the one of " + strings.Join(section.Join, ", ") +
			`, "slim-cp cluster init" makes a new one`
	}
	return `not a member of a cluster; "slim-cp cluster init" makes one of this replica, "slim-cp cluster join HOST:PORT" has it join one`
}
