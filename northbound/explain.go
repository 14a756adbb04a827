package northbound

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxNamed bounds how many of something a line names; of the others it gives the
// number.
const maxNamed = 5

// explainer puts what a view holds into words, one fact a line.
type explainer struct {
	view  *fsm.View
	now   time.Time
	lines []string
	// told are the nodes whose trouble was said; looked up only.
	told map[string]bool
}

func (s *Service) explainer(view *fsm.View) *explainer {
	return &explainer{view: view, now: s.now(), told: map[string]bool{}}
}

func (e *explainer) say(text string, args ...any) {
	e.lines = append(e.lines, fmt.Sprintf(text, args...))
}

func (e *explainer) explanation(works bool) *slimcppb.Explanation {
	return &slimcppb.Explanation{Works: works, Lines: e.lines, Index: e.view.Index()}
}

// at says when something was, in absolute time and as its age by this replica's
// clock.
func (e *explainer) at(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	age := max(e.now.Sub(t), 0).Round(time.Second)
	return fmt.Sprintf("%s (%v ago)", t.UTC().Format(time.RFC3339), age)
}

// sayGroup says what keeps a group from having links, if anything does, and
// reports whether it has a connected node.
func (e *explainer) sayGroup(group string) bool {
	record, known := e.view.Group(group)
	if !known {
		e.say("group %s has no node%s", group, newPairs(e.view).hint(group))
		return false
	}
	if record.Connected == 0 {
		e.say("group %s has no connected node", group)
	}
	e.sayTroubles(e.view.Members(group))
	e.sayUndialable(group)
	return record.Connected > 0
}

// sayTroubles says of some nodes why they do no work now, once of each.
func (e *explainer) sayTroubles(ids iter.Seq[string]) {
	troubles := 0
	for id := range ids {
		node, ok := e.view.Node(id)
		if !ok || e.told[id] || e.nodeTrouble(node) == "" {
			continue
		}
		e.told[id] = true
		if troubles++; troubles <= maxNamed {
			e.say("%s", e.nodeTrouble(node))
		}
	}
	if troubles > maxNamed {
		e.say("more nodes that are not connected or do not answer: %d", troubles-maxNamed)
	}
}

// sayUndialable names the nodes of a group that offer what nobody can dial.
func (e *explainer) sayUndialable(group string) {
	named := 0
	for id := range e.view.Members(group) {
		node, ok := e.view.Node(id)
		if !ok || undialable(node) == "" {
			continue
		}
		if named++; named <= maxNamed {
			e.say("%s", undialable(node))
		}
	}
	if named > maxNamed {
		e.say("more nodes with an external endpoint that nobody can dial: %d", named-maxNamed)
	}
}

// undialable says which external endpoint of a node nobody can dial, empty if there is
// none.
func undialable(node *fsm.Node) string {
	for _, detail := range node.Details {
		if detail.Malformed {
			return fmt.Sprintf("nobody can dial the external endpoint %q of node %s: accepted is HOST:PORT",
				shown(detail.ExternalEndpoint), node.ID)
		}
	}
	return ""
}

// nodeTrouble says why a node does no work now, empty if it does.
func (e *explainer) nodeTrouble(node *fsm.Node) string {
	switch {
	case node.State == fsm.NodeLeaving:
		return fmt.Sprintf("node %s is leaving: it deregistered or was evicted", node.ID)
	case node.State == fsm.NodeDeparted:
		return fmt.Sprintf("node %s is gone: it has not been connected since %s", node.ID, e.at(node.LastSession.At))
	case !node.Connected():
		return fmt.Sprintf("node %s has not been connected since %s: %s",
			node.ID, e.at(node.LastSession.At), lossReason(node.LastSession.Reason))
	case node.Silent:
		return fmt.Sprintf("node %s is connected but does not answer: it gets no new links", node.ID)
	}
	return ""
}

func lossReason(reason slimcppb.LossReason) string {
	switch reason {
	case slimcppb.LossReason_LOSS_REASON_ENDED:
		return "its stream ended"
	case slimcppb.LossReason_LOSS_REASON_UNREACHABLE:
		return "the replica that held its stream cannot be reached"
	case slimcppb.LossReason_LOSS_REASON_DRAINING:
		return "the replica that held its stream was shutting down"
	}
	return "for an unknown reason"
}

// segmentsWith returns the names of the segments that are wanted.
func (e *explainer) segmentsWith(wanted func(fsm.SegmentInfo) bool) []string {
	var names []string
	for _, segment := range e.view.Segments() {
		if wanted(segment) {
			names = append(names, segment.Name)
		}
	}
	return names
}

// some joins words for people: at most maxNamed of them.
func some(words []string) string {
	if len(words) <= maxNamed {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:maxNamed], ", "), len(words)-maxNamed)
}

// inSegments says in which segments something is.
func inSegments(names []string) string {
	if len(names) == 1 {
		return "segment " + names[0]
	}
	return "segments " + some(names)
}
