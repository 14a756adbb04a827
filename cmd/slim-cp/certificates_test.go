package main

import (
	"bytes"
	"crypto/tls"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/auth"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/southbound"
	"github.com/slim-cp/slim-cp/test/authority"
)

// certified is a southbound listener with a certificate from files, beside one
// without TLS, and its clock.
type certified struct {
	*testing.T
	authority    *authority.Authority
	log          bytes.Buffer
	certificates *certificates
	servers      servers
	security     *auth.Security
	now          time.Time
}

func newCertified(t *testing.T) *certified {
	t.Helper()
	c := &certified{T: t, authority: authority.New(t), now: time.Now()}
	c.certificates = &certificates{logger: hclog.New(&hclog.LoggerOptions{Output: &c.log})}
	for range 2 {
		listener, err := southbound.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		c.servers.south = append(c.servers.south, &server{listener: listener, pausable: listener, forNodes: true})
	}
	var err error
	c.security, err = auth.NewSecurity("southbound[0].tls", config.ServerTLS{Version: config.TLS13, Source: config.CertificateSource{
		Type: config.SourceFile, CertFile: c.authority.Path("south.pem"), KeyFile: c.authority.Path("south.key"),
	}}, false)
	if err != nil {
		t.Fatal(err)
	}
	c.certificates.add("southbound[0]", c.security, func(valid bool) error { return c.servers.certify(c.servers.south[0], valid) })
	return c
}

// look lets time pass and has the files read.
func (c *certified) look(later time.Duration) {
	c.now = c.now.Add(later)
	c.certificates.look(c.now)
}

// want checks whether the listeners take connections.
func (c *certified) want(when string, open ...bool) {
	c.Helper()
	for i, each := range c.servers.south {
		conn, err := net.Dial("tcp", each.listener.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != open[i] {
			c.Errorf("%s: listener %d: %v", when, i, err)
		}
	}
}

func (c *certified) lines(level string) []string {
	var lines []string
	for line := range strings.Lines(c.log.String()) {
		if strings.Contains(line, level) {
			lines = append(lines, line)
		}
	}
	return lines
}

// A listener is closed while it has no valid certificate, and the others are not.
func TestListenerWithoutAValidCertificateIsClosed(t *testing.T) {
	c := newCertified(t)
	if err := c.servers.resume(); err != nil {
		t.Fatal(err)
	}
	c.look(0)
	c.look(time.Minute)
	c.want("without a certificate", false, true)
	if lines := c.lines("[ERROR]"); len(lines) != 1 || !strings.Contains(lines[0], "listener=southbound[0]") || !strings.Contains(lines[0], "south.pem") {
		t.Errorf("errors: %q", lines)
	}
	if notes := c.certificates.notes(); len(notes) != 1 || !strings.Contains(notes[0], "southbound[0]") || !c.servers.south[0].uncertified || c.servers.uncertified() {
		t.Errorf("notes: %q", notes)
	}

	c.authority.Issue(t, "south")
	c.look(0)
	c.want("with a certificate", true, true)
	c.shake()

	c.look(2 * time.Hour)
	c.want("when it has expired", false, true)
	if lines := c.lines("[ERROR]"); len(lines) != 2 || !strings.Contains(lines[1], "expired") {
		t.Errorf("errors: %q", lines)
	}

	if err := c.servers.pause(); err != nil {
		t.Fatal(err)
	}
	c.authority.IssueUntil(t, c.now.Add(time.Hour), "south")
	c.look(0)
	c.want("when nodes must not come", false, false)
	if err := c.servers.resume(); err != nil {
		t.Fatal(err)
	}
	c.want("when they may", true, true)
	if notes := c.certificates.notes(); len(notes) != 0 {
		t.Errorf("notes: %q", notes)
	}
}

// shake has a client shake hands with the listener.
func (c *certified) shake() {
	c.Helper()
	served := make(chan error, 1)
	go func() {
		conn, err := c.servers.south[0].listener.Accept()
		for err == nil { // want left some behind
			secured := tls.Server(conn, c.security.Server())
			if secured.Handshake() == nil {
				served <- secured.Close()
				return
			}
			conn, err = c.servers.south[0].listener.Accept()
		}
		served <- err
	}()
	client, err := tls.Dial("tcp", c.servers.south[0].listener.Addr().String(), c.authority.Trust())
	if err != nil {
		c.Fatal(err)
	}
	_ = client.Close()
	if err := <-served; err != nil {
		c.Error(err)
	}
}

// Files that cannot be used, half written perhaps, replace no certificate that is good.
func TestCertificateStaysUntilItsFilesAreGood(t *testing.T) {
	c := newCertified(t)
	if err := c.servers.resume(); err != nil {
		t.Fatal(err)
	}
	c.authority.IssueUntil(t, c.now.Add(100*24*time.Hour), "south")
	c.look(0)
	before := c.security.Expires()
	if err := os.WriteFile(c.authority.Path("south.key"), []byte("half a"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.look(time.Second)
	c.look(time.Second)
	c.want("with a bad file", true, true)
	if warnings := c.lines("[WARN]"); len(warnings) != 1 || len(c.lines("[ERROR]")) != 0 {
		t.Errorf("the log is:\n%s", &c.log)
	}
	c.authority.IssueUntil(t, c.now.Add(200*24*time.Hour), "south")
	c.look(time.Second)
	if expires := c.security.Expires(); !expires.After(before) {
		t.Errorf("it still expires at %s", expires)
	}
	c.shake()
}

func TestCertificateThatExpiresSoonIsNamedOnceADay(t *testing.T) {
	const day = 24 * time.Hour
	c := newCertified(t)
	c.authority.IssueUntil(t, c.now.Add(15*day), "south")
	c.look(0)
	if len(c.lines("[WARN]")) != 0 {
		t.Errorf("15 days before:\n%s", &c.log)
	}
	c.look(day + time.Hour)
	c.look(10 * time.Second)
	if lines := c.lines("[WARN]"); len(lines) != 1 || !strings.Contains(lines[0], "listener=southbound[0]") {
		t.Errorf("less than 14 days before: %q", lines)
	}
	c.look(day)
	if lines := c.lines("[WARN]"); len(lines) != 2 {
		t.Errorf("a day later: %q", lines)
	}
	c.authority.IssueUntil(t, c.now.Add(90*day), "south")
	c.look(day)
	if lines := c.lines("[WARN]"); len(lines) != 2 {
		t.Errorf("when it was renewed: %q", lines)
	}
}
