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
	pausable *southbound.Listener // nil: it is always open
	settings config.Listener
	forNodes bool
	// uncertified: there is no valid certificate. Guarded by servers.mu.
	uncertified bool
}

// servers are the gRPC servers of both sides.
type servers struct {
	north []*server
	south []*server

	mu sync.Mutex
	// nodesMayCome: the southbound listeners are open, those with a valid certificate.
	nodesMayCome bool
}

// listen binds every listener of the configuration, the southbound ones paused.
func (r *process) listen() (*servers, error) {
	all := &servers{}
	service := northbound.NewService(northbound.Options{
		Reader:      r.replica,
		Proposer:    r.replica,
		Nodes:       r.reconciler,
		Cluster:     memberWithNodes{Replica: r.replica, process: r},
		WhileQuorum: r.replica.WhileQuorum,
		Notes:       r.notes,
		Provisional: r.nodes.Provisional,
		Logger:      r.logger.Named("northbound"),
	})
	r.replica.RegisterPeerService(service.RegisterPeerServices)
	for _, settings := range r.settings.Northbound {
		security, err := auth.NewSecurity(settings.Key+".tls", settings.TLS, false)
		if err != nil {
			return nil, errors.Join(err, all.close())
		}
		each := &server{settings: settings}
		listener, err := each.listenNorth(security != nil)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s.endpoint: %w", settings.Key, err), all.close())
		}
		each.grpc = northbound.NewServer(service, r.health, listenerOptions(settings, security)...)
		each.listener = r.operatorConns.Listen(listener)
		all.north = append(all.north, each)
		r.certificates.add(settings.Key, security, func(valid bool) error { return all.certify(each, valid) })
	}
	for _, settings := range r.settings.Southbound {
		security, err := auth.NewSecurity(settings.Key+".tls", settings.TLS, false)
		if err != nil {
			return nil, errors.Join(err, all.close())
		}
		listener, err := southbound.Listen(settings.Endpoint.Network, settings.Endpoint.Address)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s.endpoint: %w", settings.Key, err), all.close())
		}
		south := grpc.NewServer(append(r.nodes.ServerOptions(), listenerOptions(settings, security)...)...)
		r.nodes.Register(south)
		northbound.RegisterIntrospection(south, r.health)
		listener.LimitBacklog(r.nodeConns.Reserve())
		each := &server{
			grpc: south, listener: r.nodeConns.Listen(listener), pausable: listener, settings: settings, forNodes: true,
		}
		all.south = append(all.south, each)
		r.certificates.add(settings.Key, security, func(valid bool) error { return all.certify(each, valid) })
	}
	r.certificates.look(time.Now())
	return all, nil
}

// listenNorth binds the listener of a northbound server. With TLS it is paused until
// there is a valid certificate.
func (s *server) listenNorth(secured bool) (net.Listener, error) {
	if !secured {
		return listenNorth(s.settings.Endpoint.Network, s.settings.Endpoint.Address)
	}
	var err error
	s.pausable, err = southbound.Listen(s.settings.Endpoint.Network, s.settings.Endpoint.Address)
	return s.pausable, err
}

// certify opens or closes the listener of a server whose certificate is valid now, or
// is not.
func (s *servers) certify(each *server, valid bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	each.uncertified = !valid
	return s.turn(each)
}

// turn pauses or resumes a listener as is due. s.mu is held.
func (s *servers) turn(each *server) error {
	switch {
	case each.pausable == nil:
		return nil
	case each.uncertified || each.forNodes && !s.nodesMayCome:
		return each.pausable.Pause()
	}
	return each.pausable.Resume()
}

// uncertified reports whether no southbound listener has a valid certificate.
func (s *servers) uncertified() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range s.south {
		if !each.uncertified {
			return false
		}
	}
	return true
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
	return append(notes, r.certificates.notes()...)
}

func listenerOptions(settings config.Listener, security *auth.Security) []grpc.ServerOption {
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
	if security != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(security.Server())))
	}
	return options
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

func (s *servers) all() []*server { return append(append([]*server(nil), s.north...), s.south...) }

func (s *servers) addresses(side []*server) []string {
	var addresses []string
	for _, each := range side {
		addresses = append(addresses, each.listener.Addr().String())
	}
	return addresses
}

// pause has newcomers refused on the southbound listeners.
func (s *servers) pause() error { return s.turnSouth(false) }

// resume accepts nodes on the southbound listeners that have a valid certificate.
func (s *servers) resume() error { return s.turnSouth(true) }

func (s *servers) turnSouth(nodesMayCome bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodesMayCome = nodesMayCome
	var problems []error
	for _, each := range s.south {
		if err := s.turn(each); err != nil {
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
