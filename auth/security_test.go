package auth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/config"
)

// What cannot be a certificate is an error at once; that a file is missing, or a
// certificate not valid, may pass.
func TestCertificatesAreJudgedAtTheStart(t *testing.T) {
	ca := issue(t, nil)
	own := issue(t, ca)
	missing := config.CertificateSource{Type: config.SourceFile, CertFile: "/not/there.pem", KeyFile: "/not/there.key"}
	nonsense := filepath.Join(t.TempDir(), "nonsense.pem")
	if err := os.WriteFile(nonsense, []byte("half a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := config.CertificateSource{Type: config.SourcePEM, CertPEM: "half a", KeyPEM: "certificate"}
	for _, c := range []struct {
		name     string
		settings config.ServerTLS
		mutual   bool
		start    string // error of NewSecurity
		refresh  string // error of Refresh
	}{
		{"good", config.ServerTLS{Source: own.source(), ClientCA: ca.authority()}, true, "", ""},
		{"broken text", config.ServerTLS{Source: broken}, false, "x.tls.source: ", ""},
		{"broken authority", config.ServerTLS{Source: own.source(), ClientCA: config.CASource{Type: config.SourcePEM, PEM: "-"}}, false, "x.tls.client_ca: ", ""},
		{"no authority", config.ServerTLS{Source: own.source()}, true, "x.tls.client_ca: missing", ""},
		{"nonsense in a file", config.ServerTLS{Source: config.CertificateSource{Type: config.SourceFile, CertFile: nonsense, KeyFile: nonsense}}, false, "nonsense.pem", ""},
		{"missing file", config.ServerTLS{Source: missing}, false, "", "/not/there.pem"},
		{"missing authority", config.ServerTLS{Source: own.source(), ClientCA: config.CASource{Type: config.SourceFile, File: "/not/ca.pem"}}, false, "", "/not/ca.pem"},
	} {
		security, err := NewSecurity("x.tls", c.settings, c.mutual)
		if !said(err, c.start) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil {
			continue
		}
		if _, err := security.Refresh(time.Now()); !said(err, c.refresh) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func said(err error, text string) bool {
	if err == nil || text == "" {
		return err == nil && text == ""
	}
	return strings.Contains(err.Error(), text)
}

// Both sides use the certificates that were read last, and nothing is believed when
// the last of the authorities has expired.
func TestSecurityOfPeers(t *testing.T) {
	ca := issue(t, nil)
	security, err := NewSecurity("cluster.tls", config.ServerTLS{Source: issue(t, ca).source(), ClientCA: ca.authority(), Version: config.TLS13}, true)
	if err != nil {
		t.Fatal(err)
	}
	if security.Client() != nil || !security.Expires().IsZero() {
		t.Error("there is a certificate before the first reading")
	}
	if _, err := security.Refresh(time.Now()); err != nil {
		t.Fatal(err)
	}
	client := security.Client().Clone()
	client.ServerName = "127.0.0.1"
	if err := shake(t, security.Server(), client); err != nil {
		t.Error(err)
	}
	if _, err := security.Refresh(time.Now().Add(2 * time.Hour)); err == nil || security.Client() != nil {
		t.Errorf("expired: %v", err)
	}
	if err := shake(t, security.Server(), client); err == nil {
		t.Error("an expired certificate is used")
	}
}
