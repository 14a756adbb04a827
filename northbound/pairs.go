package northbound

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// pairs finds the pairs of groups that the topology links and that have no
// link. It looks at all links, whatever the caller filters by: a pair is not
// unlinked because its link was asked out of the list.
type pairs struct {
	view *fsm.View
	// dropping holds pairs whose deleted link its source still has.
	dropping map[[2]string]struct{}
	groups   map[string]dialling
	// folded holds the groups that have a node, by their name in lower case. It is made
	// when it is needed.
	folded map[string]string
}

// dialling is what a group's connected nodes can do for a new link.
type dialling struct {
	connected bool // there is one
	answering bool // one answers (protocol C9)
	reachable bool // one that answers has an external endpoint
}

func newPairs(view *fsm.View) *pairs {
	return &pairs{view: view, dropping: map[[2]string]struct{}{}, groups: map[string]dialling{}}
}

// note takes a link of the view into account.
func (p *pairs) note(link *fsm.Link) {
	if !link.Live() && !link.Gone {
		a, b := min(link.SourceGroup, link.DestGroup), max(link.SourceGroup, link.DestGroup)
		p.dropping[[2]string{a, b}] = struct{}{}
	}
}

// unlinked yields the pairs without a link, each ordered and once, in order, also
// those of a group that has no node. All links must have been noted.
func (p *pairs) unlinked() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for a, b := range p.view.WantedPairs() {
			if _, linked := p.view.LinkBetween(a, b); linked {
				continue
			}
			if _, dropping := p.dropping[[2]string{a, b}]; dropping {
				continue
			}
			if !yield(a, b) {
				return
			}
		}
	}
}

func (p *pairs) entry(a, b string) *controlplanepb.LinkEntry {
	const none = "-"
	return &controlplanepb.LinkEntry{
		Id:           "pending|" + a + "|" + b,
		LinkId:       none,
		SourceNodeId: a,
		DestNodeId:   b,
		DestEndpoint: none,
		Status:       controlplanepb.LinkStatus_LINK_STATUS_PENDING,
		StatusMsg:    p.reason(a, b),
	}
}

// reason says why the pair has no link, empty if that cannot be told.
func (p *pairs) reason(a, b string) string {
	first, second := p.dialling(a), p.dialling(b)
	switch {
	case !first.connected && !second.connected:
		return fmt.Sprintf("groups %s and %s have no connected node%s%s", a, b, p.hint(a), p.hint(b))
	case !first.connected:
		return fmt.Sprintf("group %s has no connected node%s", a, p.hint(a))
	case !second.connected:
		return fmt.Sprintf("group %s has no connected node%s", b, p.hint(b))
	case !first.answering:
		return fmt.Sprintf("no connected node of group %s answers", a)
	case !second.answering:
		return fmt.Sprintf("no connected node of group %s answers", b)
	case !first.reachable && !second.reachable:
		return fmt.Sprintf("neither group %s nor group %s has a connected node with an external endpoint", a, b)
	}
	return ""
}

// otherCase returns a group that has a node and whose name differs only by case from
// that of a group which has none.
func (p *pairs) otherCase(group string) (string, bool) {
	if _, known := p.view.Group(group); known {
		return "", false
	}
	if p.folded == nil {
		p.folded = map[string]string{}
		for record := range p.view.Groups() {
			p.folded[strings.ToLower(record.Name)] = record.Name
		}
	}
	other, found := p.folded[strings.ToLower(group)]
	return other, found && other != ""
}

// hint is what to add to a text about a group without a node.
func (p *pairs) hint(group string) string {
	if other, found := p.otherCase(group); found {
		return fmt.Sprintf(" (group %s has: the names differ only by case)", other)
	}
	return ""
}

// caseHints says which groups a fleet configuration names that have no node, while one
// has whose name differs only by case.
func caseHints(view *fsm.View, config *slimcppb.FleetConfig) []string {
	var names []string
	for _, segment := range config.GetTopology().GetSegments() {
		for _, adjacency := range segment.GetLinks() {
			names = append(append(names, adjacency.GetGroup()), adjacency.GetNeighbors()...)
		}
	}
	for _, secret := range config.GetSecrets() {
		names = append(names, secret.GetGroup())
	}
	slices.Sort(names)
	p := newPairs(view)
	var hints []string
	for _, name := range slices.Compact(names) {
		if other, found := p.otherCase(name); found {
			hints = append(hints, fmt.Sprintf("the configuration names group %s, which has no node; group %s has: the names differ only by case", name, other))
		}
	}
	return hints
}

func (p *pairs) dialling(group string) dialling {
	if known, ok := p.groups[group]; ok {
		return known
	}
	var found dialling
	for id := range p.view.ConnectedMembers(group) {
		node, ok := p.view.Node(id)
		if !ok {
			continue
		}
		_, external := node.ExternalDetail()
		found.connected = true
		found.answering = found.answering || !node.Silent
		found.reachable = found.reachable || external && !node.Silent
	}
	p.groups[group] = found
	return found
}
