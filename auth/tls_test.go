package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/slim-cp/slim-cp/config"
)

// pair is a certificate and its key in PEM form.
type pair struct{ cert, key string }

// issue makes a certificate for 127.0.0.1, signed by the parent, or by itself for
// an authority.
func issue(t *testing.T, parent *pair) *pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: parent == nil,
	}
	signer, signerKey := template, key
	if parent != nil {
		loaded, err := tls.X509KeyPair([]byte(parent.cert), []byte(parent.key))
		if err != nil {
			t.Fatal(err)
		}
		var ok bool
		if signerKey, ok = loaded.PrivateKey.(*ecdsa.PrivateKey); !ok {
			t.Fatalf("key is %T", loaded.PrivateKey)
		}
		signer = loaded.Leaf
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signerKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return &pair{text("CERTIFICATE", der), text("EC PRIVATE KEY", keyDER)}
}

func (p *pair) source() config.CertificateSource {
	return config.CertificateSource{Type: config.SourcePEM, CertPEM: p.cert, KeyPEM: config.Secret(p.key)}
}

func (p *pair) authority() config.CASource {
	return config.CASource{Type: config.SourcePEM, PEM: p.cert}
}

// shake tries a handshake and one byte from the server, since a client learns only
// then that its certificate was refused.
func shake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	listener := bufconn.Listen(1 << 16) // buffered: both sides may write at once
	defer listener.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		there, err := listener.Accept()
		if err != nil {
			return // the dialler fails too
		}
		conn := tls.Server(there, server)
		if conn.Handshake() == nil {
			_, _ = conn.Write([]byte{1})
		}
		_ = there.Close()
	}()
	here, err := listener.Dial()
	if err != nil {
		t.Fatal(err)
	}
	_, err = tls.Client(here, client).Read(make([]byte, 1))
	_ = here.Close()
	<-done
	return err
}

// Replicas of one authority trust each other whichever side dials, and nobody else.
func TestPeersTrustEachOther(t *testing.T) {
	ca, stranger := issue(t, nil), issue(t, nil)
	peers := func(authority, own *pair) (server, client *tls.Config) {
		t.Helper()
		server, client, err := PeerTLS("cluster.tls", config.ServerTLS{Source: own.source(), ClientCA: authority.authority(), Version: config.TLS13})
		if err != nil {
			t.Fatal(err)
		}
		client.ServerName = "127.0.0.1"
		return server, client
	}
	server, client := peers(ca, issue(t, ca))
	if err := shake(t, server, client); err != nil {
		t.Errorf("two replicas: %v", err)
	}
	strangeServer, strangeClient := peers(stranger, issue(t, stranger))
	if err := shake(t, strangeServer, client); err == nil {
		t.Error("a stranger's server is trusted")
	}
	strangeClient.RootCAs = client.RootCAs
	if err := shake(t, server, strangeClient); err == nil {
		t.Error("a stranger's client is trusted")
	}
	nobody := client.Clone()
	nobody.Certificates = nil
	if err := shake(t, server, nobody); err == nil {
		t.Error("a client without a certificate is let in")
	}
	elsewhere := client.Clone()
	elsewhere.ServerName = "127.0.0.2"
	if err := shake(t, server, elsewhere); err == nil {
		t.Error("a certificate for another address is trusted")
	}
}

func TestListenerTLS(t *testing.T) {
	if plain, err := ServerTLS("southbound.tls", config.ServerTLS{Insecure: true}); plain != nil || err != nil {
		t.Errorf("plaintext: %v, %v", plain, err)
	}
	ca := issue(t, nil)
	server, err := ServerTLS("southbound.tls", config.ServerTLS{Source: issue(t, ca).source(), Version: config.TLS13})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca.cert))
	client := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	if err := shake(t, server, client); err != nil {
		t.Errorf("a client without a certificate, which is not asked for: %v", err)
	}
	client.MaxVersion = tls.VersionTLS12
	if err := shake(t, server, client); err == nil {
		t.Error("TLS 1.2 is spoken by a listener of TLS 1.3")
	}
}

// Errors name the key, the file and no secret.
func TestTLSErrors(t *testing.T) {
	good, other := issue(t, nil), issue(t, nil)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		settings config.ServerTLS
		want     []string
	}{
		{config.ServerTLS{Source: config.CertificateSource{Type: config.SourceFile, CertFile: "/no/c", KeyFile: "/no/k"}}, []string{"x.tls.source: ", "/no/c", "no such file"}},
		{config.ServerTLS{Source: config.CertificateSource{Type: config.SourcePEM, CertPEM: good.cert, KeyPEM: config.Secret(other.key)}}, []string{"x.tls.source: ", "match"}},
		{config.ServerTLS{}, []string{`x.tls.source.type ""`, "file, pem"}},
		{config.ServerTLS{Source: good.source(), ClientCA: config.CASource{Type: config.SourceFile, File: "/no/ca"}}, []string{"x.tls.client_ca: /no/ca", "no such file"}},
		{config.ServerTLS{Source: good.source(), ClientCA: config.CASource{Type: config.SourceFile, File: empty}}, []string{"x.tls.client_ca: " + empty, "no PEM certificate"}},
		{config.ServerTLS{Source: good.source(), ClientCA: config.CASource{Type: config.SourceSPIRE}}, []string{`x.tls.client_ca.type "spire"`}},
		{config.ServerTLS{Source: good.source()}, []string{"x.tls.client_ca: missing"}},
	} {
		_, _, err := PeerTLS("x.tls", c.settings)
		if err == nil {
			t.Errorf("no error, want %q", c.want)
			continue
		}
		for _, want := range c.want {
			if text := err.Error(); !strings.Contains(text, want) || strings.ContainsAny(text, "\n") {
				t.Errorf("no %q in: %s", want, text)
			}
		}
	}
}
