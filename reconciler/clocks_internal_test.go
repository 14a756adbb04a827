package reconciler

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

// wrongClocks are how far the clock of the leader before was from this one's.
var wrongClocks = map[string]time.Duration{
	"the new leader's clock is an hour ahead":  -time.Hour,
	"the new leader's clock is an hour behind": time.Hour,
}

func wait(d time.Duration) { <-time.After(d) }

// deaf are nodes that are never reached.
type deaf struct{}

func (deaf) Call(southbound.Call, func(southbound.Answer)) {}
func (deaf) FirstCommand(fsm.SessionName) (southbound.First, bool) {
	return southbound.First{}, false
}
func (deaf) End(uint64, fsm.SessionName, bool, func(error)) {}
func (deaf) SetHooks(*southbound.Hooks)                     {}
func (deaf) Reached(string) bool                            { return true }

// lone is a leader whose log is a store alone.
type lone struct {
	t     *testing.T
	store *fsm.Store

	mu       sync.Mutex
	replaced int // links
}

func (l *lone) ProposeAsLeader(_ context.Context, _ uint64, command *slimcppb.Command) (fsm.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if command.GetReplaceLink() != nil {
		l.replaced++
	}
	command = proto.CloneOf(command)
	command.Term = rerouteTerm
	return l.append(time.Now(), command), nil
}

// append applies a command as a leader does whose clock says now. l.mu is held.
func (l *lone) append(now time.Time, command *slimcppb.Command) fsm.Result {
	view := l.store.View()
	command.Generation, command.Seed, command.TimeUnixNanos = view.Generation(), 1, now.UnixNano()
	return l.store.Apply(view.Index()+1, rerouteTerm, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})[0]
}

// apply applies a command that is accepted.
func (l *lone) apply(now time.Time, command *slimcppb.Command) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if result := l.append(now, command); result.Err != nil {
		l.t.Fatalf("%T: %v", command.GetPayload(), result.Err)
	}
}

// lead starts a leadership and returns it with what ends it.
func (l *lone) lead() (*leadership, func()) {
	l.t.Helper()
	r := New(Options{Proposer: l, Nodes: deaf{}, Store: l.store})
	ctx, cancel := context.WithCancel(l.t.Context())
	var work sync.WaitGroup
	work.Go(func() { r.Run(ctx, rerouteTerm) })
	synctest.Wait()
	leadership, err := r.leading()
	if err != nil {
		l.t.Fatal(err)
	}
	return leadership, func() { cancel(); work.Wait() }
}

// acknowledge has the source of the link between a and b acknowledge its dial.
func (l *lone) acknowledge(now time.Time) *fsm.Link {
	l.t.Helper()
	link, ok := l.store.View().LinkBetween("a", "b")
	if !ok {
		l.t.Fatal("there is no link")
	}
	source, _ := l.store.View().Node(link.SourceNode)
	session, _ := source.CommandSession()
	l.apply(now, &slimcppb.Command{Term: rerouteTerm, Payload: &slimcppb.Command_NodeReconciled{NodeReconciled: &slimcppb.NodeReconciled{
		NodeId: source.ID, Session: session.Name.Proto(),
		Links: []*slimcppb.LinkAck{{LinkId: link.ID, Revision: link.SourceRevision, Success: true}},
	}}})
	link, _ = l.store.View().Link(link.ID)
	if link.Status != fsm.LinkConnecting {
		l.t.Fatalf("link is %s", link.Status)
	}
	return link
}

var clockName = fsm.Name{C0: "org", C1: "ns", C2: "app", ID: fsm.NoInstance}

func (l *lone) register(now time.Time, group, node string) *slimcppb.SessionName {
	l.t.Helper()
	session := &slimcppb.SessionName{ReplicaId: "cp", BootId: group + node, Counter: 1}
	l.apply(now, &slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
		Session: session, Group: group, Node: node,
	}}})
	return session
}

// announce has a session say clockName first.
func (l *lone) announce(now time.Time, session *slimcppb.SessionName) {
	l.t.Helper()
	l.apply(now, &slimcppb.Command{Payload: &slimcppb.Command_Announce{Announce: &slimcppb.Announce{
		Session: session, Sequence: 1, Changes: []*slimcppb.NameChange{{Name: clockName.Proto()}},
	}}})
}

func (l *lone) expectReplaced(times int, when string) {
	l.t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.replaced != times {
		l.t.Errorf("%s the link was replaced %d times, want %d", when, l.replaced, times)
	}
}

// However the clocks of two leaders differ, a link that nobody claims has 30 s
// with the new one, no less and no more.
func TestUnclaimedLinkUnderAWrongClock(t *testing.T) {
	for name, ahead := range wrongClocks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lone{t: t, store: failingPair(t, "n1")}
				l.acknowledge(time.Now().Add(ahead))
				wait(20 * time.Second)
				_, resign := l.lead()
				defer resign()
				wait(29 * time.Second)
				l.expectReplaced(0, "after 29 s")
				wait(2 * time.Second)
				l.expectReplaced(1, "after 31 s")
			})
		})
	}
}

// A link that is dialled again has the whole time again, and one that is no
// longer connecting costs nothing.
func TestEveryDialHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lone{t: t, store: failingPair(t, "n1")}
		leadership, resign := l.lead()
		defer resign()
		link := l.acknowledge(time.Now())
		wait(20 * time.Second)
		source, _ := l.store.View().Node(link.SourceNode)
		session, _ := source.CommandSession()
		l.apply(time.Now(), &slimcppb.Command{Term: rerouteTerm, Payload: &slimcppb.Command_Observed{Observed: &slimcppb.Observed{
			NodeId: source.ID, Session: session.Name.Proto(),
			Links: []*slimcppb.LinkObservation{{
				LinkId: link.ID, Revision: link.SourceRevision, Seen: &slimcppb.LinkObservation_Down{Down: "gone"},
			}},
		}}})
		l.acknowledge(time.Now())
		wait(29 * time.Second)
		l.expectReplaced(0, "29 s after the second dial")
		wait(2 * time.Second)
		l.expectReplaced(1, "31 s after the second dial")
		leadership.mu.Lock()
		defer leadership.mu.Unlock()
		if len(leadership.dials) > 0 {
			t.Errorf("no link is connecting, and these are remembered: %v", leadership.dials)
		}
	})
}

// Whether a session was there before the leadership is not a matter of clocks:
// its routes that became wanted since it began can be deleted, those that were
// set before a newer session's stream began cannot (protocol N6).
func TestForgottenRoutesUnderAWrongClock(t *testing.T) {
	for name, ahead := range wrongClocks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lone{t: t, store: failingPair(t, "n1")}
				before := time.Now().Add(ahead)
				l.register(before, "b", "found")
				l.announce(before, l.register(before, "a", "announcer"))
				leadership, resign := l.lead()
				defer resign()
				wait(time.Second)
				l.register(time.Now(), "b", "later")
				synctest.Wait()
				view := leadership.view()
				link, _ := view.LinkBetween("a", "b")
				for id, want := range map[string]bool{"b/found": false, "b/later": true} {
					d, ok := leadership.driver(id)
					if !ok {
						t.Fatalf("no driver of %s", id)
					}
					if got := d.forgotten(view, link.ID, clockName); got != want {
						t.Errorf("node %s has forgotten its routes: %v, want %v", id, got, want)
					}
				}
			})
		})
	}
}
