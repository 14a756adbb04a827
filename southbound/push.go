package southbound

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// KeepConfig stands in a full state for the configuration of a link that is only
// kept: a live one is found by its id, a dead one is refused at once and not
// dialled (protocol C6).
const KeepConfig = "{}"

const (
	connectTimeout = 2 * time.Second
	// requestTimeout bounds the wait for the first answer on a new connection: the
	// kernel of a process that hangs takes connections on. It does not end the
	// stream that the answer begins.
	requestTimeout  = 3 * time.Second
	connectInterval = 500 * time.Millisecond
	connectAttempts = 2
	// connectionType must be said: without it a node makes a connection of
	// another kind, under an id of its own.
	connectionType = "remote"
)

// tlsConfig is the part of a node's TLS settings that we set.
type tlsConfig struct {
	Insecure bool `json:"insecure"`
}

// backoffConfig bounds a dial. A node works off nothing else while it dials, for
// ever if it is not told when to stop.
type backoffConfig struct {
	Type        string `json:"type"`
	Interval    string `json:"interval"`
	MaxAttempts int    `json:"max_attempts"`
}

type keepaliveConfig struct {
	TCPKeepalive       string `json:"tcp_keepalive"`
	HTTP2Keepalive     string `json:"http2_keepalive"`
	Timeout            string `json:"timeout"`
	KeepAliveWhileIdle bool   `json:"keep_alive_while_idle"`
}

// clientConfig is what an increment says of a link.
type clientConfig struct {
	Endpoint       string           `json:"endpoint"`
	LinkID         string           `json:"link_id"`
	ConnectionType string           `json:"connection_type"`
	TLS            tlsConfig        `json:"tls"`
	ConnectTimeout string           `json:"connect_timeout"`
	RequestTimeout string           `json:"request_timeout"`
	Backoff        backoffConfig    `json:"backoff"`
	Keepalive      *keepaliveConfig `json:"keepalive,omitempty"`
}

// serverConfig is what a full state says of a link: requirements, which a node
// merges with its local credentials. Nodes of an older generation read it as a
// client configuration; the last three keys are for them, and an unset timeout
// or backoff must be absent.
type serverConfig struct {
	Endpoint       string           `json:"endpoint"`
	TLSRequired    bool             `json:"tls_required"`
	AuthMethod     any              `json:"auth_method"`
	Timeout        *uint32          `json:"timeout,omitempty"`
	Backoff        *uint32          `json:"backoff,omitempty"`
	Keepalive      *keepaliveConfig `json:"keepalive,omitempty"`
	LinkID         string           `json:"link_id"`
	ConnectionType string           `json:"connection_type"`
	TLS            tlsConfig        `json:"tls"`
}

type spireAuth struct {
	Spire spireTrust `json:"spire"`
}

type spireTrust struct {
	TrustDomain string `json:"trust_domain"`
}

// ClientConfig renders a link for an increment: self-contained, with bounded
// dialling. The settings that the fleet enforces may be nil.
func ClientConfig(link *fsm.Link, enforced *slimcppb.EnforcedConnection) string {
	config := clientConfig{
		Endpoint:       EndpointURL(link),
		LinkID:         link.ID,
		ConnectionType: connectionType,
		TLS:            tlsConfig{Insecure: !link.TLSRequired},
		ConnectTimeout: durationString(connectTimeout),
		RequestTimeout: durationString(requestTimeout),
		Backoff: backoffConfig{
			Type: "fixed_interval", Interval: durationString(connectInterval), MaxAttempts: connectAttempts,
		},
		Keepalive: keepaliveOf(enforced),
	}
	if enforced.GetTimeoutMs() > 0 {
		config.ConnectTimeout = durationString(milliseconds(uint64(enforced.GetTimeoutMs())))
	}
	if enforced.GetBackoffMs() > 0 {
		config.Backoff.Interval = durationString(milliseconds(uint64(enforced.GetBackoffMs())))
	}
	return marshal(config)
}

// ServerConfig renders a link for a full state, and for listings. The settings
// that the fleet enforces may be nil.
func ServerConfig(link *fsm.Link, enforced *slimcppb.EnforcedConnection) string {
	config := serverConfig{
		Endpoint:       EndpointURL(link),
		TLSRequired:    link.TLSRequired,
		AuthMethod:     authMethod(link),
		Keepalive:      keepaliveOf(enforced),
		LinkID:         link.ID,
		ConnectionType: connectionType,
		TLS:            tlsConfig{Insecure: !link.TLSRequired},
	}
	if enforced != nil {
		config.Timeout, config.Backoff = enforced.TimeoutMs, enforced.BackoffMs
	}
	return marshal(config)
}

// Connection builds the wire form of a link with a configuration from
// ClientConfig, ServerConfig or KeepConfig.
func Connection(link *fsm.Link, config string) *controllerpb.Connection {
	return &controllerpb.Connection{LinkId: link.ID, ConfigData: config}
}

// Route builds the wire form of a route over a link.
func Route(name fsm.Name, linkID string) *controllerpb.Route {
	return &controllerpb.Route{Name: name.Wire(), LinkId: &linkID}
}

// EndpointURL is what the source of a link dials: the endpoint with a scheme. A
// node may have been configured with one, which must not be doubled.
func EndpointURL(link *fsm.Link) string {
	host := withoutScheme(link.Endpoint)
	if link.TLSRequired {
		return "https://" + host
	}
	return "http://" + host
}

func withoutScheme(endpoint string) string {
	for _, scheme := range []string{"http://", "https://"} {
		endpoint = strings.TrimPrefix(endpoint, scheme)
	}
	return endpoint
}

// canDial reports whether a node could make an address of an external endpoint. Nodes
// take a URL of ASCII characters; without a port they dial the one of the scheme.
func canDial(external string) bool {
	address := withoutScheme(external)
	if strings.Contains(address, "://") || strings.ContainsAny(address, "\"<>\\^`{|}") || strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return false
	}
	parsed, err := url.Parse("http://" + address)
	if err != nil || parsed.Hostname() == "" {
		return false
	}
	if strings.Contains(parsed.Hostname(), ":") != strings.HasPrefix(parsed.Host, "[") {
		return false
	}
	if parsed.Port() == "" {
		return !strings.HasSuffix(parsed.Host, ":")
	}
	port, err := strconv.ParseUint(parsed.Port(), 10, 16)
	return err == nil && port > 0
}

func authMethod(link *fsm.Link) any {
	switch link.AuthMethod {
	case slimcppb.AuthMethod_AUTH_METHOD_SPIRE:
		return spireAuth{Spire: spireTrust{TrustDomain: link.TrustDomain}}
	case slimcppb.AuthMethod_AUTH_METHOD_BASIC:
		return "basic"
	case slimcppb.AuthMethod_AUTH_METHOD_JWT:
		return "jwt"
	case slimcppb.AuthMethod_AUTH_METHOD_OIDC:
		return "oidc"
	}
	return "none"
}

func keepaliveOf(enforced *slimcppb.EnforcedConnection) *keepaliveConfig {
	keepalive := enforced.GetKeepalive()
	if keepalive == nil {
		return nil
	}
	return &keepaliveConfig{
		TCPKeepalive:       durationString(milliseconds(keepalive.GetTcpKeepaliveMs())),
		HTTP2Keepalive:     durationString(milliseconds(keepalive.GetHttp2KeepaliveMs())),
		Timeout:            durationString(milliseconds(keepalive.GetTimeoutMs())),
		KeepAliveWhileIdle: keepalive.GetKeepAliveWhileIdle(),
	}
}

func milliseconds(n uint64) time.Duration { return time.Duration(n) * time.Millisecond }

// durationString renders a duration as nodes read it: one number and the largest
// unit that divides it.
func durationString(d time.Duration) string {
	units := []struct {
		length time.Duration
		name   string
	}{
		{7 * 24 * time.Hour, "w"}, {24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"},
		{time.Second, "s"}, {time.Millisecond, "ms"},
	}
	if d == 0 {
		return "0s"
	}
	for _, unit := range units {
		if d%unit.length == 0 {
			return fmt.Sprintf("%d%s", d/unit.length, unit.name)
		}
	}
	return fmt.Sprintf("%dns", d)
}

// marshal encodes one of the structs above, which cannot fail.
func marshal(config any) string {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(config); err != nil {
		return KeepConfig
	}
	return strings.TrimSuffix(text.String(), "\n")
}
