package main

import (
	"testing"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	apiMode = "topology: {registration_auth: {type: shared_secret, secrets: {a: " + secret + ", b: " + secret + "}}}"
	onlyB   = "topology: {registration_auth: {type: shared_secret, secrets: {b: " + secret + "}}}"
	waiting = apiMode + "\nsessions: {failover_grace: 2s}"
)

func (s *replicatedState) removeGroup(group string) {
	s.t.Helper()
	s.apply(&slimcppb.Command{Payload: &slimcppb.Command_RemoveGroup{RemoveGroup: &slimcppb.RemoveGroup{Group: group}}})
}

// A group that an operator removed stays so while the file says what it said
// before, however the replica is asked to look at it.
func TestRemovedGroupDoesNotComeBackWithAnUnchangedFile(t *testing.T) {
	s := newState(t)
	r := s.boot("one", apiMode)
	other := s.boot("two", apiMode)
	s.wantProposals(2) // the second only notes the file
	s.removeGroup("a")
	for _, replica := range []*replica{r, other} {
		replica.reload(t.Context())
		replica.wantLog("groups of the file were removed", `groups=["a"]`)
	}
	s.boot("one", apiMode)
	s.wantProposals(0)
	s.wantActive(onlyB)
	s.removeGroup("b")
	r.reload(t.Context())
	s.wantProposals(0)
	if groups := s.store.View().SecretGroups(); len(groups) != 0 {
		t.Errorf("groups %v may register", groups)
	}
}

// The rest of what the file says is taken over as ever.
func TestReloadOfAnUnchangedFileBringsAllButRemovedGroups(t *testing.T) {
	s := newState(t)
	r := s.boot("one", waiting)
	s.removeGroup("a")
	s.topologyApply(onlyB)
	s.wantProposals(1)
	r.reload(t.Context())
	s.wantProposals(1)
	s.wantActive(onlyB + "\nsessions: {failover_grace: 2s}")
}

// These say something of the group, and bring it back.
func TestRemovedGroupComesBackWhenAskedFor(t *testing.T) {
	for what, ask := range map[string]func(s *replicatedState, r *replica){
		"the file changes": func(s *replicatedState, r *replica) {
			r.file = waiting
			r.reload(s.t.Context())
		},
		"the file is applied": func(s *replicatedState, _ *replica) { s.topologyApply(apiMode) },
		"an operator adds it": func(s *replicatedState, _ *replica) {
			s.apply(&slimcppb.Command{Payload: &slimcppb.Command_AddGroup{AddGroup: &slimcppb.AddGroup{
				Secret: &slimcppb.GroupSecret{Group: "a", Secret: []byte(secret)},
			}}})
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newState(t)
			r := s.boot("one", apiMode)
			s.removeGroup("a")
			ask(s, r)
			if _, ok := s.store.View().Secret("a"); !ok {
				t.Error("the nodes of the group cannot register")
			}
		})
	}
}
