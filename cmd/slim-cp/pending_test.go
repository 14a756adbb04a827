package main

import (
	"strings"
	"testing"
)

const (
	empty     = ""
	apiShared = "topology: {registration_auth: {type: shared_secret, secrets: {a: " + secret + "}}}"
	apiOther  = "topology: {registration_auth: {type: shared_secret, secrets: {b: " + secret + "}}}"
)

// TestFileThatTakesTooMuchAwayIsPending: what is active stays when the changed file
// ends the authentication of nodes or the whole topology, however it is presented.
func TestFileThatTakesTooMuchAwayIsPending(t *testing.T) {
	for name, c := range map[string]struct{ before, after, lost string }{
		"the file is empty":                  {none, empty, "the whole topology goes"},
		"the topology is empty":              {none, "topology: {}", "the whole topology goes"},
		"no authentication":                  {apiShared, empty, "authentication ends for group a, which has nodes"},
		"a secret is dropped":                {apiShared, apiOther, "authentication ends for group a, which has nodes"},
		"no authentication and no topology":  {shared, empty, "authentication ends for group a, which has nodes; the whole topology goes"},
		"no authentication, with a topology": {shared, none, "authentication ends for group a, which has nodes"},
	} {
		present := map[string]func(*replicatedState) *replica{
			"SIGHUP": func(s *replicatedState) *replica {
				r := s.boot("one", c.before)
				s.register("a")
				r.file = c.after
				r.reload(t.Context())
				return r
			},
			"start": func(s *replicatedState) *replica {
				s.boot("one", c.before)
				s.register("a")
				return s.boot("one", c.after)
			},
		}
		for how, ask := range present {
			t.Run(name+", "+how, func(t *testing.T) {
				s := newState(t)
				r := ask(s)
				s.wantActive(c.before)
				if strings.Contains(r.log.String(), "was read again") {
					t.Error("the log says that the file is taken over")
				}
				r.wantLog("[ERROR]", c.lost, "topology apply --force")
				if note := r.note(); !strings.HasPrefix(note, "pending: ") || !strings.Contains(note, c.lost) {
					t.Errorf("note %q", note)
				}
				if r.otherAuth() {
					t.Error("nodes are not let in, and nothing has changed for them")
				}
				// It does not come with the next start either.
				again := s.boot("one", c.after)
				s.wantActive(c.before)
				if !strings.HasPrefix(again.note(), "pending: ") {
					t.Errorf("after a start: note %q", again.note())
				}
				s.topologyApply(c.after) // as with --force
				if note := again.note(); note != "" {
					t.Errorf("forced: note %q", note)
				}
				if again.otherAuth() {
					t.Error("forced: nodes are not let in")
				}
			})
		}
	}
}

func TestFileThatTakesNothingAwayByAccidentIsActive(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"another topology":                     {none, other},
		"another secret":                       {apiShared, strings.ReplaceAll(apiShared, secret, secret+"x")},
		"one secret more":                      {apiOther, "topology: {registration_auth: {type: shared_secret, secrets: {a: " + secret + ", b: " + secret + "}}}"},
		"no secret of a group without nodes":   {"topology: {registration_auth: {type: shared_secret, secrets: {a: " + secret + ", b: " + secret + "}}}", apiShared},
		"authentication begins":                {none, shared},
		"what is waited for":                   {none, none + "\nsessions: {departure_grace: 1s}"},
		"the API's topology becomes the files": {empty, none},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(t)
			r := s.boot("one", c.before)
			if c.before == apiOther {
				s.register("b")
			} else {
				s.register("a")
			}
			r.file = c.after
			r.reload(t.Context())
			s.wantActive(c.after)
			if note := r.note(); note != "" {
				t.Errorf("note %q", note)
			}
		})
	}
}

// A pending file keeps the listener open only while nodes register as before.
func TestPendingFileAndAnotherAuthentication(t *testing.T) {
	s := newState(t)
	r := s.boot("one", none)
	s.register("a")
	r.file = empty
	r.reload(t.Context())
	s.topologyApply(shared)
	if !r.otherAuth() {
		t.Error("nodes are let in as neither file nor an earlier state says")
	}
}

// A pending file that is mended is taken over.
func TestPendingFileIsMended(t *testing.T) {
	s := newState(t)
	r := s.boot("one", none)
	r.file = empty
	r.reload(t.Context())
	r.file = other
	r.reload(t.Context())
	s.wantActive(other)
	if note := r.note(); note != "" {
		t.Errorf("note %q", note)
	}
}

// TestTemplateOfTheFile is rendered before it becomes active: what fails, and what
// renders nothing, leaves the topology as it is.
func TestTemplateOfTheFile(t *testing.T) {
	template := func(text string) string { return "topology: {segments-template: '" + text + "'}" }
	good := template("{% for g in groups %}[{name: {{ g }}, links: []}]{% endfor %}")
	s := newState(t)
	r := s.boot("one", none)
	s.register("a")
	r.file = good
	r.reload(t.Context())
	s.wantActive(good)
	if segments := s.store.View().Rendered().GetSegments(); len(segments) != 1 || segments[0].GetName() != "a" {
		t.Errorf("segments %v", segments)
	}
	for bad, want := range map[string]string{
		template("{% if groups %}x: 1{% endif %}"):  "until the template is corrected: segments-template rendered invalid YAML",
		template("{% if not groups %}x{% endif %}"): "until it is applied with slim-cp topology apply --force: segments-template rendered no segments",
	} {
		r.file = bad
		r.reload(t.Context())
		s.wantActive(good)
		r.wantLog("[ERROR]", want)
		if note := r.note(); !strings.HasPrefix(note, "pending: ") || !strings.Contains(note, want) {
			t.Errorf("note %q", note)
		}
		if again := s.boot("one", bad); !strings.Contains(again.note(), want) {
			t.Errorf("after a start: note %q", again.note())
		}
	}
}
