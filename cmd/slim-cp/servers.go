package main

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/slim-cp/slim-cp/auth"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/northbound"
	"github.com/slim-cp/slim-cp/southbound"
)

// server is a gRPC server on one listener.
type server struct {
	grpc     *grpc.Server
	listener net.Listener
	nodes    *southbound.Listener // nil for operators
	settings config.Listener
}

// servers are the gRPC servers of both sides.
type servers struct {
	north []server
	south []server
}

// listen binds every listener of the configuration, the southbound ones paused.
func (r *process) listen() (*servers, error) {
	all := &servers{}
	service := northbound.NewService(northbound.Options{
		Reader:      r.replica,
		Proposer:    r.replica,
		Nodes:       r.reconciler,
		Cluster:     memberWithNodes{Replica: r.replica, process: r},
		Notes:       r.notes,
		Provisional: r.nodes.Provisional,
		Logger:      r.logger.Named("northbound"),
	})
	r.replica.RegisterPeerService(service.RegisterPeerServices)
	for _, settings := range r.settings.Northbound {
		options, err := listenerOptions(settings)
		if err != nil {
			return nil, errors.Join(err, all.close())
		}
		listener, err := listenNorth(settings.Endpoint.Network, settings.Endpoint.Address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s.endpoint: %w", settings.Key, err), all.close())
		}
		all.north = append(all.north, server{
			grpc:     northbound.NewServer(service, r.health, options...),
			listener: r.operatorConns.Listen(listener),
			settings: settings,
		})
	}
	for _, settings := range r.settings.Southbound {
		options, err := listenerOptions(settings)
		if err != nil {
			return nil, errors.Join(err, all.close())
		}
		listener, err := southbound.Listen(settings.Endpoint.Network, settings.Endpoint.Address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s.endpoint: %w", settings.Key, err), all.close())
		}
		south := grpc.NewServer(append(r.nodes.ServerOptions(), options...)...)
		r.nodes.Register(south)
		northbound.RegisterIntrospection(south, r.health)
		listener.LimitBacklog(r.nodeConns.Reserve())
		all.south = append(all.south, server{
			grpc: south, listener: r.nodeConns.Listen(listener), nodes: listener, settings: settings,
		})
	}
	return all, nil
}

// notes are what an operator should know of this replica beside the status of the
// cluster.
func (r *process) notes() []string {
	var notes []string
	for _, note := range []string{r.presenter.note(), r.replica.Alarm()} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

func listenerOptions(settings config.Listener) ([]grpc.ServerOption, error) {
	options := []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{
		Time:    settings.Keepalive.Time,
		Timeout: settings.Keepalive.Timeout,
	})}
	if settings.MaxConcurrentStreams > 0 {
		options = append(options, grpc.MaxConcurrentStreams(settings.MaxConcurrentStreams))
	}
	if settings.MaxHeaderListSize > 0 {
		options = append(options, grpc.MaxHeaderListSize(settings.MaxHeaderListSize))
	}
	security, err := auth.ServerTLS(settings.Key+".tls", settings.TLS)
	if err != nil {
		return nil, err
	}
	if security != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(security)))
	}
	return options, nil
}

// start serves on every listener. The channel gets the first failure.
func (s *servers) start(logger hclog.Logger) <-chan error {
	failed := make(chan error, len(s.north)+len(s.south))
	for _, each := range s.all() {
		go func() {
			if err := each.grpc.Serve(each.listener); err != nil {
				logger.Error("listener failed", "listener", each.settings.Key, "error", err)
				failed <- fmt.Errorf("%s: %w", each.settings.Key, err)
			}
		}()
	}
	return failed
}

func (s *servers) all() []server { return append(append([]server(nil), s.north...), s.south...) }

func (s *servers) addresses(side []server) []string {
	var addresses []string
	for _, each := range side {
		addresses = append(addresses, each.listener.Addr().String())
	}
	return addresses
}

// pause has newcomers refused on the southbound listeners.
func (s *servers) pause() error { return s.eachSouth((*southbound.Listener).Pause) }

// resume accepts nodes on the southbound listeners.
func (s *servers) resume() error { return s.eachSouth((*southbound.Listener).Resume) }

func (s *servers) eachSouth(do func(*southbound.Listener) error) error {
	var problems []error
	for _, each := range s.south {
		if err := do(each.nodes); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", each.settings.Key, err))
		}
	}
	return errors.Join(problems...)
}

const (
	// callsTimeout is what operators' calls under way get to finish. Some never do:
	// who watches the health does so until the end.
	callsTimeout = 3 * time.Second
	// cutTimeout is how long the cut of what is left may take. A server also waits for
	// handshakes, up to two minutes, and those are not worth it.
	cutTimeout = time.Second
)

// stop ends the servers; operators' calls under way may finish if they do soon. It
// blocks at most for both timeouts.
func (s *servers) stop() {
	if s.each((*grpc.Server).GracefulStop, callsTimeout) {
		return
	}
	s.each((*grpc.Server).Stop, cutTimeout)
}

// each calls a method of all servers at once, and reports whether it has returned
// in time on each.
func (s *servers) each(end func(*grpc.Server), within time.Duration) bool {
	var ending sync.WaitGroup
	for _, each := range s.all() {
		ending.Go(func() { end(each.grpc) })
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ending.Wait()
	}()
	select {
	case <-ended:
		return true
	case <-time.After(within):
		return false
	}
}

func (s *servers) close() error {
	var problems []error
	for _, each := range s.all() {
		problems = append(problems, each.listener.Close())
	}
	return errors.Join(problems...)
}
