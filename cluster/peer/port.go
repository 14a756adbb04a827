package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	// helloTimeout bounds TLS and the hello of an accepted connection. Who dials
	// says both at once; Raft's own calls give up after 1 s.
	helloTimeout = 2 * time.Second
	// answerTimeout bounds the judgement of a hello, which may ask another replica,
	// and the answer.
	answerTimeout = 3 * time.Second
	// dialTimeout bounds the whole of a connection that is dialled.
	dialTimeout = helloTimeout + answerTimeout
	// dialStagger is the time between the attempts to reach a replica at several
	// addresses. Raft gives all of them together 1 s.
	dialStagger = 100 * time.Millisecond
	// acceptPause is the wait after the listener failed for a passing reason, such
	// as too many open files.
	acceptPause = 50 * time.Millisecond
	// crowdedPause is the least time between two lines about a full lobby.
	crowdedPause = time.Minute
)

// Options configure a Port. TLS is mutual: the server's configuration has to ask
// for certificates. Both are nil for plaintext.
type Options struct {
	Listener  net.Listener
	ServerTLS *tls.Config
	// ClientTLS returns the settings of the next connection, nil while there is no
	// certificate to show.
	ClientTLS func() *tls.Config
	// Dial opens a TCP connection; nil: the system's, which resolves names each
	// time.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// MaxStrangers bounds the connections that have not been answered yet; 0: 1024.
	MaxStrangers int
	// Hello returns what this replica says of itself; the kind and the protocol
	// are filled in.
	Hello func() *slimcppb.Hello
	// LastIndex returns the end of this replica's log, which an answer tells; nil: none
	// does.
	LastIndex func() uint64
	// Admit judges a connection: one of this package's errors refuses it. It may
	// ask others, within the context.
	Admit func(ctx context.Context, hello *slimcppb.Hello) error
	// Certificate judges whether a verified certificate may be a replica's; nil: any
	// may. ErrCertificate refuses it.
	Certificate func(leaf *x509.Certificate, replicaID string) error
	// Refused is told when another replica refuses this one.
	Refused func(answer *slimcppb.HelloAnswer, err error)
	// Met is told which replica answered at an address, whether it was wanted there
	// or not; nil: nobody is. An error ends the connection.
	Met    func(answer *slimcppb.HelloAnswer, address string) error
	Logger hclog.Logger
}

// Port is one replica's end of all connections with others.
type Port struct {
	options Options
	raft    *incoming
	rpc     *incoming
	lobby   *lobby

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
	p := &Port{options: options, lobby: newLobby(cmp.Or(options.MaxStrangers, maxGuests)), open: map[*Conn]struct{}{}}
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
	var closing sync.WaitGroup // TLS says goodbye, which takes 5 s if nobody reads
	for _, conn := range conns {
		closing.Go(func() { _ = conn.Close() })
	}
	closing.Wait()
	return err
}

// track notes a connection until it is closed: one that was accepted with a hello, or
// one that was dialled with an answer. It closes it if the port is closed.
func (p *Port) track(conn net.Conn, hello *slimcppb.Hello, answer *slimcppb.HelloAnswer) (*Conn, error) {
	tracked := &Conn{Conn: conn, port: p, peer: hello, answer: answer}
	p.mu.Lock()
	closed := p.closing.Err() != nil // Close looks for open connections after that
	if !closed {
		p.open[tracked] = struct{}{}
	}
	p.mu.Unlock()
	if closed {
		_ = conn.Close()
		return nil, ErrClosed
	}
	return tracked, nil
}

// Cut closes the accepted connections of replicas, such as those that were removed.
func (p *Port) Cut(replica func(id string) bool) {
	p.cut(func(conn *Conn) bool { return conn.peer != nil && replica(conn.Caller()) })
}

// CutEarlier closes the connections with a replica's other starts, in both directions:
// behind a network that swallows everything they would stay for long, and each that is
// used again fails only when its time is over.
func (p *Port) CutEarlier(id, bootID string) {
	p.cut(func(conn *Conn) bool {
		other, boot := conn.peer.GetReplicaId(), conn.peer.GetBootId()
		if conn.answer != nil {
			other, boot = conn.answer.GetReplicaId(), conn.answer.GetBootId()
		}
		return other == id && boot != bootID
	})
}

func (p *Port) cut(which func(*Conn) bool) {
	p.mu.Lock()
	var cut []*Conn
	for conn := range p.open {
		if which(conn) {
			cut = append(cut, conn)
		}
	}
	p.mu.Unlock()
	for _, conn := range cut {
		p.running.Go(func() { _ = conn.Close() }) // TLS says goodbye, see Close
	}
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
	var told time.Time // that the lobby is full
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
		entry := p.admit(conn)
		if entry.evicted != nil && time.Since(told) > crowdedPause {
			told = time.Now()
			p.options.Logger.Warn("too many connections on the cluster port have not said hello: the oldest ones are closed", "most_from", entry.evicted.class.host)
		}
		if entry.guest == nil {
			_ = conn.Close()
			continue
		}
		p.running.Go(func() { p.welcome(entry.guest) })
	}
}

// admit lets a connection into the lobby. It may wait for that.
func (p *Port) admit(conn net.Conn) admission {
	for {
		entry := p.lobby.enter(conn)
		if entry.wait == 0 {
			return entry
		}
		select {
		case <-time.After(entry.wait):
		case <-p.closing.Done():
			return admission{}
		}
	}
}

// welcome takes a connection's hello, answers it, and hands the connection to who
// serves its kind.
func (p *Port) welcome(guest *guest) {
	conn, hello, err := p.hear(guest)
	if err == nil {
		err = within(p.closing, answerTimeout, guest, func(ctx context.Context) error { return p.answer(ctx, conn, hello) })
	}
	if !p.lobby.leave(guest) {
		err = errEvicted
	}
	if err != nil {
		_ = guest.Close()
		p.options.Logger.Debug("connection on the cluster port was refused", "from", guest.RemoteAddr().String(), "reason", err)
		return
	}
	tracked, err := p.track(conn, hello, nil)
	if err != nil {
		return
	}
	queue := p.rpc
	if hello.GetKind() == slimcppb.ConnectionKind_CONNECTION_KIND_RAFT {
		queue = p.raft
	}
	queue.put(tracked)
}

// within does something on a connection, which it closes if that lasts too long or
// the context ends.
func within(ctx context.Context, limit time.Duration, conn net.Conn, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := do(ctx)
	if !stop() {
		err = cmp.Or(ctx.Err(), err)
	}
	return err
}

// hear returns the hello of a guest, and the connection behind it.
func (p *Port) hear(guest *guest) (net.Conn, *slimcppb.Hello, error) {
	conn, hello := guest.Conn, &slimcppb.Hello{}
	err := within(p.closing, helloTimeout, guest, func(ctx context.Context) error {
		if p.options.ServerTLS == nil {
			return readFrame(guest, hello)
		}
		secured := tls.Server(guest, p.options.ServerTLS)
		conn = secured
		if err := secured.HandshakeContext(ctx); err != nil {
			return err
		}
		p.lobby.advance(guest, verified)
		return readFrame(conn, hello)
	})
	if err == nil {
		p.lobby.advance(guest, verified)
	}
	return conn, hello, err
}

// answer says whether a connection stands. The error is nil if it does.
func (p *Port) answer(ctx context.Context, conn net.Conn, hello *slimcppb.Hello) error {
	own := p.options.Hello()
	refusal := p.judge(ctx, conn, hello)
	if refusal != nil && hello.GetKind() == slimcppb.ConnectionKind_CONNECTION_KIND_RAFT &&
		(own.GetClusterId() == "" || hello.GetClusterId() != own.GetClusterId()) {
		return refusal // who speaks Raft knows its cluster: a stranger is told nothing
	}
	answer := &slimcppb.HelloAnswer{
		Protocol: Protocol, ClusterId: own.GetClusterId(), ReplicaId: own.GetReplicaId(),
		BootId: own.GetBootId(), Version: own.GetVersion(), Schema: own.GetSchema(), Boots: own.GetBoots(),
	}
	if refusal == nil && p.options.LastIndex != nil {
		answer.LastIndex = new(p.options.LastIndex())
	}
	if refusal != nil {
		answer.Refusal, answer.Reason = refusalOf(refusal), refusal.Error()
	}
	if errors.Is(refusal, ErrCertificate) { // whoever it is, it is told no more than that
		answer = &slimcppb.HelloAnswer{Protocol: Protocol, Refusal: answer.GetRefusal(), Reason: answer.GetReason()}
	}
	if err := writeFrame(conn, answer); err != nil {
		return err
	}
	return refusal
}

func (p *Port) judge(ctx context.Context, conn net.Conn, hello *slimcppb.Hello) error {
	switch {
	case hello.GetProtocol() != Protocol:
		return fmt.Errorf("%w: %d, this replica speaks %d", ErrWrongProtocol, hello.GetProtocol(), Protocol)
	case hello.GetKind() != slimcppb.ConnectionKind_CONNECTION_KIND_RAFT && hello.GetKind() != slimcppb.ConnectionKind_CONNECTION_KIND_RPC:
		return fmt.Errorf("%w: unknown kind of connection %d", ErrWrongProtocol, hello.GetKind())
	}
	if err := p.judgeCertificate(conn, hello.GetReplicaId()); err != nil {
		return err
	}
	if err := p.options.Admit(ctx, hello); err != nil {
		return err
	}
	own := p.options.Hello().GetReplicaId()
	if wanted := hello.GetWantedReplicaId(); wanted != "" && wanted != own {
		return fmt.Errorf("%w: %s, not %s", ErrOtherReplica, own, wanted)
	}
	return nil
}

// judgeCertificate compares the certificate of the other side with what it says of
// itself.
func (p *Port) judgeCertificate(conn net.Conn, replicaID string) error {
	secured, ok := conn.(*tls.Conn)
	if !ok || p.options.Certificate == nil {
		return nil
	}
	chain := secured.ConnectionState().PeerCertificates
	if len(chain) == 0 {
		return fmt.Errorf("%w: none was shown", ErrCertificate)
	}
	return p.options.Certificate(chain[0], replicaID)
}

// Dial connects to whatever replica is at an address, and says hello. The error says
// why there is no connection; one of this package's errors if it was refused. Names
// are resolved each time.
func (p *Port) Dial(ctx context.Context, kind slimcppb.ConnectionKind, address string) (net.Conn, *slimcppb.HelloAnswer, error) {
	return p.dial(ctx, address, p.hello(kind, ""))
}

// Ask returns who is at an address. It asks as one who belongs to no cluster, of whom
// nothing is noted and about whom nobody is asked in turn. The answer may come with an
// error.
func (p *Port) Ask(ctx context.Context, address string) (*slimcppb.HelloAnswer, error) {
	hello := p.hello(slimcppb.ConnectionKind_CONNECTION_KIND_RPC, "")
	hello.ClusterId = ""
	conn, answer, err := p.dial(ctx, address, hello)
	if err != nil {
		return answer, err
	}
	return answer, conn.Close()
}

func (p *Port) hello(kind slimcppb.ConnectionKind, wanted string) *slimcppb.Hello {
	hello := p.options.Hello()
	hello.Protocol, hello.Kind, hello.WantedReplicaId = Protocol, kind, wanted
	return hello
}

// DialReplica connects to a replica at the first of its possible addresses at which
// it answers. They are tried dialStagger apart, so that one that swallows everything
// does not use up the time of the others. An address proves nothing: another replica
// there is not taken for the wanted one.
func (p *Port) DialReplica(ctx context.Context, kind slimcppb.ConnectionKind, wanted string, addresses []string) (net.Conn, *slimcppb.HelloAnswer, error) {
	if len(addresses) == 0 {
		return nil, nil, fmt.Errorf("no address of %s is known", wanted)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type attempt struct {
		conn   net.Conn
		answer *slimcppb.HelloAnswer
		err    error
	}
	attempts := make(chan attempt)
	for i, address := range addresses {
		go func() {
			var a attempt
			select {
			case <-time.After(time.Duration(i) * dialStagger):
				a.conn, a.answer, a.err = p.dial(ctx, address, p.hello(kind, wanted))
			case <-ctx.Done():
				a.err = ctx.Err()
			}
			select {
			case attempts <- a:
			case <-ctx.Done():
				if a.conn != nil {
					_ = a.conn.Close()
				}
			}
		}()
	}
	var failed error
	for range addresses {
		select {
		case a := <-attempts:
			if a.err == nil {
				return a.conn, a.answer, nil
			}
			failed = alsoFailed(failed, a.err)
		case <-ctx.Done():
			return nil, nil, alsoFailed(failed, ctx.Err())
		}
	}
	return nil, nil, failed
}

// alsoFailed puts two errors into one line.
func alsoFailed(before, err error) error {
	if before == nil {
		return err
	}
	return fmt.Errorf("%w; %w", before, err)
}

func (p *Port) dial(ctx context.Context, address string, hello *slimcppb.Hello) (net.Conn, *slimcppb.HelloAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(p.closing, cancel)()
	conn, answer, err := p.reach(ctx, address, hello)
	switch {
	case err == nil:
		tracked, err := p.track(conn, nil, answer)
		if err != nil {
			return nil, nil, err
		}
		return tracked, answer, nil
	case p.closing.Err() != nil:
		err = ErrClosed
	}
	return nil, answer, err
}

// reach opens a connection and says hello.
func (p *Port) reach(ctx context.Context, address string, hello *slimcppb.Hello) (net.Conn, *slimcppb.HelloAnswer, error) {
	conn, err := p.options.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	var secured net.Conn
	var answer *slimcppb.HelloAnswer
	err = within(ctx, dialTimeout, conn, func(ctx context.Context) (err error) {
		secured, answer, err = p.introduce(ctx, conn, address, hello)
		return err
	})
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%s did not answer: %w", address, ctx.Err())
		}
		return nil, answer, err
	}
	return secured, answer, nil
}

func (p *Port) introduce(ctx context.Context, conn net.Conn, address string, hello *slimcppb.Hello) (net.Conn, *slimcppb.HelloAnswer, error) {
	if p.options.ClientTLS != nil {
		config := p.options.ClientTLS()
		if config == nil {
			return nil, nil, errNoCertificate
		}
		config = config.Clone()
		if config.ServerName == "" {
			config.ServerName = nameOf(address)
		}
		secured := tls.Client(conn, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, nil, explainHandshake(address, err)
		}
		conn = secured
	}
	answer := &slimcppb.HelloAnswer{}
	err := writeFrame(conn, hello)
	if err == nil {
		err = readFrame(conn, answer)
	}
	if err != nil {
		return nil, nil, explainHello(address, p.options.ClientTLS != nil, err)
	}
	if answer.GetReplicaId() != "" { // only a refusal comes without
		if err := p.judgeCertificate(conn, answer.GetReplicaId()); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", address, err)
		}
	}
	var met error
	if p.options.Met != nil {
		met = p.options.Met(answer, address)
	}
	if err = refused(answer, address); err != nil {
		p.options.Refused(answer, err)
	} else if met != nil {
		err = fmt.Errorf("%s: %w", address, met)
	} else if wanted := hello.GetWantedReplicaId(); wanted != "" && answer.GetReplicaId() != wanted {
		err = fmt.Errorf("%w: at %s runs %s, not %s", ErrOtherReplica, address, answer.GetReplicaId(), wanted)
	}
	return conn, answer, err
}

// nameOf returns the name that a server's certificate has to hold.
func nameOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
