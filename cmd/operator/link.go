package operator

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

func (t *tree) linkCommand() *cobra.Command {
	var filter filterFlags
	list := listCommand("List the links of the control plane", func(command *cobra.Command) error {
		return t.listLinks(command, filter)
	})
	filter.define(list.Flags(), t.vocabulary)
	word := t.vocabulary.membership.singular
	var segment string
	add := addCommand("A B", "Have two "+word+"s linked", func(command *cobra.Command, args []string) error {
		return t.addLink(command, args[0], args[1], segment)
	})
	remove := removeCommand("A B", "Have two "+word+"s linked no longer", func(command *cobra.Command, args []string) error {
		return t.removeLink(command, args[0], args[1], segment)
	})
	for _, command := range []*cobra.Command{add, remove} {
		command.Flags().StringVarP(&segment, "segment", "s", defaultSegment, "segment of the topology")
	}
	return nounCommand(&cobra.Command{
		Use:   "link",
		Short: "Links between nodes of different " + word + "s",
	}, list, add, remove)
}

// defaultSegment is the segment of a link where none is named.
const defaultSegment = "default"

func (t *tree) addLink(command *cobra.Command, a, b, segment string) error {
	var answer *controlplanepb.AddTopologyLinkResponse
	err := t.change(command, "add link "+pairText(a, b), func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = client.AddTopologyLink(ctx, &controlplanepb.AddTopologyLinkRequest{DomainA: a, DomainB: b, Segment: segment})
		return err
	})
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Link %s added", pairText(a, b))
	if segment != defaultSegment {
		text += fmt.Sprintf(" in segment '%s'", segment)
	}
	for _, warning := range answer.GetWarnings() {
		text += "\n  Warning: " + printable(warning)
	}
	return t.printMessage(command, text+"\n", answer)
}

func (t *tree) removeLink(command *cobra.Command, a, b, segment string) error {
	var answer *controlplanepb.RemoveTopologyLinkResponse
	err := t.change(command, "remove link "+pairText(a, b), func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = client.RemoveTopologyLink(ctx, &controlplanepb.RemoveTopologyLinkRequest{DomainA: a, DomainB: b, Segment: segment})
		return err
	})
	if err != nil {
		return err
	}
	text := fmt.Sprintf("Link %s removed", pairText(a, b))
	if segment != defaultSegment {
		text += fmt.Sprintf(" from segment '%s'", segment)
	}
	return t.printMessage(command, text+"\n", answer)
}

func (t *tree) listLinks(command *cobra.Command, filter filterFlags) error {
	var links []*controlplanepb.LinkEntry
	err := t.ask(command, "list links", func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) error {
		stream, err := client.ListLinks(ctx, &controlplanepb.LinkListRequest{SrcNodeId: filter.origin, DestNodeId: filter.target})
		if err != nil {
			return err
		}
		links, err = collect(stream)
		return err
	})
	if err != nil {
		return err
	}
	if len(links) == 0 {
		if err := t.checkFilter(command, "list links", filter); err != nil {
			return err
		}
	}
	if !filter.all {
		links = keep(links, func(link *controlplanepb.LinkEntry) bool {
			return link.GetStatus() == controlplanepb.LinkStatus_LINK_STATUS_APPLIED
		})
	}
	rows := make([][]string, len(links))
	for i, link := range links {
		rows[i] = []string{
			link.GetLinkId(),
			link.GetSourceNodeId(),
			t.orAbsent(link.GetDestNodeId()),
			t.orAbsent(link.GetDestEndpoint()),
			t.linkStatus(link),
		}
	}
	return t.print(command, listing{
		heading: t.linksHeading(links, filter),
		columns: []string{"LINK_ID", "SOURCE", "DEST_NODE", "DEST_ENDPOINT", "STATUS"},
		rows:    rows,
		key:     "links",
		entries: messages(links),
	})
}

// linksHeading counts links as status does. Upstream's counts rows.
func (t *tree) linksHeading(links []*controlplanepb.LinkEntry, filter filterFlags) string {
	deleted, pairs := 0, 0
	for _, link := range links {
		switch {
		case link.GetDeleted():
			deleted++
		case link.GetLinkId() == absent:
			pairs++
		}
	}
	if !t.vocabulary.ownTables || deleted+pairs == 0 {
		return fmt.Sprintf("Links: %d (%s)", len(links), filter.statuses())
	}
	heading := fmt.Sprintf("Links: %d (%s)", len(links)-deleted-pairs, filter.statuses())
	if deleted > 0 {
		heading += fmt.Sprintf(", deleted: %d", deleted)
	}
	if pairs > 0 {
		heading += fmt.Sprintf(", pairs of groups without a link: %d", pairs)
	}
	return heading
}

// linkStatus is a link's status. On the wire a deleted link has none of its own, and
// upstream's tool calls that unknown.
func (t *tree) linkStatus(link *controlplanepb.LinkEntry) string {
	if link.GetDeleted() && t.vocabulary.ownTables {
		return "DELETED"
	}
	switch link.GetStatus() {
	case controlplanepb.LinkStatus_LINK_STATUS_PENDING:
		return "PENDING"
	case controlplanepb.LinkStatus_LINK_STATUS_APPLIED:
		return "APPLIED"
	case controlplanepb.LinkStatus_LINK_STATUS_FAILED:
		return "FAILED"
	default:
		return "UNKNOWN"
	}
}
