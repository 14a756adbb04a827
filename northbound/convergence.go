package northbound

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxConvergenceLines bounds an answer of Convergence.
const maxConvergenceLines = 100

// Convergence says whether every node holds what the state wants, and what is
// still missing. It costs the names and links of the fleet, not its routes.
func (s *Service) Convergence(ctx context.Context, _ *slimcppb.ConvergenceRequest) (*slimcppb.ConvergenceResponse, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	e := s.explainer(view)
	response := &slimcppb.ConvergenceResponse{Index: view.Index()}
	notable := e.nodesConverge(response)
	waiting := e.pairsConverge(response)
	e.linksConverge(response)
	e.routesConverge(response)
	e.removalsConverge()
	response.Converged = len(e.lines) == 0
	response.Lines = bounded(e.lines, maxConvergenceLines)
	response.Warnings = bounded(slices.Concat(s.notes(), notable, e.templateProblem(), e.doubles(), caseHints(view, view.Fleet()), waiting), maxConvergenceLines)
	return response, nil
}

// bounded cuts a list and says in its last line how much was cut.
func bounded(lines []string, limit int) []string {
	if len(lines) <= limit {
		return lines
	}
	return append(lines[:limit-1:limit-1], fmt.Sprintf("and %d more", len(lines)-limit+1))
}

// nodesConverge looks at the nodes that should be connected: one that departed is
// not missed, one that may yet come back is. It returns what an operator should know
// of the nodes beside that: which have departed, and which nobody can dial.
func (e *explainer) nodesConverge(response *slimcppb.ConvergenceResponse) (notable []string) {
	for node := range e.view.Nodes() {
		if node.State == fsm.NodeDeparted {
			if response.DepartedNodes++; response.DepartedNodes <= maxNamed {
				notable = append(notable, e.nodeTrouble(node))
			}
			continue
		}
		response.Nodes++
		if node.Connected() {
			response.ConnectedNodes++
		}
		if trouble := e.nodeTrouble(node); trouble != "" {
			e.say("%s", trouble)
		}
		if problem := undialable(node); problem != "" {
			notable = append(notable, problem)
		}
	}
	if more := response.DepartedNodes; more > maxNamed {
		notable = append(notable, fmt.Sprintf("more nodes that are gone: %d", more-maxNamed))
	}
	return notable
}

// doubles names the nodes whose id seems to be that of two processes (protocol S4).
func (e *explainer) doubles() []string {
	var lines []string
	for node := range e.view.Nodes() {
		older, newer, double := node.Double(e.view.Clock()) // whose stamps these are, too
		if !double {
			continue
		}
		lines = append(lines, fmt.Sprintf(
			"two processes with one id: %s has been connected from %s since %s and from %s since %s; the later one gets the commands",
			node.ID, older.PeerAddress, e.at(older.RegisteredAt), newer.PeerAddress, e.at(newer.RegisteredAt)))
	}
	return lines
}

// pairsConverge looks for groups that should be linked and are not. A pair of which
// a group has no present node is counted and named in the lines that it returns; it
// keeps nothing from converging, since there is nobody to link.
func (e *explainer) pairsConverge(response *slimcppb.ConvergenceResponse) (waiting []string) {
	pairs := newPairs(e.view)
	for a, b := range e.view.WantedPairs() {
		if _, linked := e.view.LinkBetween(a, b); linked {
			continue
		}
		line := fmt.Sprintf("groups %s and %s are not linked", a, b)
		if reason := pairs.reason(a, b); reason != "" {
			line += ": " + reason
		}
		if e.view.Allowed(a, b) {
			e.say("%s", line)
		} else {
			waiting = append(waiting, line)
			response.WaitingPairs = proto.Uint64(uint64(len(waiting)))
		}
	}
	return waiting
}

func (e *explainer) linksConverge(response *slimcppb.ConvergenceResponse) {
	for link := range e.view.Links() {
		if !link.Live() {
			continue
		}
		response.Links++
		if link.Status == fsm.LinkApplied {
			response.AppliedLinks++
		}
		if link.Status != fsm.LinkApplied || link.DisputedBy != "" {
			e.say("link %s of groups %s and %s is %v: %s",
				link.ID, link.SourceGroup, link.DestGroup, link.Status, strings.Join(e.linkState(link), "; "))
		}
	}
}

func (e *explainer) routesConverge(response *slimcppb.ConvergenceResponse) {
	counts := e.countRoutes()
	response.Routes, response.AppliedRoutes = counts.total, counts.applied
	for node := range e.view.Nodes() {
		count, ok := counts.nodes[node.ID]
		if !ok {
			continue
		}
		if count.pending > 0 {
			e.say("node %s: routes not applied: %d, among them %s", node.ID, count.pending, count.firstPending)
		}
		if count.failed > 0 {
			e.say("node %s: routes failed: %d, among them %s", node.ID, count.failed, count.firstFailed)
		}
	}
}

// removalsConverge looks at what is gone for us and may not be gone at the nodes.
func (e *explainer) removalsConverge() {
	for link := range e.view.Links() {
		if !link.Live() && !link.Gone {
			e.say("node %s still holds the deleted link %s: %s", link.SourceNode, link.ID, link.StatusMessage)
		}
	}
	unconfirmed, first := 0, ""
	for tombstone := range e.view.Tombstones() {
		if e.view.RemovalConfirmed(tombstone) {
			continue
		}
		if unconfirmed++; unconfirmed == 1 {
			first = fmt.Sprintf("%v of node %s, withdrawn at %s", tombstone.Name, tombstone.Announcer.NodeID, e.at(tombstone.RemovedAt))
		}
	}
	if unconfirmed > 0 {
		e.say("withdrawn names whose routes nodes may still hold: %d, among them %s", unconfirmed, first)
	}
}
