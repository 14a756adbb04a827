package northbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const configManaged = `topology is config-managed; change the config file and run "slim-cp topology apply --config FILE"`

// change is one call of a mutation.
type change func(context.Context, *client) error

func addSegment(name string) change {
	return func(ctx context.Context, c *client) error {
		_, err := c.AddSegment(ctx, &controlplanepb.AddSegmentRequest{Name: name})
		return err
	}
}

func removeSegment(name string) change {
	return func(ctx context.Context, c *client) error {
		_, err := c.RemoveSegment(ctx, &controlplanepb.RemoveSegmentRequest{Name: name})
		return err
	}
}

func addLink(a, b, segment string) change {
	return func(ctx context.Context, c *client) error {
		_, err := c.AddTopologyLink(ctx, &controlplanepb.AddTopologyLinkRequest{DomainA: a, DomainB: b, Segment: segment})
		return err
	}
}

func removeLink(a, b, segment string) change {
	return func(ctx context.Context, c *client) error {
		_, err := c.RemoveTopologyLink(ctx, &controlplanepb.RemoveTopologyLinkRequest{DomainA: a, DomainB: b, Segment: segment})
		return err
	}
}

func addDomain(name, secret string) change {
	return func(ctx context.Context, c *client) error {
		_, err := c.AddDomain(ctx, &controlplanepb.AddDomainRequest{DomainName: name, Secret: secret})
		return err
	}
}

func removeDomain(name string) change {
	return func(ctx context.Context, c *client) error {
		_, err := c.RemoveDomain(ctx, &controlplanepb.RemoveDomainRequest{DomainName: name})
		return err
	}
}

// TestMutationRefusals checks codes, texts and the order of the checks: where
// several things are wrong the first check answers.
func TestMutationRefusals(t *testing.T) {
	const (
		noNames      = "domain_a and domain_b must not be empty"
		noSegment    = "segment name must not be empty"
		noDomain     = "domain_name must not be empty"
		keepDefault  = "the default segment cannot be removed; remove its links instead"
		addUnserved  = "add_domain is only supported in shared_secret auth mode"
		dropUnserved = "remove_domain is only supported in shared_secret auth mode"
		tooShort     = "secret of domain 'x' is too short: at least 32 bytes are accepted"
	)
	modes := map[string]func(*fleet){
		"api":    func(f *fleet) { f.setTopology() },
		"config": func(f *fleet) { f.setTopology(mesh()) },
		"secret": func(f *fleet) { f.useSharedSecrets() },
	}
	for _, c := range []struct {
		mode   string
		change change
		code   codes.Code
		text   string
	}{
		{"config", addSegment(""), codes.InvalidArgument, noSegment},
		{"config", addSegment("s"), codes.FailedPrecondition, configManaged},
		{"api", addSegment(""), codes.InvalidArgument, noSegment},
		{"api", addSegment("two\nlines"), codes.InvalidArgument, `segment name "two\nlines": accepted are at most 253 bytes without control characters`},

		{"config", removeSegment(""), codes.InvalidArgument, noSegment},
		{"config", removeSegment("default"), codes.FailedPrecondition, configManaged},
		{"config", removeSegment("none"), codes.FailedPrecondition, configManaged},
		{"api", removeSegment(""), codes.InvalidArgument, noSegment},
		{"api", removeSegment("default"), codes.FailedPrecondition, keepDefault},
		{"api", removeSegment("none"), codes.NotFound, "segment 'none' not found"},

		{"config", addLink("", "b", "none"), codes.InvalidArgument, noNames},
		{"config", addLink("a", "", ""), codes.InvalidArgument, noNames},
		{"config", addLink("a", "b", "none"), codes.FailedPrecondition, configManaged},
		{"config", addLink("a", "b", ""), codes.FailedPrecondition, configManaged},
		{"api", addLink("a", "b", "none"), codes.NotFound, "segment 'none' not found"},
		{"api", addLink("a", "a", ""), codes.InvalidArgument, "domain_a and domain_b are both 'a': a domain cannot be linked with itself"},
		{"api", addLink("a", "b/c", ""), codes.InvalidArgument, `malformed id: group "b/c" has '/', which is not accepted`},

		{"config", removeLink("", "b", ""), codes.InvalidArgument, noNames},
		{"config", removeLink("a", "b", "none"), codes.FailedPrecondition, configManaged},
		{"api", removeLink("a", "", "none"), codes.InvalidArgument, noNames},
		{"api", removeLink("a", "b", "none"), codes.NotFound, "segment 'none' not found"},
		{"api", removeLink("b", "a", ""), codes.NotFound, "link b↔a not found in segment 'default'"},

		{"config", addDomain("", ""), codes.FailedPrecondition, configManaged},
		{"api", addDomain("", ""), codes.Unimplemented, addUnserved},
		{"api", addDomain("x", goodSecret), codes.Unimplemented, addUnserved},
		{"secret", addDomain("", ""), codes.InvalidArgument, noDomain},
		{"secret", addDomain("x", ""), codes.InvalidArgument, "secret must not be empty"},
		{"secret", addDomain("x", goodSecret[1:]), codes.InvalidArgument, tooShort},
		{"secret", addDomain("x/y", goodSecret), codes.InvalidArgument, `malformed id: group "x/y" has '/', which is not accepted`},

		{"config", removeDomain(""), codes.FailedPrecondition, configManaged},
		{"api", removeDomain(""), codes.InvalidArgument, noDomain},
		{"api", removeDomain("x"), codes.Unimplemented, dropUnserved},
		{"secret", removeDomain(""), codes.InvalidArgument, noDomain},
	} {
		f := newFleet(t)
		f.register("alone")
		modes[c.mode](f)
		before := f.view()
		err := c.change(t.Context(), f.operator(t))
		wantStatus(t, err, c.code, c.text)
		if now := f.view(); len(now.Segments()) != len(before.Segments()) || now.NodeCount() != before.NodeCount() {
			t.Errorf("refused with %v, but the state changed", err)
		}
	}
}

// TestTheLogHasTheLastWord: what the state refuses when the command is applied is
// refused in the same words as what a look at the state refuses before.
func TestTheLogHasTheLastWord(t *testing.T) {
	f := newFleet(t)
	for _, c := range []struct {
		change     change
		meanwhile  func()
		code       codes.Code
		text       string
		withSecret bool
	}{
		{change: addLink("a", "b", ""), meanwhile: func() { f.setTopology(mesh()) }, code: codes.FailedPrecondition, text: configManaged},
		{
			change: addLink("a", "b", "short-lived"), code: codes.NotFound, text: "segment 'short-lived' not found",
			meanwhile: func() {
				f.apply(&slimcppb.Command{Payload: &slimcppb.Command_RemoveSegment{RemoveSegment: &slimcppb.RemoveSegment{Name: "short-lived"}}})
			},
		},
		{
			change: addDomain("x", goodSecret), withSecret: true, meanwhile: func() { f.setTopology() },
			code: codes.Unimplemented, text: "add_domain is only supported in shared_secret auth mode",
		},
	} {
		f.setTopology()
		f.apply(&slimcppb.Command{Payload: &slimcppb.Command_AddSegment{AddSegment: &slimcppb.AddSegment{Name: "short-lived"}}})
		if c.withSecret {
			f.useSharedSecrets()
		}
		options := f.options()
		options.Proposer = &proposer{fleet: f, before: c.meanwhile}
		wantStatus(t, c.change(t.Context(), dial(t, options)), c.code, c.text)
	}
}

func (c *client) segments(tb testing.TB) []string {
	tb.Helper()
	response, err := c.ListSegments(tb.Context(), &controlplanepb.SegmentListRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	var shown []string
	for _, segment := range response.GetSegments() {
		text := segment.GetName()
		for _, edge := range segment.GetEdges() {
			text += fmt.Sprintf(" %s~%s", edge.GetDomainA(), edge.GetDomainB())
		}
		shown = append(shown, text)
	}
	return shown
}

// TestManagedTopology: changes are seen by the next list and by the links, and
// each may be repeated.
func TestManagedTopology(t *testing.T) {
	f := newFleet(t)
	f.register("a/1", gateway("a-ext:1"))
	f.register("b/1")
	operator := f.operator(t)
	do := func(change change) {
		t.Helper()
		for range 2 {
			if err := change(t.Context(), operator); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(segments ...string) {
		t.Helper()
		if got := operator.segments(t); !slices.Equal(got, segments) {
			t.Errorf("segments are %q, want %q", got, segments)
		}
	}
	want("default")
	do(addSegment("a-segment"))
	want("default", "a-segment")
	do(addLink("b", "a", ""))
	do(addLink("a", "b", ""))
	want("default a~b", "a-segment")
	link := f.link("a", "b")
	do(addLink("a", "b", "a-segment"))
	want("default a~b", "a-segment a~b")

	once := func(change change) {
		t.Helper()
		if err := change(t.Context(), operator); err != nil {
			t.Fatal(err)
		}
	}
	once(removeLink("b", "a", "default"))
	want("default", "a-segment a~b")
	if f.link("a", "b") != link {
		t.Error("a link that another segment asks for was replaced")
	}
	wantStatus(t, removeLink("a", "b", "")(t.Context(), operator), codes.NotFound, "link a↔b not found in segment 'default'")
	once(removeSegment("a-segment"))
	want("default")
	if _, linked := f.view().LinkBetween("a", "b"); linked {
		t.Error("the link outlives the last segment that asked for it")
	}
}

func TestAddTopologyLinkWarnsOfMissingGroups(t *testing.T) {
	f := newFleet(t)
	f.register("known/1")
	f.lose("known/1")
	f.depart("known/1")
	operator := f.operator(t)
	warning := func(group string) string {
		return "domain '" + group + "' has no registered nodes yet; physical link will be created when nodes register"
	}
	for _, c := range []struct {
		a, b string
		want []string
	}{
		{"known", "y", []string{warning("y")}},
		{"x", "known", []string{warning("x")}},
		{"z", "x", []string{warning("z"), warning("x")}},
		{"z", "x", []string{warning("z"), warning("x")}}, // there already, and still without nodes
	} {
		response, err := operator.AddTopologyLink(t.Context(), &controlplanepb.AddTopologyLinkRequest{DomainA: c.a, DomainB: c.b})
		if err != nil || !slices.Equal(response.GetWarnings(), c.want) {
			t.Errorf("%s, %s: %q, %v, want %q", c.a, c.b, response.GetWarnings(), err, c.want)
		}
	}
	f.register("x/1")
	response, err := operator.AddTopologyLink(t.Context(), &controlplanepb.AddTopologyLinkRequest{DomainA: "x", DomainB: "known"})
	if err != nil || len(response.GetWarnings()) > 0 {
		t.Errorf("both groups have a node: %q, %v", response.GetWarnings(), err)
	}
}

func (c *client) domains(tb testing.TB) map[string][]string {
	tb.Helper()
	response, err := c.ListDomains(tb.Context(), &controlplanepb.ListDomainsRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	nodes := map[string][]string{}
	for _, domain := range response.GetDomains() {
		nodes[domain.GetDomainName()] = domain.GetNodes()
	}
	return nodes
}

// TestGroups: under both generations of names a group comes with its secret, and
// goes with its nodes.
func TestGroups(t *testing.T) {
	for _, word := range []string{"Domain", "Group"} {
		t.Run(word, func(t *testing.T) {
			f := newFleet(t)
			f.register("member/1")
			f.register("alone")
			f.useSharedSecrets("from-file")
			operator := f.operator(t)
			call := func(method string, request, response any) {
				t.Helper()
				path := "/controlplane.proto.v1.ControlPlaneService/" + method + word
				if err := operator.connection.Invoke(t.Context(), path, request, response); err != nil {
					t.Fatal(err)
				}
			}
			add := &controlplanepb.AddDomainRequest{DomainName: "member", Secret: goodSecret}
			call("Add", add, &controlplanepb.AddDomainResponse{})
			add.Secret = strings.ToUpper(goodSecret)
			call("Add", add, &controlplanepb.AddDomainResponse{})
			if secret, ok := f.view().Secret("member"); !ok || string(secret.Value) != add.GetSecret() || secret.KeyID != "" {
				t.Errorf("the secret is %q", secret.Value)
			}
			if got := operator.domains(t); len(got) != 2 || len(got["member"]) != 1 || len(got["from-file"]) != 0 {
				t.Errorf("groups are %v", got)
			}
			for _, group := range []string{"member", "from-file", "member", "unknown"} {
				call("Remove", &controlplanepb.RemoveDomainRequest{DomainName: group}, &controlplanepb.RemoveDomainResponse{})
			}
			if node, ok := f.view().Node("member/1"); ok && node.State != fsm.NodeLeaving {
				t.Error("the node of a removed group may stay")
			}
			if _, ok := f.view().Secret("from-file"); ok {
				t.Error("the secret of a removed group lets nodes in")
			}
		})
	}
}

// TestMutationOutcomes: what became of a change that did not reach its end.
func TestMutationOutcomes(t *testing.T) {
	f := newFleet(t)
	for _, c := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{cluster.ErrOverloaded, codes.ResourceExhausted, "too many proposals in flight"},
		{fmt.Errorf("wait: %w", cluster.ErrNoLeader), codes.Unavailable, "wait: no leader"},
		{cluster.ErrNotLeader, codes.Unavailable, "this replica does not lead"},
		{
			&cluster.UnknownOutcomeError{Cause: fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)},
			codes.Aborted, "outcome unknown, the command may or may not take effect: no answer in time: context deadline exceeded",
		},
		{errors.New("the disk is on fire"), codes.Internal, "internal error"},
	} {
		options := f.options()
		options.Proposer = &proposer{fleet: f, err: c.err}
		wantStatus(t, addSegment("s")(t.Context(), dial(t, options)), c.code, c.text)
	}
	options := f.options()
	options.Reader = &reader{store: f.store, err: cluster.ErrNoLeader}
	proposed := &proposer{fleet: f}
	options.Proposer = proposed
	// A refusal is by the newest state, never by this replica's own copy alone.
	_, err := dial(t, options).AddDomain(t.Context(), &controlplanepb.AddDomainRequest{DomainName: "g", Secret: strings.Repeat("s", 32)})
	wantStatus(t, err, codes.Unavailable, "no leader")
	if len(proposed.commands) > 0 {
		t.Error("a command was proposed that this replica's copy refuses")
	}
	// What its own copy allows is judged again where it is applied.
	if err := addLink("a", "b", "")(t.Context(), dial(t, options)); err != nil || len(proposed.commands) != 1 {
		t.Errorf("a change that may be made: %v, %d commands", err, len(proposed.commands))
	}
}

// A change is answered before upstream's tool gives up, whatever hangs.
func TestMutationsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		service := NewService(Options{Reader: &reader{store: f.store}, Proposer: &proposer{fleet: f, hangs: true}})
		started := time.Now()
		_, err := service.AddSegment(t.Context(), &controlplanepb.AddSegmentRequest{Name: "s"})
		wantStatus(t, err, codes.Unavailable, "the change was not accepted for the log within 8s")
		if waited := time.Since(started); waited > 12*time.Second {
			t.Errorf("answered after %v", waited)
		}
	})
}

// TestMutationCommand: each call is a command of its own, tells from where it
// came, and answers with the index at which it took effect.
func TestMutationCommand(t *testing.T) {
	f := newFleet(t)
	options := f.options()
	proposed := &proposer{fleet: f}
	options.Proposer = proposed
	operator := dial(t, options)
	var header metadata.MD
	for range 2 {
		if _, err := operator.AddSegment(t.Context(), &controlplanepb.AddSegmentRequest{Name: "s"}, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{fmt.Sprint(f.index)}; !slices.Equal(header.Get(IndexKey), want) {
		t.Errorf("header %s is %q, want %q", IndexKey, header.Get(IndexKey), want)
	}
	ids := map[string]bool{}
	for _, command := range proposed.commands {
		ids[command.GetRequestId()] = true
		if _, err := uuid.Parse(command.GetRequestId()); err != nil || command.GetCaller().GetAddress() == "" {
			t.Errorf("request id %q, caller %v", command.GetRequestId(), command.GetCaller())
		}
	}
	if len(ids) != 2 {
		t.Errorf("%d request ids of 2 calls", len(ids))
	}
}

// TestAuditLine: each change, made or refused, leaves one line, and no secret.
func TestAuditLine(t *testing.T) {
	for _, c := range []struct {
		change change
		err    error
		want   []string
	}{
		{addSegment("s"), nil, []string{`action="add segment"`, `segment="s"`, "outcome=committed", "index="}},
		{addSegment("two\nlines"), nil, []string{`segment="two\nlines"`, "outcome=refused"}},
		{removeSegment("none"), nil, []string{`segment="none"`, "outcome=refused", "segment 'none' not found"}},
		{addLink("a", "b", ""), nil, []string{`group_a="a"`, `group_b="b"`, `segment="default"`, "outcome=committed"}},
		{addDomain("x", goodSecret), nil, []string{`action="add group"`, `group="x"`, "outcome=committed"}},
		{addDomain("x", "short-secret"), nil, []string{`group="x"`, "outcome=refused", "too short"}},
		{removeDomain("x"), nil, []string{`action="remove group"`, `group="x"`, "outcome=committed"}},
		{addSegment("s"), &cluster.UnknownOutcomeError{Cause: context.Canceled}, []string{"outcome=unknown"}},
	} {
		f := newFleet(t)
		f.useSharedSecrets()
		var output bytes.Buffer
		options := f.options()
		options.Proposer = &proposer{fleet: f, err: c.err}
		options.Logger = hclog.New(&hclog.LoggerOptions{Output: &output, Level: hclog.Info})
		_ = c.change(t.Context(), dial(t, options))
		line := output.String()
		for _, want := range append(c.want, "operator's change", "address=", "request=", "identity=") {
			if !strings.Contains(line, want) {
				t.Errorf("no %s in %q", want, line)
			}
		}
		if strings.Count(line, "\n") != 1 || strings.Contains(line, goodSecret) || strings.Contains(line, "short-secret") {
			t.Errorf("want one line without a secret: %q", line)
		}
	}
}
