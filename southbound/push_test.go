package southbound_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// The texts below are what nodes parse; a change of one is a change of the wire.
func TestConfigurationTexts(t *testing.T) {
	plain := &fsm.Link{ID: "link-1", Endpoint: "b.example:1"}
	secure := &fsm.Link{ID: "link-1", Endpoint: "https://b.example:1", TLSRequired: true}
	spire := &fsm.Link{
		ID: "link-1", Endpoint: "http://b.example:1", TLSRequired: true,
		AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_SPIRE, TrustDomain: "a&b",
	}
	jwt := &fsm.Link{ID: "link-1", Endpoint: "b.example:1", AuthMethod: slimcppb.AuthMethod_AUTH_METHOD_JWT}
	enforced := &slimcppb.EnforcedConnection{
		TimeoutMs: proto.Uint32(90_000), BackoffMs: proto.Uint32(1500),
		Keepalive: &slimcppb.Keepalive{TcpKeepaliveMs: 60_000, Http2KeepaliveMs: 45_000, TimeoutMs: 0},
	}
	cases := []struct{ what, got, want string }{
		{
			"increment", southbound.ClientConfig(plain, nil),
			`{"endpoint":"http://b.example:1","link_id":"link-1","connection_type":"remote","tls":{"insecure":true},` +
				`"connect_timeout":"2s","request_timeout":"3s","backoff":{"type":"fixed_interval","interval":"500ms","max_attempts":2}}`,
		},
		{
			"increment, enforced", southbound.ClientConfig(secure, enforced),
			`{"endpoint":"https://b.example:1","link_id":"link-1","connection_type":"remote","tls":{"insecure":false},` +
				`"connect_timeout":"90s","request_timeout":"3s","backoff":{"type":"fixed_interval","interval":"1500ms","max_attempts":2},` +
				`"keepalive":{"tcp_keepalive":"1m","http2_keepalive":"45s","timeout":"0s","keep_alive_while_idle":false}}`,
		},
		{
			"full state", southbound.ServerConfig(plain, nil),
			`{"endpoint":"http://b.example:1","tls_required":false,"auth_method":"none",` +
				`"link_id":"link-1","connection_type":"remote","tls":{"insecure":true}}`,
		},
		{
			"full state, spire, enforced", southbound.ServerConfig(spire, enforced),
			`{"endpoint":"https://b.example:1","tls_required":true,"auth_method":{"spire":{"trust_domain":"a&b"}},` +
				`"timeout":90000,"backoff":1500,` +
				`"keepalive":{"tcp_keepalive":"1m","http2_keepalive":"45s","timeout":"0s","keep_alive_while_idle":false},` +
				`"link_id":"link-1","connection_type":"remote","tls":{"insecure":false}}`,
		},
		{
			"full state, jwt", southbound.ServerConfig(jwt, &slimcppb.EnforcedConnection{}),
			`{"endpoint":"http://b.example:1","tls_required":false,"auth_method":"jwt",` +
				`"link_id":"link-1","connection_type":"remote","tls":{"insecure":true}}`,
		},
	}
	for _, c := range cases {
		if c.got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.what, c.got, c.want)
		}
	}
}

func TestRouteHasBothPartsOfItsName(t *testing.T) {
	route := southbound.Route(fsm.Name{C0: "a", C1: "b", C2: "c", ID: fsm.NoInstance}, "link-1")
	if route.GetLinkId() != "link-1" || route.GetName().GetName().GetNameId() == nil || route.GetName().GetStrName() == nil {
		t.Errorf("route %v", route)
	}
}
