package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

func (t *tree) segmentCommand() *cobra.Command {
	return nounCommand(&cobra.Command{
		Use:   "segment",
		Short: "Segments: separate topologies over the " + t.vocabulary.membership.singular + "s",
	},
		listCommand("List the segments", t.listSegments),
		addCommand("NAME", "Make a segment", t.addSegment),
		removeCommand("NAME", "Remove a segment with its links", t.removeSegment),
	)
}

func (t *tree) addSegment(command *cobra.Command, args []string) error {
	var answer *controlplanepb.AddSegmentResponse
	err := t.change(command, "add segment "+args[0], func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = client.AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: args[0]})
		return err
	})
	if err != nil {
		return err
	}
	return t.printMessage(command, fmt.Sprintf("Segment '%s' added\n", args[0]), answer)
}

func (t *tree) removeSegment(command *cobra.Command, args []string) error {
	var answer *controlplanepb.RemoveSegmentResponse
	err := t.change(command, "remove segment "+args[0], func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = client.RemoveSegment(ctx, &controlplanepb.RemoveSegmentRequest{Name: args[0]})
		return err
	})
	if err != nil {
		return err
	}
	return t.printMessage(command, fmt.Sprintf("Segment '%s' removed\n", args[0]), answer)
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
			edges[j] = pairText(edge.GetDomainA(), edge.GetDomainB())
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
