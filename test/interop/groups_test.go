//go:build interop

package interop_test

import (
	"strings"
	"testing"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/test/observer"
	"github.com/slim-cp/slim-cp/test/process"
)

func TestScenario18GroupsSecretAdmitsItsNodes(t *testing.T) {
	const secretA, secretB, secretC = "the secret of group a, which is long enough", "the secret of group b, which is long enough", "the secret of group c, which is long enough"
	l := startLab(t, "registration_auth: {type: shared_secret}")
	for group, secret := range map[string]string{"a": secretA, "b": secretB, "c": secretC} {
		if _, err := l.API().AddGroup(t.Context(), &controlplanepb.AddDomainRequest{DomainName: group, Secret: secret}); err != nil {
			t.Fatal(err)
		}
	}
	for _, pair := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
		l.mustAddLink(t, "", pair[0], pair[1])
	}
	specA, specB, specC := l.spec(t, "a", "node-a"), l.spec(t, "b", "node-b"), l.spec(t, "c", "node-c")
	specA.secret, specB.secret, specC.secret = secretA, secretB, secretA
	a := l.start(t, specA)[0]
	b := l.start(t, specB)[0]
	// The node that comes later dials, so that only its own consent ends the link.
	link := l.WaitLink(t, "a", "b", observer.From(b.fullID()))
	one, other := startApp(t, a, alice), startApp(t, b, bob)
	l.wantRouted(t, a, b, bob)
	l.wantRouted(t, b, a, alice)

	refused := startNode(t, specC)
	refused.WaitFor(t, "word of the refusal", nodeStart, func(line process.Line) bool {
		return strings.Contains(line.Text, "registration rejected")
	})
	l.WaitDisconnected(t, specC.fullID())
	l.WaitNoLink(t, specC.group)
	if after := l.WaitLink(t, "a", "b"); after.GetLinkId() != link.GetLinkId() {
		t.Errorf("the refusal replaced the link %v by %v", link, after)
	}
	converse(t, one, other, "hello")

	if _, err := l.API().RemoveGroup(t.Context(), &controlplanepb.RemoveDomainRequest{DomainName: "b"}); err != nil {
		t.Fatal(err)
	}
	l.WaitDisconnected(t, b.fullID())
	l.WaitNoLink(t, "b")
	l.WaitNoConnection(t, a.fullID(), link.GetLinkId())
	l.wantGone(t, bob, a)
	l.WaitConnected(t, a.fullID())
}
