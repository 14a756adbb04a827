package main

import (
	"errors"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// door is a listener that may be stuck.
type door struct {
	open  bool
	stuck error
}

func (d *door) pause() error  { return d.move(false) }
func (d *door) resume() error { return d.move(true) }
func (d *door) move(open bool) error {
	if d.stuck == nil {
		d.open = open
	}
	return d.stuck
}

func TestGate(t *testing.T) {
	door, ready, why, problem := &door{}, false, "", ""
	g := &gate{
		doors: door, logger: hclog.NewNullLogger(),
		setReady: func(now bool) { ready = now }, obstacle: func() string { return why },
		problem: func() string { return problem },
	}
	stuck := errors.New("stuck")
	for i, step := range []struct {
		why   string
		stuck error
		open  bool // both the door and what is told to others
	}{
		{"no leader is known", nil, false},
		{"", stuck, false},
		{"", nil, true},
		{"", nil, true},
		{"no leader is known", nil, false},
		{"another reason", nil, false},
		{"", nil, true},
	} {
		why, door.stuck = step.why, step.stuck
		if err := g.look(); !errors.Is(err, step.stuck) {
			t.Errorf("step %d: %v", i, err)
		}
		if door.open != step.open || ready != step.open {
			t.Errorf("step %d: open %v, ready %v, want %v", i, door.open, ready, step.open)
		}
	}
	// A replica that is not healthy keeps its nodes, and says that it is not.
	for _, problem = range []string{"it applies nothing", ""} {
		if err := g.look(); err != nil || !door.open || !g.serves() || ready != (problem == "") {
			t.Errorf("%q: %v, open %v, ready %v", problem, err, door.open, ready)
		}
	}
	why, door.stuck = "no leader is known", stuck
	if err := g.look(); !errors.Is(err, stuck) || ready || g.serves() {
		t.Errorf("a door that cannot be closed: %v, ready %v", err, ready)
	}
	door.stuck = nil
	if err := g.look(); err != nil || door.open {
		t.Errorf("it is not tried again: %v, open %v", err, door.open)
	}
}
