package northbound

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func secretOf(group, secret string) *slimcppb.GroupSecret {
	return &slimcppb.GroupSecret{Group: group, Secret: []byte(secret)}
}

// TestApplyFleetConfig: a document takes effect as a whole, once.
func TestApplyFleetConfig(t *testing.T) {
	f := newFleet(t)
	f.useSharedSecrets("from-file")
	options := f.options()
	proposed := &proposer{fleet: f}
	options.Proposer = proposed
	var output bytes.Buffer
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: &output})
	operator := dial(t, options)
	wanted := &slimcppb.FleetConfig{
		Topology:         &slimcppb.Topology{Segments: []*slimcppb.Segment{mesh()}},
		RegistrationAuth: fsm.SharedSecret,
		Secrets:          []*slimcppb.GroupSecret{secretOf("a", goodSecret)},
		Graces:           &slimcppb.Graces{DepartureMs: 5},
	}
	for _, changed := range []bool{true, false} {
		answer, err := operator.ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: wanted})
		if err != nil || answer.GetChanged() != changed || answer.GetIndex() != f.index {
			t.Errorf("%v, %v, want changed: %v at index %d", answer, err, changed, f.index)
		}
	}
	if len(proposed.commands) != 1 || !proto.Equal(f.view().Fleet(), wanted) {
		t.Errorf("%d commands, the active document is %v", len(proposed.commands), f.view().Fleet())
	}
	lines := output.String()
	for _, want := range []string{`action="apply fleet configuration"`, "segments=1", "secrets=1", "outcome=committed", "outcome=unchanged"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %s in\n%s", want, lines)
		}
	}
	if strings.Contains(lines, goodSecret) {
		t.Error("the log holds a secret")
	}
}

func TestApplyFleetConfigRefusals(t *testing.T) {
	f := newFleet(t)
	before := f.view()
	operator := f.operator(t)
	topology := &slimcppb.Topology{Segments: []*slimcppb.Segment{mesh()}}
	for _, c := range []struct {
		config *slimcppb.FleetConfig
		want   string
	}{
		{nil, "config must not be empty"},
		{&slimcppb.FleetConfig{}, `registration_auth "": accepted are "none" and "shared_secret"`},
		{
			&slimcppb.FleetConfig{RegistrationAuth: "none", Secrets: []*slimcppb.GroupSecret{secretOf("a", goodSecret)}},
			`secrets: accepted only with registration_auth "shared_secret"`,
		},
		{
			&slimcppb.FleetConfig{RegistrationAuth: "shared_secret", Topology: topology},
			"secrets: at least one is needed beside a topology, since operators cannot add groups then",
		},
		{
			&slimcppb.FleetConfig{RegistrationAuth: "shared_secret", Secrets: []*slimcppb.GroupSecret{secretOf("", goodSecret)}},
			"secrets: group must not be empty",
		},
		{
			&slimcppb.FleetConfig{RegistrationAuth: "shared_secret", Secrets: []*slimcppb.GroupSecret{secretOf("*", goodSecret)}},
			`secrets: malformed id: group "*" is reserved`,
		},
		{
			&slimcppb.FleetConfig{RegistrationAuth: "shared_secret", Secrets: []*slimcppb.GroupSecret{secretOf("a", "short-one")}},
			"secret of group 'a' is too short: at least 32 bytes are accepted",
		},
	} {
		_, err := operator.ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: c.config})
		wantStatus(t, err, codes.InvalidArgument, c.want)
	}
	if !proto.Equal(before.Fleet(), f.view().Fleet()) {
		t.Error("a refused document took effect")
	}
	options := f.options()
	options.Proposer = &proposer{fleet: f, err: &cluster.UnknownOutcomeError{Cause: context.Canceled}}
	_, err := dial(t, options).ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{
		Config: &slimcppb.FleetConfig{RegistrationAuth: "none"},
	})
	wantStatus(t, err, codes.Aborted, "outcome unknown, the command may or may not take effect: context canceled")
}

// TestApplyFleetConfigThatTakesTooMuchAway: only by force, and not unnoticed.
func TestApplyFleetConfigThatTakesTooMuchAway(t *testing.T) {
	f := newFleet(t)
	f.setTopology(mesh())
	f.register("a/1", gateway("a.test:1"))
	before := f.view().Fleet()
	options := f.options()
	var output bytes.Buffer
	options.Logger = hclog.New(&hclog.LoggerOptions{Output: &output})
	operator := dial(t, options)
	nothing := &slimcppb.FleetConfig{RegistrationAuth: fsm.NoAuth}

	preview, err := operator.PreviewFleetConfig(t.Context(), &slimcppb.PreviewFleetConfigRequest{Config: nothing})
	if err != nil || !preview.GetChanged() || preview.GetIndex() != f.index || len(preview.GetLosses()) != 1 || len(preview.GetChanges()) != 1 {
		t.Errorf("preview %v, %v", preview, err)
	}
	_, err = operator.ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: nothing})
	wantStatus(t, err, codes.FailedPrecondition, "it needs --force: the whole topology goes")
	if !proto.Equal(f.view().Fleet(), before) {
		t.Fatal("it took effect all the same")
	}
	answer, err := operator.ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: nothing, Force: true})
	if err != nil || !answer.GetChanged() || len(answer.GetChanges()) != 1 || !proto.Equal(f.view().Fleet(), nothing) {
		t.Errorf("forced: %v, %v", answer, err)
	}
	lines := strings.Split(strings.TrimSpace(output.String()), "\n")
	if len(lines) != 2 || strings.Contains(lines[0], "force=true") || !strings.Contains(lines[1], "force=true") {
		t.Errorf("audit lines %q", lines)
	}
	if preview, err = operator.PreviewFleetConfig(t.Context(), &slimcppb.PreviewFleetConfigRequest{Config: nothing}); err != nil || preview.GetChanged() {
		t.Errorf("preview of what is active: %v, %v", preview, err)
	}
}

// A replica's own copy may lack the nodes that would lose their authentication.
func TestApplyFleetConfigIsJudgedByTheNewestState(t *testing.T) {
	f := newFleet(t)
	f.setTopology(mesh())
	options := f.options()
	options.Reader = &lagging{Reader: options.Reader, old: fsm.New().View()}
	_, err := dial(t, options).ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: &slimcppb.FleetConfig{RegistrationAuth: fsm.NoAuth}})
	wantStatus(t, err, codes.FailedPrecondition, "it needs --force: the whole topology goes")
}

// lagging is a replica whose own copy is old.
type lagging struct {
	Reader
	old *fsm.View
}

func (l *lagging) View() *fsm.View { return l.old }

// TestStatusShowsNotes: what is to be known of the replica's file.
func TestStatusShowsNotes(t *testing.T) {
	f := newFleet(t)
	options := f.options()
	options.Notes = func() []string { return []string{"pending: a file"} }
	answer, err := dial(t, options).Convergence(t.Context(), &slimcppb.ConvergenceRequest{})
	if err != nil || !answer.GetConverged() || len(answer.GetWarnings()) != 1 || answer.GetWarnings()[0] != "pending: a file" {
		t.Errorf("%v, %v", answer, err)
	}
}

// TestApplyTemplate: it is rendered before it becomes active, and a failure is told
// where operators look.
func TestApplyTemplate(t *testing.T) {
	f := newFleet(t, mesh())
	f.register("a/1", gateway("a.test:1"))
	f.register("b/1", gateway("b.test:1"))
	operator := f.operator(t)
	document := func(template string) *slimcppb.FleetConfig {
		return &slimcppb.FleetConfig{RegistrationAuth: fsm.NoAuth, Topology: &slimcppb.Topology{SegmentsTemplate: template}}
	}
	apply := func(template string, force bool) error {
		_, err := operator.ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: document(template), Force: force})
		return err
	}
	both := document("[]")
	both.Topology.Segments = []*slimcppb.Segment{mesh()}
	_, err := operator.ApplyFleetConfig(t.Context(), &slimcppb.ApplyFleetConfigRequest{Config: both})
	wantStatus(t, err, codes.InvalidArgument, "'links', 'segments', and 'segments-template' are mutually exclusive in topology config")
	wantStatus(t, apply("{{ x }}", true), codes.InvalidArgument,
		`syntax error: undefined value: "x": known are groups and the variables of loops (in segments-template:1)`)
	wantStatus(t, apply("x: 1", true), codes.InvalidArgument, "segments-template rendered invalid YAML: line 1: expected a list of segments")
	wantStatus(t, apply("[]", false), codes.FailedPrecondition, "it needs --force: segments-template rendered no segments, and there are some")
	_, err = operator.PreviewFleetConfig(t.Context(), &slimcppb.PreviewFleetConfigRequest{Config: document("x: 1")})
	wantStatus(t, err, codes.InvalidArgument, "segments-template rendered invalid YAML: line 1: expected a list of segments")
	if f.view().ConfigManaged() && fsm.UsesTemplate(f.view().Fleet()) {
		t.Fatal("a refused document took effect")
	}

	const good = "- {name: s, links: [{domain: a, neighbors: [b]}]}"
	if err := apply(good, false); err != nil {
		t.Fatal(err)
	}
	f.wantLinkPrefix(t, "the topology links groups a and b in segment s")
	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_SetRenderedSegments{
		SetRenderedSegments: fsm.FailedSegments(good, f.view().TemplateGroups(), errors.New("x is wrong")),
	}})
	const told = "the topology is the last good one, since its template fails for the groups that there are: x is wrong"
	f.wantLinkPrefix(t, told)
	if warnings := f.convergence().GetWarnings(); !slices.Contains(warnings, told) {
		t.Errorf("status warns of %q", warnings)
	}
	if !f.view().Allowed("a", "b") {
		t.Error("a failure took the topology away")
	}
	if err := apply(good, true); err != nil || f.view().Rendered().GetError() != "" {
		t.Errorf("rendered again: %v, %v", err, f.view().Rendered())
	}
}

func (f *fleet) wantLinkPrefix(t *testing.T, first string) {
	t.Helper()
	answer, err := f.operator(t).ExplainLink(t.Context(), &slimcppb.ExplainLinkRequest{GroupA: "a", GroupB: "b"})
	if err != nil || len(answer.GetLines()) == 0 || answer.GetLines()[0] != first {
		t.Errorf("%v, %v, want %s", answer.GetLines(), err, first)
	}
}
