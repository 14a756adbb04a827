package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/config"
)

func tcp(address string) config.Endpoint { return config.Endpoint{Network: "tcp", Address: address} }

func TestDefault(t *testing.T) {
	c := config.Default()
	for api, want := range map[string]struct {
		listeners []config.Listener
		endpoint  string
	}{
		"northbound": {c.Northbound, "0.0.0.0:50051"},
		"southbound": {c.Southbound, "0.0.0.0:50052"},
	} {
		if len(want.listeners) != 1 {
			t.Fatalf("%s: %d listeners", api, len(want.listeners))
		}
		l := want.listeners[0]
		if l.Key != api || l.Endpoint != tcp(want.endpoint) || !l.TLS.Insecure {
			t.Errorf("%s: %+v", api, l)
		}
		if l.Keepalive.Time != 20*time.Second || l.Keepalive.Timeout != 10*time.Second {
			t.Errorf("%s: keepalive %+v", api, l.Keepalive)
		}
	}
	if c.Database.Type != config.InMemory || c.Topology.ConfigManaged || c.RegistrationAuth.Type != config.RegistrationNone {
		t.Errorf("database %+v, topology %+v, registration %+v", c.Database, c.Topology, c.RegistrationAuth)
	}
	want := config.Sessions{
		FailoverGrace: time.Second, DepartureGrace: 10 * time.Second, ReplicaGrace: 5 * time.Second,
		DetachedGrace: 10 * time.Minute, NodeRetention: 24 * time.Hour, TombstoneRetention: time.Minute,
		ShutdownDelay: time.Second,
	}
	if c.Sessions != want || c.Limits.MaxMessageSize != 64<<20 {
		t.Errorf("sessions %+v, limits %+v", c.Sessions, c.Limits)
	}
}

func TestNothingMeansDefaults(t *testing.T) {
	for _, text := range []string{"", "\n", "# a comment\n", "---\n", "~", "{}", "topology: {links: [], segments: }", "northbound:\nsouthbound:\n"} {
		c, err := config.Parse("x.yaml", []byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if !reflect.DeepEqual(c, config.Default()) {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

// Each case changes the default configuration in the same way as its file does.
func TestValues(t *testing.T) {
	number := func(n uint32) *uint32 { return &n }
	cases := map[string]struct {
		file string
		want func(*config.Config)
	}{
		"one listener": {
			`southbound: {endpoint: "https://cp.example:20052/", max_concurrent_streams: 7, max_header_list_size: 4096,
			  keepalive: {time: 2m, timeout: {secs: 3}}, tls: {insecure: true, tls_version: tls1.2, reload_interval: {secs: 60, nanos: 5}}}`,
			func(c *config.Config) {
				l := &c.Southbound[0]
				l.Endpoint = tcp("cp.example:20052")
				l.MaxConcurrentStreams, l.MaxHeaderListSize = 7, 4096
				l.Keepalive = config.Keepalive{Time: 2 * time.Minute, Timeout: 3 * time.Second}
				l.TLS.Version, l.TLS.ReloadInterval = config.TLS12, time.Minute+5
			},
		},
		"several listeners": {
			`northbound: [{endpoint: "[::1]:20051", tls: {insecure: true}}, {endpoint: "unix:///run/n.sock", tls: {insecure: true}}]`,
			func(c *config.Config) {
				second := c.Northbound[0]
				c.Northbound[0].Key, c.Northbound[0].Endpoint = "northbound[0]", tcp("[::1]:20051")
				second.Key, second.Endpoint = "northbound[1]", config.Endpoint{Network: "unix", Address: "/run/n.sock"}
				c.Northbound = append(c.Northbound, second)
			},
		},
		"reconciler": {
			`reconciler: {max_requeues: 0, base_retry_delay: 1s 500ms, reconcile_period: 0s, enable_orphan_detection: true, workers: "9"}`,
			func(c *config.Config) {
				c.Reconciler = config.Reconciler{BaseRetryDelay: 1500 * time.Millisecond, EnableOrphanDetection: true, Workers: 9}
			},
		},
		"no workers are one": {
			`reconciler: {workers: 0}`,
			func(c *config.Config) { c.Reconciler.Workers = 1 },
		},
		"raft": {
			`database: {type: raft, path: /var/lib/plane}`,
			func(c *config.Config) { c.Database = config.Database{Type: config.Raft, Path: "/var/lib/plane"} },
		},
		"sqlite": {
			`database: {type: sqlite, path: /db/plane.db}`,
			func(c *config.Config) {
				c.Database = config.Database{Type: config.Raft, Path: "/db/plane.db.d", SQLitePath: "/db/plane.db"}
			},
		},
		"tracing": {
			`tracing: {log_level: DEBUG, display_thread_names: false, display_thread_ids: true, filters: [a]}`,
			func(c *config.Config) { c.Tracing = config.Tracing{LogLevel: "debug", DisplayThreadIDs: true} },
		},
		"links": {
			`topology: {links: [{domain: hub, neighbors: ["*"]}, {group: a, neighbors: [b, c]}]}`,
			func(c *config.Config) {
				c.Topology = config.Topology{ConfigManaged: true, Segments: []config.Segment{{Name: "default", Links: []config.Adjacency{
					{Group: "hub", Neighbors: []string{"*"}}, {Group: "a", Neighbors: []string{"b", "c"}},
				}}}}
			},
		},
		"segments": {
			`topology: {segments: [{name: s-$domain-x, links: [{group: "hub-$group", neighbors: ["*", $domain]}]}, {name: two, links: []}]}`,
			func(c *config.Config) {
				c.Topology = config.Topology{ConfigManaged: true, Segments: []config.Segment{
					{Name: "s-$group-x", Links: []config.Adjacency{{Group: "hub-$group", Neighbors: []string{"*", "$group"}}}},
					{Name: "two"},
				}}
			},
		},
		"links beside an empty list of segments": {
			`topology: {links: [{domain: a, neighbors: [b]}], segments: []}`,
			func(c *config.Config) {
				c.Topology = config.Topology{ConfigManaged: true, Segments: []config.Segment{
					{Name: "default", Links: []config.Adjacency{{Group: "a", Neighbors: []string{"b"}}}},
				}}
			},
		},
		"name for domain": {
			`topology: {segments: [{name: s-$group, links: [{name: "a-$domain", neighbors: [$group]}]}]}`,
			func(c *config.Config) {
				c.Topology = config.Topology{ConfigManaged: true, Segments: []config.Segment{
					{Name: "s-$group", Links: []config.Adjacency{{Group: "a-$group", Neighbors: []string{"$group"}}}},
				}}
			},
		},
		"segments-template": {
			"topology:\n  segments-template: |\n    {% for g in groups %}\n    - $domain {{ g }}\n    {% endfor %}\n",
			func(c *config.Config) {
				c.Topology = config.Topology{
					ConfigManaged: true, SegmentsTemplate: "{% for g in groups %}\n- $domain {{ g }}\n{% endfor %}\n",
				}
			},
		},
		"enforced connection": {
			`enforce_node_connection: {backoff: 0, timeout: , keepalive: {tcp_keepalive: 45s}}`,
			func(c *config.Config) {
				c.EnforceNodeConnection.Backoff = number(0)
				c.EnforceNodeConnection.Keepalive = &config.NodeKeepalive{
					TCPKeepalive: 45 * time.Second, HTTP2Keepalive: time.Minute, Timeout: 10 * time.Second,
				}
			},
		},
		"enforced timeout": {
			`enforce_node_connection: {timeout: 4294967295}`,
			func(c *config.Config) { c.EnforceNodeConnection.Timeout = number(4294967295) },
		},
		"sessions and limits": {
			`{sessions: {failover_grace: 0s, detached_grace: 1d, shutdown_delay: 500ms}, limits: {max_message_size: 16}}`,
			func(c *config.Config) {
				c.Sessions.FailoverGrace, c.Sessions.DetachedGrace, c.Sessions.ShutdownDelay = 0, 24*time.Hour, 500*time.Millisecond
				c.Limits.MaxMessageSize = 16 << 20
			},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			want := config.Default()
			test.want(want)
			got, err := config.Parse("x.yaml", []byte(test.file))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestSecurityIsTyped(t *testing.T) {
	c, err := config.Parse("x.yaml", []byte(`
northbound:
  endpoint: 127.0.0.1:20051
  tls: {source: {type: pem, cert: CERT, key: KEY}, client_ca: {type: file, path: /ca.pem}}
  auth: {type: basic, username: joe, password: pass}
southbound:
  - endpoint: 127.0.0.1:20052
    tls: {source: {type: spire, socket_path: /run/agent.sock}, client_ca: {type: spire, socket_path: "unix:///b", trust_domains: [b]}}
    auth: {type: jwt, claims: {aud: [x], iss: me}, key: {type: decoding, algorithm: ES256, format: pem, key: {file: /key}}, policy: {cel: "true"}}
  - endpoint: 127.0.0.1:20053
    tls: {source: {type: file, cert: /c, key: /k}}
    auth: {type: oidc, issuer_url: "https://i", audience: plane, jwks_ttl: 5m}
topology: {registration_auth: {type: shared_secret, secrets: {a: "0123456789abcdef0123456789abcdef"}}}
cluster: {data_dir: /d, advertise: "cp-1:20056", raft: {heartbeat_timeout: 1s}, tls: {source: {type: file, cert: /c, key: /k}, client_ca: {type: pem, data: CA}}}
admin:
  endpoint: 127.0.0.1:20054
`))
	if err != nil {
		t.Fatal(err)
	}
	north, south, file := c.Northbound[0], c.Southbound[0], c.Southbound[1]
	slim := []string{"slim"}
	for _, check := range []struct{ got, want any }{
		{north.TLS.Source, config.CertificateSource{Type: config.SourcePEM, CertPEM: "CERT", KeyPEM: "KEY"}},
		{north.TLS.ClientCA, config.CASource{Type: config.SourceFile, File: "/ca.pem"}},
		{north.Auth.Username + north.Auth.Password.Reveal(), "joepass"},
		{south.TLS.Source.SPIRE, config.SPIRE{SocketPath: "unix:///run/agent.sock", JWTAudiences: slim}},
		{south.TLS.ClientCA.SPIRE, config.SPIRE{SocketPath: "unix:///b", JWTAudiences: slim, TrustDomains: []string{"b"}}},
		{south.Auth.JWT, config.JWT{Audience: []string{"x"}, Issuer: "me", Duration: time.Hour,
			Key: config.JWTKey{Type: "decoding", Algorithm: "ES256", Format: "pem", File: "/key"}}},
		{south.Auth.Policy, config.Policy{CEL: "true"}},
		{file.TLS.Source.CertFile + file.TLS.Source.KeyFile, "/c/k"},
		{file.Auth.OIDC, config.OIDC{IssuerURL: "https://i", Audience: "plane", JWKSTTL: 5 * time.Minute}},
		{c.RegistrationAuth.Secrets["a"].Reveal(), "0123456789abcdef0123456789abcdef"},
		{c.Cluster.Raft, config.RaftTimes{HeartbeatTimeout: time.Second, ElectionTimeout: time.Second,
			LeaderLeaseTimeout: 400 * time.Millisecond, SnapshotThreshold: 8192, MaxLogBytes: 256 << 20}},
		{c.Cluster.Endpoint, tcp("0.0.0.0:50053")},
		{c.Cluster.TLS.Source.CertFile + c.Cluster.TLS.ClientCA.PEM, "/cCA"},
		{c.Cluster.Snapshots, config.Snapshots{Interval: time.Hour, Retain: 24, Path: "/d/saved"}},
		{c.Admin.Endpoint, tcp("127.0.0.1:20054")},
		{len(c.Unserved()), 5},
	} {
		if !reflect.DeepEqual(check.got, check.want) {
			t.Errorf("got %+v, want %+v", check.got, check.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	for text, want := range map[string]string{
		"0.0.0.0:50051":          "0.0.0.0:50051",
		"[::]:50051":             "[::]:50051",
		"localhost:1":            "localhost:1",
		"http://10.0.0.1:80":     "10.0.0.1:80",
		"https://cp.example:443": "cp.example:443",
		"unix:///run/a.sock":     "unix:///run/a.sock",
		"127.0.0.1:0":            "127.0.0.1:0",
		"":                       "", "0.0.0.0": "", ":50051": "", "0.0.0.0:x": "", "0.0.0.0:65536": "", "300.1.1.1:80": "",
		"::1:80": "", "ws://0.0.0.0:1": "", "wss://0.0.0.0:1": "", "a b:1": "", "unix://a": "", "unix:": "", "http://a:1/b": "",
	} {
		c, err := config.Parse("x.yaml", fmt.Appendf(nil, "northbound: {endpoint: 127.0.0.1:1, tls: {insecure: true}}\nsouthbound: {endpoint: %q, tls: {insecure: true}}", text))
		switch {
		case want == "" && err == nil:
			t.Errorf("%q is accepted as %v", text, c.Southbound[0].Endpoint)
		case want == "" && !strings.HasPrefix(err.Error(), "x.yaml:2: southbound.endpoint: value "+fmt.Sprintf("%q", text)+": accepted: IP:PORT"):
			t.Errorf("%q: %v", text, err)
		case want != "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && c.Southbound[0].Endpoint.String() != want:
			t.Errorf("%q: got %v, want %s", text, c.Southbound[0].Endpoint, want)
		}
	}
}

func parseDuration(text string) (time.Duration, error) {
	c, err := config.Parse("x.yaml", fmt.Appendf(nil, "sessions: {node_retention: %q}", text))
	if err != nil {
		return 0, err
	}
	return c.Sessions.NodeRetention, nil
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"200ms": 200 * time.Millisecond, "1m30s": 90 * time.Second, "90 s": 90 * time.Second, " 1 h\t5m ": 65 * time.Minute,
		"0s": 0, "0y": 0, "1d": 24 * time.Hour, "1w": 168 * time.Hour, "1y": 31_556_926 * time.Second,
		"5us7ns": 5007, "1s1s": 2 * time.Second, "9223372036854775807ns": 1<<63 - 1,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", " ", "5", "1.5s", "-1s", "+1s", "s", "1 parsec", "1S", "1h5", "9223372036854775808ns", "293y", "99999999999999999999999s", "18446744073709551617ns", "1µs",
	} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q: accepted as %v", text, got)
		}
	}
}

func TestDurationsAddUp(t *testing.T) {
	units := map[string]time.Duration{"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 24 * 3600e9, "w": 168 * 3600e9}
	names := []string{"ns", "us", "ms", "s", "m", "h", "d", "w"}
	rapid.Check(t, func(t *rapid.T) {
		var text string
		var want time.Duration
		for range rapid.IntRange(1, 5).Draw(t, "groups") {
			count := rapid.IntRange(0, 1000).Draw(t, "count")
			unit := rapid.SampledFrom(names).Draw(t, "unit")
			text += fmt.Sprint(count) + rapid.SampledFrom([]string{"", " "}).Draw(t, "space") + unit
			want += time.Duration(count) * units[unit]
		}
		if got, err := parseDuration(text); err != nil || got != want {
			t.Fatalf("%q: got %v, %v, want %v", text, got, err, want)
		}
	})
}

func TestReferences(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "port")
	if err := os.WriteFile(file, []byte("20052\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOST", "127.0.0.1")
	t.Setenv("TRICKY", "${env:HOST}")
	t.Setenv("COUNT", "7")
	t.Setenv("EMPTY", "")
	for value, want := range map[string]string{
		"${env:HOST}":                        "127.0.0.1",
		"/a/${env:HOST}/b${env:COUNT}":       "/a/127.0.0.1/b7",
		"${file:" + file + "}":               "20052",
		"${env:HOST}:${file:" + file + "}":   "127.0.0.1:20052",
		"${env:EMPTY}x":                      "x",
		"${env:TRICKY}":                      "${env:HOST}", // not read again
		"$${env:HOST}":                       "${env:HOST}",
		"$$${env:HOST}":                      "$${env:HOST}",
		"a$${b}${env:COUNT}$${c}":            "a${b}7${c}",
		"$env:HOST $ {x} $group }":           "$env:HOST $ {x} $group }",
		"${env:HOST}${env:HOST}${env:EMPTY}": "127.0.0.1127.0.0.1",
	} {
		c, err := config.Parse("x.yaml", fmt.Appendf(nil, "database: {type: raft, path: %q}", value))
		if err != nil {
			t.Errorf("%s: %v", value, err)
		} else if c.Database.Path != want {
			t.Errorf("%s: got %q, want %q", value, c.Database.Path, want)
		}
	}
	c, err := config.Parse("x.yaml", []byte("reconciler: {workers: '${env:COUNT}'}\n${env:HOST}: 1"))
	if err != nil || c.Reconciler.Workers != 7 {
		t.Errorf("a number from a reference: %+v, %v", c, err)
	}
}

// A secret may stand in the right place, in a wrong one, or come from elsewhere.
func TestSecretsAreNotShown(t *testing.T) {
	const secret = "s3cr3t-s3cr3t-s3cr3t-s3cr3t-s3cr3t"
	t.Setenv("HIDDEN", secret)
	for _, file := range []string{
		`topology: {registration_auth: {type: shared_secret, secrets: {a: SECRET}}}`,
		`topology: {registration_auth: {type: shared_secret, secrets: {a: [SECRET]}}}`,
		`topology: {registration_auth: {type: shared_secret, secrets: SECRET}}`,
		`topology: {registration_auth: {type: shared_secret, secrets: [SECRET]}}`,
		`topology: {registration_auth: {type: shared_secret, secret: {a: SECRET}}}`,
		`topology: {registration_auth: SECRET}`,
		`topology: SECRET`,
		`reconciler: {workers: "${env:HIDDEN}", base_retry_delay: "${env:HIDDEN}"}`,
		`database: {type: "x${env:HIDDEN}"}`,
		`tracing: {log_level: "${env:HIDDEN}"}`,
		`topology: {links: [{group: "${env:HIDDEN}/", neighbors: SECRET}]}`,
		`southbound: {endpoint: "${env:HIDDEN}", tls: {source: {type: pem, cert: {}, key: [SECRET]}}}`,
		`southbound: {endpoint: "1.1.1.1:1", tls: {source: {type: pem, cert: c, key: SECRET}}, auth: {type: basic, username: u, password: SECRET}}`,
		`southbound: {endpoint: "1.1.1.1:1", tls: {insecure: true}, auth: {type: basic, username: u, password: {x: SECRET}}}`,
		`southbound: {endpoint: "1.1.1.1:1", tls: {insecure: true}, auth: {type: jwt, key: {type: decoding, algorithm: HS256, key: {data: SECRET}}}}`,
		`southbound: {endpoint: "1.1.1.1:1", tls: {insecure: true}, auth: {type: jwt, key: {type: decoding, algorithm: HS256, key: SECRET}}}`,
	} {
		c, err := config.Parse("x.yaml", []byte(strings.ReplaceAll(file, "SECRET", secret)))
		var shown strings.Builder
		fmt.Fprintf(&shown, "%v", err)
		if c != nil {
			encoded, err := json.Marshal(c)
			fmt.Fprintf(&shown, "%v %+v %#v %v %v %s %v", *c, *c, *c, c.Warnings, c.Unserved(), encoded, err)
			for _, s := range c.RegistrationAuth.Secrets {
				fmt.Fprintf(&shown, "%s %q %x %d %v", s, s, s, s, []config.Secret{s})
			}
		}
		if strings.Contains(shown.String(), secret) || strings.Contains(shown.String(), fmt.Sprintf("%x", secret)) {
			t.Errorf("%s: the secret is shown: %s", file, shown.String())
		}
	}
}

// A group's secret is what its file holds, since a node may read the same file. Every
// other value has no newline from the end of one.
func TestNewlinesAtTheEndOfFiles(t *testing.T) {
	const secret = "interop-domain-secret-0123456789abcdef"
	file := filepath.Join(t.TempDir(), "secret.txt")
	if err := os.WriteFile(file, []byte(secret+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("x.yaml", fmt.Appendf(nil, `
database: {type: raft, path: "${file:%s}"}
southbound: {endpoint: "1.1.1.1:1", tls: {source: {type: file, cert: "${file:%[1]s}", key: k}}}
topology: {registration_auth: {type: shared_secret, secrets: {a: "${file:%[1]s}", b: "${file:%[1]s}-b"}}}
`, file))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Database.Path + " " + c.Southbound[0].TLS.Source.CertFile; got != secret+" "+secret {
		t.Errorf("values are %q", got)
	}
	if a, b := c.RegistrationAuth.Secrets["a"].Reveal(), c.RegistrationAuth.Secrets["b"].Reveal(); a != secret+"\r\n" || b != secret+"-b" {
		t.Errorf("secrets are %q and %q", a, b)
	}
	want := "x.yaml:4: topology.registration_auth.secrets.a: the secret ends in a newline: tokens made with it and without it are accepted"
	if !slices.Equal(c.Warnings, []string{want}) {
		t.Errorf("warnings are %q", c.Warnings)
	}
}

func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		alias := fmt.Sprintf("*a%d, ", i)
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.Repeat(alias, 10))
	}
	_, err := config.Parse("x.yaml", []byte(b.String()))
	if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "aliases stand for more than") {
		t.Errorf("got %v", err)
	}
}

func TestLoadWithoutFile(t *testing.T) {
	if _, err := config.Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestErrorsAreProblems(t *testing.T) {
	_, err := config.Parse("x.yaml", []byte("reconciler:\n  workers: x\n"))
	var problems config.Errors
	if !errors.As(err, &problems) || len(problems) != 1 {
		t.Fatalf("got %v", err)
	}
	if p := problems[0]; p.File != "x.yaml" || p.Line != 2 || p.Key != "reconciler.workers" {
		t.Errorf("got %+v", p)
	}
}

func TestSegmentsTemplateProblems(t *testing.T) {
	const exclusive = "'links', 'segments', and 'segments-template' are mutually exclusive in topology config"
	for text, want := range map[string]string{
		"topology: {segments-template: '[]', segments: []}":                               "topology.segments-template: " + exclusive,
		"topology: {segments-template: '[]', links: }":                                    "topology.segments-template: " + exclusive,
		"topology: {segments-template: ' '}":                                              "'segments-template' must not be empty",
		"topology: {segments-template: []}":                                               "a string, the template of a list of segments",
		"topology: {segments-template: '{% for g in groups %}'}":                          "syntax error: unexpected end of input, expected end of block (in segments-template:1)",
		"topology: {segments-template: '{{ groups|random }}'}":                            "unsupported filter",
		"topology: {segment-template: '[]'}":                                              `did you mean`,
		"topology: {segments-template: '[]', segments-template: '[]'}":                    "segments-template",
		"topology: {segments-template: '[]', registration_auth: {type: shared_secret}}":   "no secrets",
		"topology: {links: [{name: a, domain: b, neighbors: [c]}]}":                       "name, group and domain are the same key",
		"topology: {segments: [{name: s, links: [{name: a, group: b, neighbors: [c]}]}]}": "name, group and domain are the same key",
		"topology: {segments: [{name: s, links: [{names: a, neighbors: [c]}]}]}":          "topology.segments[0].links[0]",
	} {
		_, err := config.Parse("x.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
