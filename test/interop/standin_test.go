//go:build interop

package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
)

// farewell bounds the life of a stand-in, which needs a small part of it.
const farewell = 10 * time.Second

// standIn takes the place of a node that is gone, as its restarted process would:
// it registers under the node's id and endpoint and announces what the node's
// applications had. Then it says farewell on its own stream, which no real node
// does by itself.
func standIn(t *testing.T, l *lab, spec nodeSpec, apps []*app) {
	t.Helper()
	node, err := dataplane.NewNetwork(dataplane.NetworkOptions{}).NewNode(dataplane.NodeOptions{
		ID: spec.id, Group: spec.group, Endpoint: spec.endpoint(), ExternalEndpoint: spec.endpoint(),
		Servers: []dataplane.Server{{spec.controlPlane}}, TLS: l.trust(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Kill()
	for _, a := range apps {
		name, err := dataplane.ParseName(a.name + "/" + a.id)
		if err != nil {
			t.Fatal(err)
		}
		node.Announce(name)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), farewell)
	defer cancel()
	if err := node.WaitRegistered(ctx); err != nil {
		t.Fatal(err)
	}
	if err := node.Deregister(ctx); err != nil {
		t.Fatal(err)
	}
}
