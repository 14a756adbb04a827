package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/slim-cp/slim-cp/budget"
	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// transportTimeout bounds each of Raft's calls to another replica. A black
	// hole holds up that replica's heartbeats for so long.
	transportTimeout = time.Second
	// maxPool connections of the transport to another replica are kept.
	maxPool = 3
	// maxInFlight Raft calls to a replica at a time. With more the library parks a
	// follower that refused some entries for ever (hashicorp/raft#612).
	maxInFlight = 1

	// Pings on the cluster port (protocol X8). The client's own are raised to
	// 10 s by gRPC; the server's are not.
	peerPing        = 5 * time.Second
	peerPingTimeout = 3 * time.Second
	// reconnectPause bounds the wait between two attempts to reach a replica.
	reconnectPause = time.Second
	// maxPeerMessage bounds one message between replicas: a node's lists travel
	// in one.
	maxPeerMessage = 320 << 20
	// maxPeerHeaders bounds the metadata of a call.
	maxPeerHeaders = 64 << 10
)

// Peers connect a replica with the others of its cluster.
type Peers struct {
	// Listener is that of the cluster port. The replica closes it.
	Listener net.Listener
	// Advertise is the HOST:PORT at which the others reach this replica: a name
	// rather than an address, since it is resolved for each connection.
	Advertise string
	// ServerTLS and ClientTLS are mutual; both nil: plaintext. ClientTLS returns the
	// settings of the next connection, nil while there is no certificate to show.
	ServerTLS *tls.Config
	ClientTLS func() *tls.Config
	// Identity binds the certificates to the replicas that use them.
	Identity PeerIdentity
	// BootstrapExpect replicas, found through Join, form a cluster on their own.
	// 0: the replica waits for Init or Join.
	BootstrapExpect int
	// Join are HOST:PORT of members or members to be.
	Join      []string
	Autopilot Autopilot
	// Dial opens a TCP connection; nil: the system's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// MaxStrangers bounds the connections that nobody has been recognised on yet; 0:
	// 1024.
	MaxStrangers int
}

// network is a replica's end of the cluster port. A lone replica has none.
type network struct {
	advertise string
	port      *peer.Port
	server    *grpc.Server
	serving   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[connKey]*grpc.ClientConn
}

// connKey names a connection: to a replica, by its id, or to whoever is at an
// address. Bulk transfers have one of their own: they would hold up what waits behind
// them (etcd-io/etcd#15402).
type connKey struct {
	replica string
	address string
	bulk    bool
}

// openNetwork starts the cluster port. Its gRPC server begins with serve.
func (r *Replica) openNetwork(peers *Peers) *network {
	n := &network{advertise: peers.Advertise, conns: map[connKey]*grpc.ClientConn{}}
	n.port = peer.NewPort(peer.Options{
		Listener:     peers.Listener,
		ServerTLS:    peers.ServerTLS,
		ClientTLS:    peers.ClientTLS,
		Dial:         peers.Dial,
		Hello:        r.hello,
		LastIndex:    r.lastIndex,
		Admit:        r.admit,
		Refused:      r.refused,
		Certificate:  r.certificates.judge,
		Met:          r.met,
		MaxStrangers: peers.MaxStrangers,
		Logger:       r.logger.Named("port"),
	})
	n.server = grpc.NewServer(
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: peerPing, Timeout: peerPingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxPeerMessage),
		grpc.ForceServerCodecV2(budget.Codec()),
		grpc.MaxHeaderListSize(maxPeerHeaders),
		grpc.UnaryInterceptor(r.guardUnary),
		grpc.StreamInterceptor(r.guardStream),
	)
	return n
}

// transport returns Raft's transport over the port.
func (r *Replica) transport(without remedies, logger hclog.Logger) peerTransport {
	config := raft.NetworkTransportConfig{
		MaxPool:         maxPool,
		MaxRPCsInFlight: maxInFlight,
		Timeout:         transportTimeout,
		Logger:          logger,
	}
	if without.singleFlight {
		config.MaxRPCsInFlight = raft.DefaultMaxRPCsInFlight
	}
	transport := newMemberTransport(config, r.network.port, r.network.advertise, r.dial, r.gate)
	if without.mainLoopHeartbeats {
		return transport
	}
	return mainLoopTransport{peerTransport: transport}
}

func (n *network) serve(logger hclog.Logger) {
	n.serving.Go(func() {
		if err := n.server.Serve(n.port.RPC()); err != nil && !errors.Is(err, peer.ErrClosed) {
			logger.Error("cluster port does not serve any more", "error", err)
		}
	})
}

// connTo returns the connection to a replica, wherever it is. It is made when it is
// used first, and again whenever it breaks.
func (r *Replica) connTo(id string, bulk bool) (*grpc.ClientConn, error) {
	return r.network.conn(connKey{replica: id, bulk: bulk}, id, func(ctx context.Context, id string) (net.Conn, error) {
		return r.dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RPC, id)
	})
}

// connAt returns the connection to whoever is at an address: for a replica that knows
// nobody by id yet.
func (r *Replica) connAt(address string) (*grpc.ClientConn, error) {
	return r.network.conn(connKey{address: address}, address, func(ctx context.Context, address string) (net.Conn, error) {
		conn, _, err := r.network.port.Dial(ctx, slimcppb.ConnectionKind_CONNECTION_KIND_RPC, address)
		return conn, err
	})
}

// conn returns a connection that dial makes.
func (n *network) conn(key connKey, target string, dial func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, ErrShutdown
	}
	if conn, ok := n.conns[key]; ok {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // TLS is the port's
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: reconnectPause},
			MinConnectTimeout: transportTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: peerPing, Timeout: peerPingTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPeerMessage), grpc.ForceCodecV2(budget.Codec())),
		grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("replica %s: %w", target, err)
	}
	n.conns[key] = conn
	return conn, nil
}

// forget closes the connections to replicas that are not kept, and those to mere
// addresses.
func (n *network) forget(keep func(id string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, conn := range n.conns {
		if !keep(key.replica) {
			_ = conn.Close()
			delete(n.conns, key)
		}
	}
}

// stopServing ends the gRPC server: calls under way are cut off.
func (n *network) stopServing() {
	n.server.Stop()
	n.mu.Lock()
	n.closed = true
	for key, conn := range n.conns {
		_ = conn.Close()
		delete(n.conns, key)
	}
	n.mu.Unlock()
}

// close closes the port. Raft has ended.
func (n *network) close() error {
	err := n.port.Close()
	n.serving.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// hello is what this replica says at the start of a connection.
func (r *Replica) hello() *slimcppb.Hello {
	return &slimcppb.Hello{
		ClusterId: r.identity.allegiance(),
		ReplicaId: r.ReplicaID(),
		BootId:    r.bootID,
		Advertise: r.options.Peers.Advertise,
		Version:   r.options.Version,
		Schema:    fsm.SchemaVersion,
		Boots:     r.identity.boots(),
	}
}
