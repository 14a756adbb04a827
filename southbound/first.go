package southbound

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

const (
	// provenFor is how long an endpoint that was reached counts as proven
	// (protocol C7).
	provenFor = time.Hour
	// MaxCommandRoutes bounds the routes of one increment (protocol C4).
	MaxCommandRoutes = 1000
	// MaxCommandBytes bounds one increment (protocol C4).
	MaxCommandBytes = 3 << 20
)

// First is the first message behind a registration's answer, written by this
// replica from its own copy of the state (protocol C3).
type First struct {
	MessageID string
	// Index of the view from which all of it was built.
	Index uint64
	// Links as they were pushed, source revisions included, in the order of the
	// command.
	Links []*fsm.Link
	// Command is nil if there was nothing to push: the message then asks for the
	// node's connections (protocol N7).
	Command *controllerpb.ConfigurationCommand
	// Continued: the stream was registered before under another name and has
	// answered its first message then, so that there is none to take over.
	Continued bool

	answer *future
	// relayed is set, instead of answer, if another replica holds the stream.
	relayed func(done func(Answer), late, silent func())
}

// OnAnswer has done called once, from another goroutine, with the node's answer
// or an error as in Service.Call; also if it came already. late and silent are as in
// Call.
func (f First) OnAnswer(done func(Answer), late, silent func()) {
	if f.relayed != nil {
		f.relayed(done, late, silent)
		return
	}
	f.answer.then(done, late, silent)
}

// FirstCommand returns the first message of a session. It returns false if there
// is none: before the stream is ready for calls (see Hooks), and for a stream that
// can be called and has answered its first message before (see First.Continued).
func (s *Service) FirstCommand(session fsm.SessionName) (First, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.sessions[session]
	if !ok {
		return First{}, false
	}
	return st.held(session).firstCommand()
}

// buildFirst builds the first command for a node: the plain links that it dials,
// and the routes over them. Links that need the node's credentials cannot be in
// an increment, and incoming links still have their routes.
func buildFirst(view *fsm.View, nodeID string) *First {
	first := &First{Index: view.Index(), answer: &future{}}
	command := &controllerpb.ConfigurationCommand{}
	size := 0
	pushed := map[string]bool{}
	for _, link := range dialable(view, nodeID) {
		connection := Connection(link, ClientConfig(link, view.Fleet().GetEnforcedConnection()))
		if size += wireSize(connection); size > MaxCommandBytes {
			break
		}
		command.ConnectionsToCreate = append(command.ConnectionsToCreate, connection)
		first.Links = append(first.Links, link)
		pushed[link.ID] = true
	}
	if len(pushed) == 0 {
		return first
	}
	for link, record := range view.NodeRoutes(nodeID) {
		if !pushed[link.ID] {
			continue
		}
		route := Route(record.Name, link.ID)
		if size += wireSize(route); size > MaxCommandBytes || len(command.RoutesToSet) == MaxCommandRoutes {
			break
		}
		command.RoutesToSet = append(command.RoutesToSet, route)
	}
	first.Command = command
	return first
}

// wireSize is what a repeated message adds to its parent.
func wireSize(message proto.Message) int { return proto.Size(message) + 6 }

// dialable returns the links that the first command may dial: proven ones, then
// at most one that is not, since a dead endpoint delays all behind it (protocol
// C4, C7).
func dialable(view *fsm.View, nodeID string) []*fsm.Link {
	var proven, unproven []*fsm.Link
	for link := range view.LinksOf(nodeID) {
		switch {
		case link.SourceNode != nodeID, !link.Live(), link.NeedsCredentials(), !hasConnected(view, link.DestGroup):
		case Proven(view, link):
			proven = append(proven, link)
		default:
			unproven = append(unproven, link)
		}
	}
	if len(unproven) == 0 {
		return proven
	}
	return append(proven, slices.MinFunc(unproven, func(a, b *fsm.Link) int {
		return cmp.Or(cmp.Compare(a.Failures, b.Failures), cmp.Compare(a.ID, b.ID))
	}))
}

// Proven reports whether a node of the link's source group reached its endpoint
// within the hour (protocol C7).
func Proven(view *fsm.View, link *fsm.Link) bool {
	return !link.ReachedAt.IsZero() && view.Clock().Sub(link.ReachedAt) < provenFor
}

func hasConnected(view *fsm.View, group string) bool {
	record, ok := view.Group(group)
	return ok && record.Connected > 0
}
