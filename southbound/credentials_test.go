package southbound_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/auth"
	"github.com/slim-cp/slim-cp/fsm"
	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/southbound"
)

const (
	secretOfA = "the-secret-of-group-a-0123456789ab"
	secretOfB = "the-secret-of-group-b-0123456789ab"
)

// require has nodes prove their group; secrets are by group.
func (r *rig) require(secrets map[string]string) {
	r.t.Helper()
	config := &slimcppb.FleetConfig{RegistrationAuth: fsm.SharedSecret}
	for group, secret := range secrets {
		config.Secrets = append(config.Secrets, &slimcppb.GroupSecret{Group: group, Secret: []byte(secret)})
	}
	r.replica.as(r.t, &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{
		SetFleetConfig: &slimcppb.SetFleetConfig{Config: config},
	}})
}

func token(t *testing.T, secret, group, node string, age time.Duration) string {
	t.Helper()
	token, err := auth.SignToken([]byte(secret), group, node, time.Now().Add(-age))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// proven is a registration with credentials.
func proven(group, node, credentials string) *controllerpb.RegisterNodeRequest {
	asked := request(group, node)
	asked.Credentials = credentials
	return asked
}

// ask opens a stream, asks to be registered and returns the answer.
func (r *rig) ask(asked *controllerpb.RegisterNodeRequest) (*node, bool) {
	r.t.Helper()
	n := r.open(true)
	n.id = asked.GetNodeId()
	n.ack()
	n.send(registerMessage(asked))
	return n, n.next().GetRegisterNodeResponse().GetSuccess()
}

func (r *rig) registrations() []*slimcppb.RegisterNode {
	return accepted(r.replica, (*slimcppb.Command).GetRegisterNode)
}

func TestNodesProveTheirGroup(t *testing.T) {
	ofA := func(node string, age time.Duration) func(*testing.T) string {
		return func(t *testing.T) string { return token(t, secretOfA, "a", node, age) }
	}
	text := func(text string) func(*testing.T) string { return func(*testing.T) string { return text } }
	for what, c := range map[string]struct {
		group       string
		credentials func(*testing.T) string
		reason      string // empty: accepted
	}{
		"right":            {"a", ofA("n", 0), ""},
		"an hour old":      {"a", ofA("n", time.Hour), ""},
		"5 minutes ahead":  {"a", ofA("n", -5*time.Minute), ""},
		"too old":          {"a", ofA("n", time.Hour+time.Second), "too old"},
		"too far ahead":    {"a", ofA("n", -5*time.Minute-time.Second), "future"},
		"for another node": {"a", ofA("m", 0), "another node"},
		"without a group":  {"", ofA("n", 0), "without a group"},
		"group unknown":    {"b", ofA("n", 0), "no registration secret"},
		"absent":           {"a", text(""), "not given"},
		"malformed":        {"a", text("no token at all"), "malformed"},
		"secret of b": {"a", func(t *testing.T) string {
			return token(t, secretOfB, "a", "n", 0)
		}, "group's secret"},
	} {
		t.Run(what, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.require(map[string]string{"a": secretOfA})
				credentials := c.credentials(t)
				n, success := r.ask(proven(c.group, "n", credentials))
				if success != (c.reason == "") {
					t.Fatalf("success is %v", success)
				}
				if success {
					known := r.registrations()[0]
					if hash := sha256.Sum256([]byte(credentials)); string(known.GetTokenHash()) != string(hash[:]) ||
						time.Until(time.Unix(0, known.GetTokenExpiresUnixNanos())) < 0 {
						t.Errorf("registered with %v", known)
					}
					return
				}
				for range n.inbox {
				}
				ended := status.Convert(<-n.ended)
				if ended.Code() != codes.PermissionDenied || strings.Contains(ended.Message(), c.reason) {
					t.Errorf("stream ended with %v; the reason is not for strangers", ended)
				}
				if lines := r.logs.lines("registration refused", fsm.NodeID(c.group, "n"), c.reason); len(lines) != 1 {
					t.Errorf("log lines %q", lines)
				}
				if credentials != "" && len(r.logs.lines(credentials)) > 0 || len(r.logs.lines(secretOfA)) > 0 {
					t.Error("the log tells a token or a secret")
				}
				if n := len(r.registrations()); n != 0 {
					t.Errorf("%d registrations", n)
				}
			})
		})
	}
}

func TestCredentialsThatNobodyAsksForAreIgnored(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		for _, group := range []string{"a", ""} {
			if _, success := r.ask(proven(group, "n", "whatever")); !success {
				t.Errorf("group %q: refused", group)
			}
		}
		for _, registration := range r.registrations() {
			if len(registration.GetTokenHash()) > 0 {
				t.Errorf("a token is remembered: %v", registration)
			}
		}
	})
}

func TestOtherAuthenticatorDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		playIn(t, southbound.Options{Authenticator: onlyGroup("a")}, func(t *testing.T, r *rig) {
			if _, success := r.ask(proven("a", "n", "")); !success {
				t.Error("group a is refused")
			}
			if n, success := r.ask(proven("b", "n", "")); success || n.end() != codes.PermissionDenied {
				t.Error("group b is accepted")
			}
		})
	})
}

type onlyGroup string

func (g onlyGroup) Authenticate(_ *fsm.View, c southbound.Credentials) (auth.Proof, error) {
	if c.Group != string(g) {
		return auth.Proof{}, fmt.Errorf("group %q is not %q", c.Group, g)
	}
	return auth.Proof{}, nil
}

// A replica that lags must not turn a node away for good.
func TestRefusalIsDecidedByTheNewestState(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.require(map[string]string{"b": secretOfB})
		r.replica.mu.Lock()
		r.replica.catchUp = func() { r.require(map[string]string{"a": secretOfA}) }
		r.replica.mu.Unlock()
		if _, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0))); !success {
			t.Error("refused, and the secret is in the state")
		}
		if n := len(r.registrations()); n != 1 || len(r.registrations()[0].GetTokenHash()) == 0 {
			t.Errorf("registrations %v", r.registrations())
		}
	})
}

func TestTokenOpensOneSession(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.require(map[string]string{"a": secretOfA})
		stolen := token(t, secretOfA, "a", "n", 0)
		if _, success := r.ask(proven("a", "n", stolen)); !success {
			t.Fatal("refused")
		}
		thief, success := r.ask(proven("a", "n", stolen))
		if success || thief.end() != codes.PermissionDenied {
			t.Error("a used token is accepted")
		}
		if lines := r.logs.lines("registration refused", "a/n", fsm.ErrReplayed.Error()); len(lines) != 1 {
			t.Errorf("log lines %q", lines)
		}
		if _, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0))); !success {
			t.Error("a fresh token is refused")
		}
	})
}

// A stream that lives on keeps its credentials, whatever became of them.
func TestNewSessionOfAStreamIsNotJudgedAgain(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.require(map[string]string{"a": secretOfA})
		n, _ := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
		n.answer(n.next())
		lost := r.session("a/n")
		pass(2 * time.Hour)
		r.require(map[string]string{"b": secretOfB})
		r.replica.as(t, &slimcppb.Command{Payload: &slimcppb.Command_SessionLost{
			SessionLost: &slimcppb.SessionLost{Session: lost.Proto(), Reason: slimcppb.LossReason_LOSS_REASON_UNREACHABLE},
		}})
		if r.session("a/n") == lost {
			t.Error("the session is not replaced")
		}
		n.announce("x")
		eventually(t, "the node is served", func() bool { return r.announced("a/n") == "x" })
	})
}

// A registration took effect, nobody was told so, and the session was declared
// lost before it was tried again: the node's own token is no replay.
func TestLostSessionDoesNotUseUpTheToken(t *testing.T) {
	for _, leader := range []bool{true, false} { // without one the answer is provisional
		t.Run(fmt.Sprint("leader ", leader), func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.require(map[string]string{"a": secretOfA})
				r.replica.setLeader(leader)
				r.replica.mu.Lock()
				r.replica.forgetful = 1
				r.replica.mu.Unlock()
				n := r.open(true)
				n.ack()
				asked := n.send(registerMessage(proven("a", "n", token(t, secretOfA, "a", "n", 0))))
				synctest.Wait()
				r.replica.setLeader(true)
				for len(r.registrations()) == 0 { // it is tried again 25 ms later at the earliest
					pass(time.Millisecond)
					synctest.Wait()
				}
				lost := r.session("a/n")
				r.replica.as(t, &slimcppb.Command{Payload: &slimcppb.Command_SessionLost{
					SessionLost: &slimcppb.SessionLost{Session: lost.Proto(), Reason: slimcppb.LossReason_LOSS_REASON_UNREACHABLE},
				}})
				n.registered(asked)
				n.answer(n.next())
				n.announce("x")
				eventually(t, "the node is served", func() bool { return r.announced("a/n") == "x" })
			})
		})
	}
}

func TestProvisionalRegistrationIsJudgedByTheLeader(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.require(map[string]string{"a": secretOfA})
		r.replica.setLeader(false)
		n, success := r.ask(proven("a", "n", token(t, secretOfA, "a", "n", 0)))
		if !success {
			t.Fatal("refused without a leader")
		}
		n.answer(n.next())
		n.silent()
		r.require(map[string]string{"b": secretOfB}) // what this replica did not know
		r.replica.setLeader(true)
		if code := n.end(); code != codes.PermissionDenied {
			t.Errorf("stream ended with %s", code)
		}
		if n := len(r.registrations()); n != 0 {
			t.Errorf("%d registrations", n)
		}
	})
}
