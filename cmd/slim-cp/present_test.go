package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// The record that a replica has started is there before its file is presented: it
// is still new then, and its file changes nothing.
func TestRecordedReplicaIsStillNew(t *testing.T) {
	s := newState(t)
	s.boot("one", none)
	s.wantProposals(1)
	s.apply(&slimcppb.Command{Payload: &slimcppb.Command_RecordReplica{RecordReplica: &slimcppb.RecordReplica{
		ReplicaId: "two", BootId: "b", Name: "two", Address: "two:1", Version: "v", Schema: fsm.SchemaVersion,
	}}})
	two := s.boot("two", other)
	s.wantProposals(1)
	s.wantActive(none)
	if note := two.note(); note != "the active fleet configuration is not that of this replica's file: topology" {
		t.Errorf("note %q", note)
	}
	if err := two.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wantProposals(0)
	if again := s.boot("one", none); again.note() != "" {
		t.Errorf("note %q of a replica whose file is active", again.note())
	}
}

// A leader may be gone for a while when a replica starts.
func TestPresentingWaitsForALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newState(t)
		r := s.boot("one", none)
		s.wantProposals(1)
		r.wanted = fleetOf(t, other)
		s.failing, s.until = cluster.ErrNoLeader, time.Now().Add(5*time.Second)
		if err := r.present(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.wantActive(other)

		s.failing, s.until = errors.New("of another kind"), time.Time{}
		if err := r.present(t.Context()); !errors.Is(err, s.failing) {
			t.Errorf("an error that stays: %v", err)
		}
		s.failing = cluster.ErrNoLeader
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.present(ctx); err != nil || ctx.Err() == nil {
			t.Errorf("a stop meanwhile: %v", err)
		}
	})
}
