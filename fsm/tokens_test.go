package fsm

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// requireSecret has the nodes of a group prove it.
func (h *history) requireSecret(group string) {
	h.t.Helper()
	h.must(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: &slimcppb.SetFleetConfig{
		Config: &slimcppb.FleetConfig{
			RegistrationAuth: SharedSecret,
			Secrets:          []*slimcppb.GroupSecret{{Group: group, Secret: []byte(strings.Repeat("s", MinSecretBytes))}},
		},
	}}})
}

// registerWith asks for a session with the token of that hash, "" being none.
func (h *history) registerWith(name SessionName, group, node, hash string, change func(*slimcppb.RegisterNode)) error {
	h.t.Helper()
	command := registerCommand(name, group, node, "")
	register := command.GetRegisterNode()
	if hash != "" {
		register.TokenHash = []byte(hash)
		register.TokenExpiresUnixNanos = h.clock.Add(time.Hour).UnixNano()
	}
	if change != nil {
		change(register)
	}
	return h.apply(command)[0].Err
}

func TestATokenOpensASingleSession(t *testing.T) {
	h := newHistory(t)
	h.requireSecret("a")
	first := h.sessionName()
	if err := h.registerWith(first, "a", "n", "token", nil); err != nil {
		t.Fatal(err)
	}
	if err := h.registerWith(first, "a", "n", "token", nil); err != nil {
		t.Errorf("the same session again: %v", err)
	}
	if err := h.registerWith(h.sessionName(), "a", "n", "token", nil); !errors.Is(err, ErrReplayed) {
		t.Errorf("another session with the token: %v", err)
	}
	if err := h.registerWith(h.sessionName(), "a", "n", "other token", nil); err != nil {
		t.Errorf("another session with another token: %v", err)
	}
	resumed := func(r *slimcppb.RegisterNode) { r.Resumed = true }
	if err := h.registerWith(h.sessionName(), "a", "n", "token", resumed); err != nil {
		t.Errorf("another session of the same stream: %v", err)
	}
}

func TestAUsedTokenIsForgottenWhenItExpires(t *testing.T) {
	h := newHistory(t)
	h.requireSecret("a")
	if err := h.registerWith(h.sessionName(), "a", "n", "token", nil); err != nil {
		t.Fatal(err)
	}
	h.clock = h.clock.Add(time.Hour)
	if err := h.registerWith(h.sessionName(), "a", "n", "later token", nil); err != nil {
		t.Fatal(err)
	}
	if tokens := h.view().tokens.len(); tokens != 1 {
		t.Errorf("%d tokens are remembered, one of them expired", tokens)
	}
}

// Judged by one secret, applied when the group has another one.
func TestARegistrationJudgedByAnOldSecretIsSentBack(t *testing.T) {
	h := newHistory(t)
	h.requireSecret("a")
	secret, _ := h.view().Secret("a")
	judged := func(r *slimcppb.RegisterNode) { r.SecretIndex = secret.Index }
	if err := h.registerWith(h.sessionName(), "a", "n", "token", judged); err != nil {
		t.Fatal(err)
	}
	h.requireSecret("a") // which makes it another one
	if err := h.registerWith(h.sessionName(), "a", "n", "second token", judged); !errors.Is(err, ErrUnjudged) {
		t.Errorf("a token of the old secret: %v", err)
	}
	secret, _ = h.view().Secret("a")
	if err := h.registerWith(h.sessionName(), "a", "n", "second token", judged); err != nil {
		t.Errorf("judged again: %v", err)
	}
}

// Read while nobody had to prove anything, applied after that has changed.
func TestARegistrationThatNobodyJudgedIsSentBack(t *testing.T) {
	h := newHistory(t)
	h.requireSecret("a")
	name := h.sessionName()
	provisional := func(r *slimcppb.RegisterNode) { r.Resumed, r.ProvisionalEpoch = true, 1 }
	for what, change := range map[string]func(*slimcppb.RegisterNode){"new": nil, "provisional": provisional} {
		if err := h.registerWith(name, "a", "n", "", change); !errors.Is(err, ErrUnjudged) {
			t.Errorf("%s registration without a token: %v", what, err)
		}
	}
	if _, known := h.view().Node("a/n"); known {
		t.Error("the node is registered")
	}
	if err := h.registerWith(name, "a", "n", "token", nil); err != nil {
		t.Errorf("the same registration with its token: %v", err)
	}
	if err := h.registerWith(h.sessionName(), "b", "n", "", nil); !errors.Is(err, ErrNoSecret) {
		t.Errorf("node of a group without a secret: %v", err)
	}
}
