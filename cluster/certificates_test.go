package cluster_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/cluster/peer"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/authority"
)

// certified gives a replica a certificate with the given DNS names, next to its own
// host's, which every connection checks.
func certified(t *testing.T, a *authority.Authority, name string, names ...string) (server, client *tls.Config) {
	t.Helper()
	a.Issue(t, name, names...)
	pair, err := tls.LoadX509KeyPair(a.Path(name+".pem"), a.Path(name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	client = a.Trust()
	client.Certificates = []tls.Certificate{pair}
	server = &tls.Config{Certificates: client.Certificates, ClientCAs: client.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert}
	return server, client
}

func withCertificate(t *testing.T, a *authority.Authority, name string, mode cluster.IdentityMode, names ...string) func(*cluster.Options) {
	return func(o *cluster.Options) {
		server, client := certified(t, a, name, names...)
		o.Peers.ServerTLS, o.Peers.ClientTLS = server, func() *tls.Config { return client }
		o.Peers.Identity = cluster.PeerIdentity{Mode: mode, Names: []string{"{name}.slim.test"}}
	}
}

// speakFor connects to a replica in the name of another one.
func speakFor(t *testing.T, e *ensemble, hello *slimcppb.Hello, kind slimcppb.ConnectionKind, to string, client *tls.Config) (*slimcppb.HelloAnswer, error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := peer.NewPort(peer.Options{
		Listener: listener, ClientTLS: func() *tls.Config { return client }, Dial: e.network.dial("stranger"),
		Hello:   func() *slimcppb.Hello { return hello },
		Admit:   func(context.Context, *slimcppb.Hello) error { return nil },
		Refused: func(*slimcppb.HelloAnswer, error) {},
		Logger:  hclog.NewNullLogger(),
	})
	defer func() { _ = port.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, answer, err := port.Dial(ctx, kind, to+":1")
	if err == nil {
		_ = conn.Close()
	}
	return answer, err
}

// A certificate of the cluster's authority speaks for the replica that it names, and
// for no other.
func TestACertificateSpeaksForItsReplica(t *testing.T) {
	t.Parallel()
	for _, mode := range []cluster.IdentityMode{cluster.IdentityRequire, cluster.IdentityWarn, cluster.IdentityOff} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			t.Parallel()
			a, e := authority.New(t), newEnsemble(t)
			for _, name := range []string{"a", "b", "c"} {
				e.start(name, withCertificate(t, a, name, mode, name, name+".slim.test"))
			}
			e.unite("a", "b", "c")
			e.waitVoters("a", "b", "c")
			propose(t, e.replicas["b"], register(1))

			_, client := certified(t, a, "other", "other", "other.slim.test")
			for _, kind := range []slimcppb.ConnectionKind{slimcppb.ConnectionKind_CONNECTION_KIND_RAFT, slimcppb.ConnectionKind_CONNECTION_KIND_RPC} {
				answer, err := speakFor(t, e, &slimcppb.Hello{
					ClusterId: e.replicas["a"].ClusterID(), ReplicaId: e.replicas["b"].ReplicaID(),
					BootId: e.replicas["b"].BootID(), Advertise: "b:1", Schema: 2,
				}, kind, "a", client)
				if mode != cluster.IdentityRequire {
					if err != nil {
						t.Errorf("%v: %v", kind, err)
					}
					continue
				}
				if !errors.Is(err, peer.ErrCertificate) || !strings.Contains(err.Error(), "other.slim.test") {
					t.Errorf("%v: %v", kind, err)
				}
				if answer.GetClusterId() != "" || answer.GetReplicaId() != "" {
					t.Errorf("%v: it is told %v", kind, answer)
				}
			}
		})
	}
}

// A replica whose own certificate the others would refuse says so at its start.
func TestAReplicaChecksItsOwnCertificate(t *testing.T) {
	t.Parallel()
	a, e := authority.New(t), newEnsemble(t)
	_, err := e.open("a", withCertificate(t, a, "a", cluster.IdentityRequire, "a"))
	if !errors.Is(err, peer.ErrCertificate) || !strings.Contains(err.Error(), "a.slim.test") {
		t.Errorf("it starts: %v", err)
	}
	e.start("b", withCertificate(t, a, "b", cluster.IdentityWarn, "b"))
}
