package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// helloTimeout bounds TLS and the hello of an accepted connection.
	helloTimeout = 5 * time.Second
	// maxHellos bounds the connections that have not said hello yet; more are
	// closed at once.
	maxHellos = 256
	// acceptPause is the wait after the listener failed for a passing reason, such
	// as too many open files.
	acceptPause = 50 * time.Millisecond
)

// Options configure a Port. TLS is mutual: the server's configuration has to ask
// for certificates. Both are nil for plaintext.
type Options struct {
	Listener  net.Listener
	ServerTLS *tls.Config
	ClientTLS *tls.Config
	// Dial opens a TCP connection; nil: the system's, which resolves names each
	// time.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Hello returns what this replica says of itself; the kind and the protocol
	// are filled in.
	Hello func() *slimcppb.Hello
	// Admit judges a connection: one of this package's errors refuses it. It may
	// ask others, within the context.
	Admit func(ctx context.Context, hello *slimcppb.Hello) error
	// Refused is told when another replica refuses this one.
	Refused func(answer *slimcppb.HelloAnswer, err error)
	Logger  hclog.Logger
}

// Port is one replica's end of all connections with others.
type Port struct {
	options Options
	raft    *incoming
	rpc     *incoming
	hellos  chan struct{} // one token for each hello under way

	closing context.Context // ends with Close
	close   context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// open are all connections of both directions. The Raft library leaves its
	// own behind when it shuts down.
	open map[*Conn]struct{}
}

// NewPort accepts connections until Close.
func NewPort(options Options) *Port {
	if options.Dial == nil {
		options.Dial = (&net.Dialer{}).DialContext
	}
	p := &Port{options: options, hellos: make(chan struct{}, maxHellos), open: map[*Conn]struct{}{}}
	p.closing, p.close = context.WithCancel(context.Background())
	p.raft, p.rpc = newIncoming(p), newIncoming(p)
	p.running.Go(p.accept)
	return p
}

// Close closes the listener and every connection, and waits for what runs.
func (p *Port) Close() error {
	p.close()
	err := p.options.Listener.Close()
	p.running.Wait()
	p.raft.drain()
	p.rpc.drain()
	p.mu.Lock()
	conns := slices.Collect(maps.Keys(p.open))
	p.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	return err
}

// track notes a connection until it is closed.
func (p *Port) track(conn net.Conn, hello *slimcppb.Hello) *Conn {
	tracked := &Conn{Conn: conn, port: p, peer: hello}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[tracked] = struct{}{}
	return tracked
}

func (p *Port) untrack(conn *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
}

// RPC returns the listener for a gRPC server. Its connections' remote addresses
// are Addr.
func (p *Port) RPC() net.Listener { return p.rpc }

func (p *Port) accept() {
	for {
		conn, err := p.options.Listener.Accept()
		switch {
		case err == nil:
		case p.closing.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		default:
			p.options.Logger.Warn("cluster port cannot accept", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-p.closing.Done():
			}
			continue
		}
		select {
		case p.hellos <- struct{}{}:
			p.running.Go(func() {
				p.welcome(conn)
				<-p.hellos
			})
		default:
			_ = conn.Close()
		}
	}
}

// welcome takes a connection's hello and hands the connection to who serves its
// kind.
func (p *Port) welcome(conn net.Conn) {
	ctx, cancel := context.WithTimeout(p.closing, helloTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	secured, hello, err := p.listenTo(ctx, conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		p.options.Logger.Debug("connection on the cluster port was refused", "from", conn.RemoteAddr().String(), "reason", err)
		return
	}
	queue := p.rpc
	if hello.GetKind() == slimcppb.ConnectionKind_CONNECTION_KIND_RAFT {
		queue = p.raft
	}
	queue.put(p.track(secured, hello))
}

// listenTo reads and answers a hello.
func (p *Port) listenTo(ctx context.Context, conn net.Conn) (net.Conn, *slimcppb.Hello, error) {
	if p.options.ServerTLS != nil {
		secured := tls.Server(conn, p.options.ServerTLS)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, nil, err
		}
		conn = secured
	}
	hello := &slimcppb.Hello{}
	if err := readFrame(conn, hello); err != nil {
		return nil, nil, err
	}
	refusal := p.judge(ctx, hello)
	own := p.options.Hello()
	answer := &slimcppb.HelloAnswer{
		Protocol: Protocol, ClusterId: own.GetClusterId(), ReplicaId: own.GetReplicaId(),
		BootId: own.GetBootId(), Version: own.GetVersion(), Schema: own.GetSchema(),
	}
	if refusal != nil {
		answer.Refusal, answer.Reason = refusalOf(refusal), refusal.Error()
	}
	if err := writeFrame(conn, answer); err != nil {
		return nil, nil, err
	}
	return conn, hello, refusal
}

func (p *Port) judge(ctx context.Context, hello *slimcppb.Hello) error {
	switch {
	case hello.GetProtocol() != Protocol:
		return fmt.Errorf("%w: %d, this replica speaks %d", ErrWrongProtocol, hello.GetProtocol(), Protocol)
	case hello.GetKind() != slimcppb.ConnectionKind_CONNECTION_KIND_RAFT && hello.GetKind() != slimcppb.ConnectionKind_CONNECTION_KIND_RPC:
		return fmt.Errorf("%w: unknown kind of connection %d", ErrWrongProtocol, hello.GetKind())
	}
	return p.options.Admit(ctx, hello)
}

// Dial connects to a replica and says hello. The error says why there is no
// connection; one of this package's errors if it was refused. Names are resolved
// each time.
func (p *Port) Dial(ctx context.Context, kind slimcppb.ConnectionKind, address string) (net.Conn, *slimcppb.HelloAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	defer context.AfterFunc(p.closing, cancel)()
	conn, err := p.options.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	secured, answer, err := p.introduce(ctx, conn, kind, address)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%s did not answer: %w", address, ctx.Err())
		}
		return nil, answer, err
	}
	return p.track(secured, nil), answer, nil
}

func (p *Port) introduce(ctx context.Context, conn net.Conn, kind slimcppb.ConnectionKind, address string) (net.Conn, *slimcppb.HelloAnswer, error) {
	if p.options.ClientTLS != nil {
		config := p.options.ClientTLS.Clone()
		if config.ServerName == "" {
			config.ServerName = hostOf(address)
		}
		secured := tls.Client(conn, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", address, err)
		}
		conn = secured
	}
	hello := p.options.Hello()
	hello.Protocol, hello.Kind = Protocol, kind
	if err := writeFrame(conn, hello); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", address, err)
	}
	answer := &slimcppb.HelloAnswer{}
	if err := readFrame(conn, answer); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", address, err)
	}
	err := refused(answer, address)
	if err != nil {
		p.options.Refused(answer, err)
	}
	return conn, answer, err
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
