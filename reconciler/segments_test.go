package reconciler_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/test/world"
)

const spokes = `
{%- for g in groups if g != 'hub' %}
- name: {{ g }}
  links: [{domain: hub, neighbors: [{{ g }}]}]
{%- endfor %}`

// TestTemplateFollowsTheGroups: the leader renders it when one comes or goes, and says
// nothing while none does.
func TestTemplateFollowsTheGroups(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		w.SetTemplate(spokes, world.Segment("$group", "hub~$group"))
		w.Join("hub", "n")
		w.Join("a", "n")
		b := w.Join("b", "n")
		w.Settle()
		link := w.Link("hub", "a").ID
		if err := b.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		w.Settle()
		w.Join("c", "n")
		w.Settle()
		w.Resign()
		w.Lead()
		w.Settle()
		if w.Link("hub", "a").ID != link {
			t.Error("a link was made again, and nothing changed for it")
		}
	})
}

// TestTemplateThatFailsKeepsTheTopology until the group goes for which it fails.
func TestTemplateThatFailsKeepsTheTopology(t *testing.T) {
	world.Run(t, world.Options{}, func(t *testing.T, w *world.World) {
		w.SetTemplate(spokes, world.Segment("$group", "hub~$group"))
		w.Join("hub", "n")
		a := w.Join("a", "n")
		w.Settle()
		link := w.Link("hub", "a").ID
		wantError := func(want string) {
			t.Helper()
			w.Eventually("error "+want, time.Minute, func() error {
				if got := w.View().Rendered().GetError(); !strings.Contains(got, want) || (want == "") != (got == "") {
					return fmt.Errorf("the error is %q", got)
				}
				return nil
			})
			if w.Link("hub", "a").ID != link {
				t.Error("the topology did not stay")
			}
		}
		number := w.Join("7", "n") // no string in YAML
		wantError("segments-template rendered invalid YAML")
		index := w.View().Index()
		pass(time.Minute)
		if now := w.View().Index(); now-index > 3 {
			t.Errorf("%d commands while nothing changed", now-index)
		}
		if err := number.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		wantError("")
		w.Settle()
		// Where it renders nothing the topology is not taken away by accident either.
		if err := a.Deregister(t.Context()); err != nil {
			t.Error(err)
		}
		w.Eventually("the segments are kept", time.Minute, func() error {
			rendered := w.View().Rendered()
			if len(rendered.GetSegments()) != 1 || !strings.Contains(rendered.GetError(), "topology apply --force") {
				return fmt.Errorf("rendered %v", rendered)
			}
			return nil
		})
	})
}
