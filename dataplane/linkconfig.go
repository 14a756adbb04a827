package dataplane

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	remote   = controllerpb.ConnectionType_CONNECTION_TYPE_REMOTE
	edge     = controllerpb.ConnectionType_CONNECTION_TYPE_EDGE
	peer     = controllerpb.ConnectionType_CONNECTION_TYPE_PEER
	local    = controllerpb.ConnectionType_CONNECTION_TYPE_LOCAL
	outgoing = controllerpb.ConnectionDirection_CONNECTION_DIRECTION_OUTGOING
	incoming = controllerpb.ConnectionDirection_CONNECTION_DIRECTION_INCOMING
)

// ClientConfig says how to open a connection.
type ClientConfig struct {
	Endpoint string // with scheme; https means TLS
	LinkID   string
	Type     controllerpb.ConnectionType
	Backoff  Backoff
}

// Backoff is the waiting between attempts to connect. The zero value is what
// nodes do on their own: random waits, for ever.
type Backoff struct {
	Interval time.Duration // fixed wait; 0: random waits
	First    time.Duration // longest first random wait; 0: 100 ms
	Longest  time.Duration // longest later random wait; 0: 1 s
	Bounded  bool          // give up after Retries further attempts
	Retries  uint64
}

// wait returns the pause before the given retry, counted from 1, and false if
// that retry is one too many.
func (b Backoff) wait(retry uint64) (time.Duration, bool) {
	switch {
	case b.Bounded && retry > b.Retries:
		return 0, false
	case b.Interval > 0:
		return b.Interval, true
	case retry == 1:
		return rand.N(cmp.Or(b.First, 100*time.Millisecond)), true
	default:
		return rand.N(cmp.Or(b.Longest, time.Second)), true
	}
}

// clientConfigJSON is the form of config_data in increments. A connection that
// does not say "remote" is an application's (edge), whatever the sender meant.
type clientConfigJSON struct {
	Endpoint       *string         `json:"endpoint"`
	LinkID         string          `json:"link_id"`
	ConnectionType string          `json:"connection_type"`
	ConnectTimeout string          `json:"connect_timeout"`
	Backoff        json.RawMessage `json:"backoff"`
}

// backoffJSON is the backoff in a clientConfigJSON.
type backoffJSON struct {
	Type        string  `json:"type"`
	Interval    string  `json:"interval"`
	Base        uint64  `json:"base"` // ms
	MaxDelay    string  `json:"max_delay"`
	MaxAttempts *uint64 `json:"max_attempts"`
}

// serverConfigJSON is the form of config_data in full states.
type serverConfigJSON struct {
	Endpoint    *string         `json:"endpoint"`
	TLSRequired *bool           `json:"tls_required"`
	AuthMethod  json.RawMessage `json:"auth_method"`
	Backoff     *uint64         `json:"backoff"` // ms
}

// connectionTypes holds the spellings of connection_type. Absent means edge.
var connectionTypes = map[string]controllerpb.ConnectionType{
	"": edge, "edge": edge, "remote": remote, "peer": peer, "local": local,
}

func parseClientConfig(text string) (ClientConfig, error) {
	var parsed clientConfigJSON
	if err := decodeConfig(text, &parsed); err != nil {
		return ClientConfig{}, err
	}
	if parsed.Endpoint == nil {
		return ClientConfig{}, missingField("endpoint", text)
	}
	kind, known := connectionTypes[parsed.ConnectionType]
	if !known {
		return ClientConfig{}, fmt.Errorf("unknown variant `%s`, expected one of `local`, `remote`, `peer`, `edge`", parsed.ConnectionType)
	}
	backoff, err := parseBackoff(parsed.Backoff, text)
	if err != nil {
		return ClientConfig{}, err
	}
	if _, err := parseDuration(parsed.ConnectTimeout); err != nil {
		return ClientConfig{}, err
	}
	return ClientConfig{Endpoint: *parsed.Endpoint, LinkID: parsed.LinkID, Type: kind, Backoff: backoff}, nil
}

func parseBackoff(raw json.RawMessage, text string) (Backoff, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return Backoff{}, nil
	}
	if raw[0] != '{' {
		return Backoff{}, fmt.Errorf("invalid type: integer `%s`, expected internally tagged enum BackoffConfig at line 1 column %d", raw, len(text))
	}
	var parsed backoffJSON
	if err := decodeConfig(string(raw), &parsed); err != nil {
		return Backoff{}, err
	}
	backoff := Backoff{First: time.Duration(parsed.Base) * time.Millisecond}
	if parsed.MaxAttempts != nil {
		backoff.Bounded, backoff.Retries = true, *parsed.MaxAttempts
	}
	var err error
	switch parsed.Type {
	case "exponential":
		backoff.Longest, err = parseDuration(parsed.MaxDelay)
	case "fixed_interval":
		backoff.Interval, err = parseDuration(parsed.Interval)
	default:
		err = fmt.Errorf("unknown variant `%s`, expected `exponential` or `fixed_interval`", parsed.Type)
	}
	return backoff, err
}

// parseDuration reads the durations that Go and nodes have in common; empty and
// the nodes' way to write nothing, "0y", are 0.
func parseDuration(text string) (time.Duration, error) {
	if text == "" || text == "0y" {
		return 0, nil
	}
	return time.ParseDuration(text)
}

// errCredentials is reported without the prefix of the other errors.
var errCredentials = errors.New("no local credentials configured")

// parseServerConfig reads the form of full states. withCredentials says whether
// the node has credentials of its own for an endpoint.
func parseServerConfig(linkID, text string, withCredentials func(endpoint string) bool) (ClientConfig, error) {
	var parsed serverConfigJSON
	if err := decodeConfig(text, &parsed); err != nil {
		return ClientConfig{}, parseError(err)
	}
	switch {
	case parsed.Endpoint == nil:
		return ClientConfig{}, parseError(missingField("endpoint", text))
	case parsed.TLSRequired == nil:
		return ClientConfig{}, parseError(missingField("tls_required", text))
	case len(parsed.AuthMethod) == 0:
		return ClientConfig{}, parseError(missingField("auth_method", text))
	}
	if err := checkAuthMethod(parsed, withCredentials); err != nil {
		return ClientConfig{}, err
	}
	config := ClientConfig{Endpoint: *parsed.Endpoint, LinkID: linkID, Type: remote}
	if parsed.Backoff != nil {
		config.Backoff.Interval = time.Duration(*parsed.Backoff) * time.Millisecond
	}
	return config, nil
}

func checkAuthMethod(parsed serverConfigJSON, withCredentials func(endpoint string) bool) error {
	switch method := string(parsed.AuthMethod); {
	case method == `"none"`:
		return nil
	case method == `"basic"`, method == `"jwt"`, method == `"oidc"`:
		if !withCredentials(*parsed.Endpoint) {
			return fmt.Errorf("%w for %s", errCredentials, *parsed.Endpoint)
		}
		return nil
	case strings.Contains(method, `"spire"`):
		if !*parsed.TLSRequired {
			return errors.New("Failed to merge connection config to client config: TLS needs to be enabled to use Spire") //nolint:staticcheck // a node's own words
		}
		return nil
	default:
		return parseError(fmt.Errorf("unknown variant %s, expected one of `none`, `basic`, `jwt`, `spire`, `oidc`", method))
	}
}

func decodeConfig(text string, into any) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
			return fmt.Errorf("expected value at line 1 column %d", max(syntax.Offset, 1))
		}
		return err
	}
	return nil
}

func missingField(field, text string) error {
	return fmt.Errorf("missing field `%s` at line 1 column %d", field, len(text))
}

func parseError(err error) error {
	return fmt.Errorf("Failed to parse config: %w", err) //nolint:staticcheck // a node's own words
}

// describe is the config_data that a node lists for a connection it dialled.
func (c ClientConfig) describe() string {
	text, err := json.Marshal(map[string]any{
		"endpoint":        c.Endpoint,
		"link_id":         c.LinkID,
		"connection_type": strings.ToLower(strings.TrimPrefix(c.Type.String(), "CONNECTION_TYPE_")),
		"tls":             map[string]any{"insecure": !c.tls()},
	})
	if err != nil {
		return "{}"
	}
	return string(text)
}

func (c ClientConfig) tls() bool {
	return strings.HasPrefix(strings.ToLower(c.Endpoint), "https://")
}

// address is the endpoint without scheme.
func (c ClientConfig) address() string {
	return normalizeEndpoint(c.Endpoint)
}

func normalizeEndpoint(endpoint string) string {
	endpoint = strings.ToLower(strings.TrimSpace(endpoint))
	endpoint = strings.TrimPrefix(endpoint, "http://")
	endpoint = strings.TrimPrefix(endpoint, "https://")
	return strings.TrimSuffix(endpoint, "/")
}
