package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates for 127.0.0.1, valid for an hour, as files in a
// folder that goes with the test.
type Authority struct {
	folder      string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// New makes an authority.
func New(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{folder: tb.TempDir(), key: newKey(tb)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	a.write(tb, "ca.pem", "CERTIFICATE", der)
	return a
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// Path returns where a file of the authority is: ca.pem, and NAME.pem and NAME.key
// of what was issued.
func (a *Authority) Path(file string) string { return filepath.Join(a.folder, file) }

// CA returns the path of the authority's own certificate.
func (a *Authority) CA() string { return a.Path("ca.pem") }

// Trust returns the settings of a client that trusts the authority.
func (a *Authority) Trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	return &tls.Config{RootCAs: roots}
}

// Issue writes a certificate and its key, and returns them as the source in a
// configuration file. The certificate holds the DNS names, too.
func (a *Authority) Issue(tb testing.TB, name string, dnsNames ...string) string {
	tb.Helper()
	return a.IssueUntil(tb, time.Now().Add(time.Hour), name, dnsNames...)
}

// IssueUntil is Issue for a certificate that is valid until a certain time.
func (a *Authority) IssueUntil(tb testing.TB, until time.Time, name string, dnsNames ...string) string {
	tb.Helper()
	key := newKey(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: dnsNames, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	a.write(tb, name+".pem", "CERTIFICATE", der)
	if der, err = x509.MarshalECPrivateKey(key); err != nil {
		tb.Fatal(err)
	}
	a.write(tb, name+".key", "EC PRIVATE KEY", der)
	return fmt.Sprintf("{type: file, cert: %q, key: %q}", a.Path(name+".pem"), a.Path(name+".key"))
}

func (a *Authority) write(tb testing.TB, name, kind string, der []byte) {
	tb.Helper()
	if err := os.WriteFile(a.Path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatal(err)
	}
}
