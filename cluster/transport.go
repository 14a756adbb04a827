package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxRaftConns bounds the accepted Raft connections of one replica. The library keeps
// maxPool, and a few more while it replicates.
const maxRaftConns = 16

// peerTransport is what a replica needs of a transport. Both of the library's
// transports have it.
type peerTransport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// mainLoopTransport sends heartbeats through raft's main loop. Handled on the
// transport's goroutine, beside the main loop, they can put two leaders into
// one term (hashicorp/raft#695).
type mainLoopTransport struct {
	peerTransport
}

// SetHeartbeatHandler does nothing, on purpose.
func (mainLoopTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// loneTransport is the transport of a replica without peers. It opens no port.
func loneTransport(replicaID string) mainLoopTransport {
	_, transport := raft.NewInmemTransport(raft.ServerAddress(replicaID))
	return mainLoopTransport{peerTransport: transport}
}

// closeTransport ends a transport that the library did not take over: it would go
// on accepting for ever.
func closeTransport(transport raft.Transport) error {
	if closing, ok := transport.(raft.WithClose); ok {
		return closing.Close()
	}
	return nil
}

// memberTransport is Raft's transport between members. The library takes an address
// for an identity: it dials one and never asks who answers, and remembers by it whom
// it has voted for. So the address that it sees is the replica's id, each connection
// is bound to an id on both sides, and each request comes with the id of its caller.
type memberTransport struct {
	*raft.NetworkTransport // calls others; it accepts nothing
	gate                   *gate
	advertise              string
	logger                 hclog.Logger
	requests               chan raft.RPC
	serving                sync.WaitGroup
	closed                 chan struct{}
	closeOnce              sync.Once

	mu sync.Mutex
	// heartbeat handles heartbeats beside the library's main loop; nil: nobody does.
	heartbeat func(raft.RPC)
	conns     map[string]int // accepted, by caller
}

// dialMember opens a connection of Raft to a replica, wherever it is.
type dialMember func(ctx context.Context, kind slimcppb.ConnectionKind, id string) (net.Conn, error)

func newMemberTransport(config raft.NetworkTransportConfig, port *peer.Port, advertise string, dial dialMember, gate *gate) *memberTransport {
	config.ServerAddressProvider = addressIsID{}
	config.Stream = newDialer(advertise, dial)
	t := &memberTransport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&config),
		gate:             gate, advertise: advertise, logger: config.Logger,
		requests: make(chan raft.RPC), closed: make(chan struct{}), conns: map[string]int{},
	}
	t.serving.Go(func() { t.accept(port.Raft()) })
	return t
}

// Consumer implements raft.Transport.
func (t *memberTransport) Consumer() <-chan raft.RPC { return t.requests }

// EncodePeer implements raft.Transport: a request names the address of its sender,
// since older versions dial it. A receiver puts the id in its place (gate.go).
func (t *memberTransport) EncodePeer(_ raft.ServerID, address raft.ServerAddress) []byte {
	return []byte(address)
}

// SetHeartbeatHandler implements raft.Transport.
func (t *memberTransport) SetHeartbeatHandler(handler func(raft.RPC)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heartbeat = handler
}

// Close implements raft.WithClose. It does not wait for requests under way: the
// library that would answer them may have ended.
func (t *memberTransport) Close() error {
	t.closeOnce.Do(func() { close(t.closed) })
	return t.NetworkTransport.Close()
}

// accept serves connections until the port is closed.
func (t *memberTransport) accept(listener net.Listener) {
	for {
		accepted, err := listener.Accept()
		if err != nil {
			return
		}
		conn, ok := accepted.(*peer.Conn)
		if !ok || !t.enter(conn.Caller()) {
			_ = accepted.Close()
			continue
		}
		t.serving.Go(func() {
			defer t.leave(conn.Caller())
			t.serve(conn)
		})
	}
}

// enter counts a connection of a replica; false: it has too many.
func (t *memberTransport) enter(caller string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns[caller] >= maxRaftConns {
		return false
	}
	t.conns[caller]++
	return true
}

func (t *memberTransport) leave(caller string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns[caller]--; t.conns[caller] == 0 {
		delete(t.conns, caller)
	}
}

// serve passes on what comes over one connection. It has a transport of the library
// of its own, since a request does not tell by which connection it came.
func (t *memberTransport) serve(conn *peer.Conn) {
	single := newSingleListener(conn)
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: single, Timeout: transportTimeout, Logger: t.logger,
	})
	defer func() {
		_ = transport.Close()
		_ = conn.Close()
	}()
	for {
		select {
		case request := <-transport.Consumer():
			if !t.pass(conn.Caller(), request) {
				return
			}
		case <-single.ended:
			return
		case <-t.closed:
			return
		}
	}
}

// pass hands a request to the library, or refuses it. False: the connection has to
// be closed.
func (t *memberTransport) pass(caller string, request raft.RPC) bool {
	answer, err := t.gate.judgeRequest(caller, request.Command)
	if err != nil || answer != nil {
		request.Respond(answer, err)
		return request.Reader == nil && !errors.Is(err, peer.ErrRemoved) // what belongs to a snapshot follows it
	}
	t.mu.Lock()
	handler := t.heartbeat
	t.mu.Unlock()
	if handler != nil && isHeartbeat(request.Command) {
		handler(request)
		return true
	}
	select {
	case t.requests <- request:
		return true
	case <-t.closed:
		return false
	}
}

func isHeartbeat(command any) bool {
	request, ok := command.(*raft.AppendEntriesRequest)
	return ok && request.Term != 0 && request.PrevLogEntry == 0 && request.PrevLogTerm == 0 &&
		len(request.Entries) == 0 && request.LeaderCommitIndex == 0
}

// AppendEntries implements raft.Transport.
func (t *memberTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse) error {
	if err := t.gate.mayCall(); err != nil {
		return err
	}
	must := t.gate.mustHave(string(id), request.Term) // before it is asked
	if err := t.NetworkTransport.AppendEntries(id, target, request, response); err != nil {
		return err
	}
	if err := t.gate.judgeAnswer(id, response, response.Term); err != nil {
		return err
	}
	return t.gate.judgeLog(id, request, response, must)
}

// RequestVote implements raft.Transport.
func (t *memberTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse) error {
	if err := t.gate.mayCall(); err != nil {
		return err
	}
	if err := t.NetworkTransport.RequestVote(id, target, request, response); err != nil {
		return err
	}
	return t.gate.judgeAnswer(id, response, response.Term)
}

// RequestPreVote implements raft.WithPreVote.
func (t *memberTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse) error {
	if err := t.gate.mayCall(); err != nil {
		return err
	}
	if err := t.NetworkTransport.RequestPreVote(id, target, request, response); err != nil {
		return err
	}
	return t.gate.judgeAnswer(id, response, response.Term)
}

// InstallSnapshot implements raft.Transport.
func (t *memberTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, request *raft.InstallSnapshotRequest, response *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := t.gate.mayCall(); err != nil {
		return err
	}
	if err := t.NetworkTransport.InstallSnapshot(id, target, request, response, data); err != nil {
		return err
	}
	return t.gate.judgeAnswer(id, response, response.Term)
}

// TimeoutNow implements raft.Transport.
func (t *memberTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, request *raft.TimeoutNowRequest, response *raft.TimeoutNowResponse) error {
	if err := t.gate.mayCall(); err != nil {
		return err
	}
	return t.NetworkTransport.TimeoutNow(id, target, request, response)
}

// dialer is a stream layer that dials replicas by id and accepts nothing.
type dialer struct {
	closable
	advertise advertised
	dial      dialMember
}

func newDialer(advertise string, dial dialMember) *dialer {
	return &dialer{closable: newClosable(), advertise: advertised(advertise), dial: dial}
}

// Dial implements raft.StreamLayer.
func (d *dialer) Dial(id raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RAFT, string(id))
}

// Accept implements net.Listener: it waits for Close.
func (d *dialer) Accept() (net.Conn, error) {
	<-d.closed
	return nil, net.ErrClosed
}

// Addr implements net.Listener: what the others are told.
func (d *dialer) Addr() net.Addr { return d.advertise }

// advertised is a HOST:PORT that may be a name.
type advertised string

func (a advertised) Network() string { return "tcp" }
func (a advertised) String() string  { return string(a) }

// singleListener is a stream layer that accepts one connection and dials nobody.
type singleListener struct {
	closable
	first chan net.Conn
	addr  net.Addr
	ended chan struct{} // closed with the connection
}

func newSingleListener(conn net.Conn) *singleListener {
	l := &singleListener{closable: newClosable(), first: make(chan net.Conn, 1), addr: conn.LocalAddr(), ended: make(chan struct{})}
	l.first <- &endingConn{Conn: conn, end: sync.OnceFunc(func() { close(l.ended) })}
	return l
}

// Accept implements net.Listener.
func (l *singleListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.first:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (l *singleListener) Addr() net.Addr { return l.addr }

// Dial implements raft.StreamLayer.
func (l *singleListener) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// endingConn tells when the library closes it.
type endingConn struct {
	net.Conn
	end func()
}

// Close implements net.Conn.
func (c *endingConn) Close() error {
	c.end()
	return c.Conn.Close()
}

// closable is the closing half of a listener.
type closable struct {
	closed chan struct{}
	once   *sync.Once
}

func newClosable() closable { return closable{closed: make(chan struct{}), once: &sync.Once{}} }

// Close implements net.Listener.
func (c closable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// addressIsID gives the library a replica's id for its address.
type addressIsID struct{}

// ServerAddr implements raft.ServerAddressProvider.
func (addressIsID) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(id), nil
}
