package southbound_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/slim-cp/slim-cp/fsm"
)

// A registration is read while nobody has to prove anything, and applied when
// nodes have to: it is judged by what counts then, with what the node sent.
func TestRegistrationIsJudgedAgainWhenAuthenticationBegins(t *testing.T) {
	for what, c := range map[string]struct {
		secret string // that the node signs with; empty: it sends no token
		group  string
		reason string // empty: the node is let in
	}{
		"good token":             {secretOfA, "a", ""},
		"token of another group": {secretOfB, "a", "group's secret"},
		"no token":               {"", "a", "not given"},
		"group without a secret": {secretOfB, "b", "no registration secret"},
	} {
		for _, leader := range []bool{true, false} { // without one the node is answered before
			t.Run(fmt.Sprintf("%s, leader %v", what, leader), func(t *testing.T) {
				run(t, func(t *testing.T, r *rig) {
					credentials := ""
					if c.secret != "" {
						credentials = token(t, c.secret, c.group, "n", 0)
					}
					resume := r.replica.stall()
					r.replica.setLeader(leader)
					n := r.open(true)
					n.ack()
					asked := n.send(registerMessage(proven(c.group, "n", credentials)))
					synctest.Wait()
					r.require(map[string]string{"a": secretOfA})
					r.replica.setLeader(true)
					resume()
					if c.reason == "" {
						n.registered(asked)
						n.answer(n.next())
						n.announce("x")
						eventually(t, "the node is served", func() bool { return r.announced("a/n") == "x" })
						if hash := r.registrations()[0].GetTokenHash(); len(hash) == 0 {
							t.Error("its token can be used again")
						}
						return
					}
					success := n.next().GetRegisterNodeResponse().GetSuccess()
					if success == leader {
						t.Errorf("answered with success %v", success)
					}
					eventually(t, "the stream ends", n.hasEnded)
					if code := n.end(); code != codes.PermissionDenied {
						t.Errorf("stream ended with %s", code)
					}
					if known := len(r.registrations()); known != 0 {
						t.Errorf("%d registrations", known)
					}
					if lines := r.logs.lines("refused", fsm.NodeID(c.group, "n"), c.reason); len(lines) != 1 && c.group == "a" {
						t.Errorf("log lines %q", lines)
					}
				})
			})
		}
	}
}

// A token is judged by the group's secret, and applied when the group has another.
func TestRegistrationIsJudgedAgainWhenTheSecretChanges(t *testing.T) {
	for what, c := range map[string]struct {
		after  string
		admits bool
	}{"another secret": {secretOfB, false}, "the same one given anew": {secretOfA, true}} {
		t.Run(what, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.require(map[string]string{"a": secretOfA})
				resume := r.replica.stall()
				n := r.open(true)
				n.ack()
				asked := n.send(registerMessage(proven("a", "n", token(t, secretOfA, "a", "n", 0))))
				synctest.Wait()
				r.require(map[string]string{"a": c.after})
				resume()
				if c.admits {
					n.registered(asked)
					return
				}
				if n.next().GetRegisterNodeResponse().GetSuccess() {
					t.Error("answered with success")
				}
				eventually(t, "the stream ends", n.hasEnded)
				if code := n.end(); code != codes.PermissionDenied {
					t.Errorf("stream ended with %s", code)
				}
				if known := len(r.registrations()); known != 0 {
					t.Errorf("%d registrations", known)
				}
			})
		})
	}
}

func (n *node) hasEnded() bool {
	select {
	case err := <-n.ended:
		n.ended <- err
		return true
	default:
		return false
	}
}

// The token's age is that of when it was read, however long the log took.
func TestTokenThatIsJudgedLateHasTheAgeOfWhenItWasRead(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.replica.setLeader(false)
		n, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
		if !success {
			t.Fatal("refused without a leader")
		}
		n.answer(n.next())
		pass(2 * time.Hour)
		r.require(map[string]string{"a": secretOfA})
		r.replica.setLeader(true)
		n.announce("x")
		eventually(t, "the node is served", func() bool { return r.announced("a/n") == "x" })
	})
}
