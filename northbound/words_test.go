package northbound

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// TestAnswersAreInTheWordsOfTheTool: slimctl calls groups domains, in errors, reasons
// and explanations; the names of groups stay what they are.
func TestAnswersAreInTheWordsOfTheTool(t *testing.T) {
	f := newFleet(t)
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_AddEdge{AddEdge: &slimcppb.AddEdge{Segment: "default", GroupA: "group-1", GroupB: "x"}}})
	f.register("group-1/1")
	for agent, word := range map[string]string{"tonic/0.14.6": "domain", "slimctl/1": "domain", "slim-cp": "group", "": "group"} {
		var options []grpc.DialOption
		if agent != "" {
			options = append(options, grpc.WithUserAgent(agent))
		}
		connection := connect(t, NewServer(NewService(f.options()), NewHealth()), options...)
		plane, cluster := controlplanepb.NewControlPlaneServiceClient(connection), slimcppb.NewClusterServiceClient(connection)
		_, err := plane.AddTopologyLink(t.Context(), &controlplanepb.AddTopologyLinkRequest{DomainA: "a", DomainB: "*"})
		wantStatus(t, err, codes.InvalidArgument, `malformed id: `+word+` "*" is reserved`)
		operator := &client{ControlPlaneServiceClient: plane}
		links := operator.links(t, "", "")
		if want := word + " x has no connected node"; len(links) != 1 || links[0].GetStatusMsg() != want || links[0].GetSourceNodeId() != "group-1" {
			t.Errorf("%q: links %v, want %q", agent, links, want)
		}
		answer, err := cluster.ExplainLink(t.Context(), &slimcppb.ExplainLinkRequest{GroupA: "group-1", GroupB: "x"})
		if text := strings.Join(answer.GetLines(), "; "); err != nil || !strings.Contains(text, word+"s group-1 and x") {
			t.Errorf("%q: %s, %v", agent, text, err)
		}
	}
}
