package operator

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

func (t *tree) segmentCommand() *cobra.Command {
	return nounCommand(&cobra.Command{
		Use:   "segment",
		Short: "Segments: separate topologies over the " + t.vocabulary.membership.singular + "s",
	}, listCommand("List the segments", t.listSegments))
}

func (t *tree) listSegments(command *cobra.Command) error {
	var answer *controlplanepb.SegmentListResponse
	err := t.ask(command, "list segments", func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = client.ListSegments(ctx, &controlplanepb.SegmentListRequest{})
		return err
	})
	if err != nil {
		return err
	}
	segments := answer.GetSegments()
	rows := make([][]string, len(segments))
	for i, segment := range segments {
		edges := make([]string, len(segment.GetEdges()))
		for j, edge := range segment.GetEdges() {
			edges[j] = edge.GetDomainA() + "↔" + edge.GetDomainB()
		}
		rows[i] = []string{
			segment.GetName(),
			orAbsent(strings.Join(segment.GetDomains(), ", ")),
			orAbsent(strings.Join(edges, ", ")),
		}
	}
	return t.print(command, listing{
		heading: counted(len(segments), "segment"),
		columns: []string{"SEGMENT", t.vocabulary.membership.plural, "LINKS"},
		rows:    rows,
		key:     "segments",
		entries: messages(segments),
	})
}
