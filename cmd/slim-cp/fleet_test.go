package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cmd/operator/fleetconfig"
	"github.com/slim-cp/slim-cp/config"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	none   = "topology: {links: [{group: hub, neighbors: ['*']}]}"
	other  = "topology: {links: [{group: hub, neighbors: [a]}]}"
	secret = "0123456789-0123456789-0123456789"
	shared = "topology: {links: [{group: hub, neighbors: ['*']}], registration_auth: {type: shared_secret, secrets: {a: " + secret + "}}}"
)

// replicatedState is a cluster of which several replicas present their files.
type replicatedState struct {
	t         *testing.T
	store     *fsm.Store
	index     uint64
	proposals []*slimcppb.SetFleetConfig
	failing   error
	until     time.Time // when failing ends; zero: it does not
}

// failure is what calls fail with now.
func (s *replicatedState) failure() error {
	if !s.until.IsZero() && !time.Now().Before(s.until) {
		return nil
	}
	return s.failing
}

func newState(t *testing.T) *replicatedState {
	t.Helper()
	s := &replicatedState{t: t, store: fsm.New()}
	s.apply(&slimcppb.Command{Payload: &slimcppb.Command_InitCluster{InitCluster: &slimcppb.InitCluster{ClusterId: "test", ActiveSchema: fsm.SchemaVersion}}})
	return s
}

func (s *replicatedState) apply(command *slimcppb.Command) fsm.Result {
	s.t.Helper()
	s.index++
	command.Generation = s.store.View().Generation()
	result := s.store.Apply(s.index, 1, &slimcppb.Entry{Commands: []*slimcppb.Command{command}})[0]
	if result.Err != nil {
		s.t.Fatal(result.Err)
	}
	return result
}

// topologyApply is what "slim-cp topology apply" does.
func (s *replicatedState) topologyApply(yaml string) {
	s.t.Helper()
	s.apply(&slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{
		SetFleetConfig: &slimcppb.SetFleetConfig{Config: fleetOf(s.t, yaml)},
	}})
}

func (s *replicatedState) wantActive(yaml string) {
	s.t.Helper()
	if active := s.store.View().Fleet(); !proto.Equal(active, fleetOf(s.t, yaml)) {
		s.t.Errorf("active is %v, want that of %s", active, yaml)
	}
}

// wantProposals checks how often something was proposed since the last time.
func (s *replicatedState) wantProposals(want int) {
	s.t.Helper()
	if len(s.proposals) != want {
		s.t.Errorf("proposed %d times, want %d: %v", len(s.proposals), want, s.proposals)
	}
	s.proposals = nil
}

func fleetOf(t *testing.T, yaml string) *slimcppb.FleetConfig {
	t.Helper()
	settings, err := config.Parse("x.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return fleetconfig.FromSettings(settings)
}

// replica is one of the replicas, with a file of its own.
type replica struct {
	*replicatedState
	id   string
	file string
	log  bytes.Buffer
	*presenter
}

func (r *replica) ReplicaID() string { return r.id }
func (r *replica) View() *fsm.View   { return r.store.View() }
func (r *replica) Read(context.Context) (*fsm.View, error) {
	return r.store.View(), r.failure()
}
func (r *replica) Propose(_ context.Context, command *slimcppb.Command) (fsm.Result, error) {
	if err := r.failure(); err != nil {
		return fsm.Result{}, err
	}
	r.proposals = append(r.proposals, command.GetSetFleetConfig())
	return r.apply(command), nil
}

// boot starts a replica with a file.
func (s *replicatedState) boot(id, file string) *replica {
	s.t.Helper()
	r := &replica{replicatedState: s, id: id, file: file}
	load := func() (*config.Config, error) { return config.Parse("x.yaml", []byte(r.file)) }
	settings, err := load()
	if err != nil {
		s.t.Fatal(err)
	}
	r.presenter = newPresenter(r, settings, load, hclog.New(&hclog.LoggerOptions{Output: &r.log}))
	if err := r.start(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// register has a node of a group register.
func (s *replicatedState) register(group string) {
	s.t.Helper()
	s.apply(&slimcppb.Command{Payload: &slimcppb.Command_RegisterNode{RegisterNode: &slimcppb.RegisterNode{
		Session: &slimcppb.SessionName{ReplicaId: "one", BootId: "boot", Counter: s.index}, Group: group, Node: "n",
		Details:   []*slimcppb.ConnectionDetail{{Endpoint: "10.0.0.1:1", ExternalEndpoint: proto.String(group + ".test:1")}},
		TokenHash: []byte("token"), TokenExpiresUnixNanos: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano(),
	}}})
}

func (r *replica) wantLog(words ...string) {
	r.t.Helper()
	for _, word := range words {
		if !strings.Contains(r.log.String(), word) {
			r.t.Errorf("no %q in the log:\n%s", word, r.log.String())
		}
	}
	if strings.Contains(r.log.String(), secret) {
		r.t.Errorf("the log tells a secret:\n%s", r.log.String())
	}
	r.log.Reset()
}

func TestFirstReplicaPresentsItsFile(t *testing.T) {
	s := newState(t)
	r := s.boot("one", none)
	s.wantProposals(1)
	s.wantActive(none)
	if r.otherAuth() {
		t.Error("nodes are not let in")
	}
	if strings.Contains(r.log.String(), "not that of") {
		t.Errorf("log: %s", r.log.String())
	}
}

func TestRestartWithAnUnchangedFileChangesNothing(t *testing.T) {
	s := newState(t)
	s.boot("one", none)
	s.topologyApply(other)
	s.wantProposals(1)
	r := s.boot("one", none)
	s.wantProposals(0)
	s.wantActive(other)
	r.otherAuth()
	r.wantLog("not that of this replica's file", "topology")
	r.otherAuth()
	if r.log.Len() > 0 {
		t.Errorf("the difference is told again: %s", r.log.String())
	}
}

func TestRestartWithAChangedFilePresentsIt(t *testing.T) {
	s := newState(t)
	s.boot("one", none)
	s.boot("one", shared)
	s.wantProposals(2)
	s.wantActive(shared)
	s.boot("one", shared)
	s.wantProposals(0)
}

func TestNewReplicaLeavesTheActiveConfiguration(t *testing.T) {
	s := newState(t)
	s.boot("one", none)
	s.boot("two", other)
	s.wantActive(none)
	s.wantProposals(2) // the second only notes the file
	s.boot("two", other)
	s.wantProposals(0)
	s.wantActive(none)
	s.boot("two", shared) // now it has changed
	s.wantActive(shared)
	s.boot("one", none)
	s.wantActive(shared)
}

func TestReloadPresentsTheFile(t *testing.T) {
	s := newState(t)
	r := s.boot("one", none)
	s.wantProposals(1)
	r.reload(t.Context()) // nothing has changed
	s.wantProposals(0)
	r.file = shared
	r.reload(t.Context())
	s.wantProposals(1)
	s.wantActive(shared)
	r.wantLog("read again")
	s.topologyApply(other)
	r.reload(t.Context()) // the file has not changed, and is asked for
	s.wantProposals(1)
	s.wantActive(shared)
	s.topologyApply(other)
	r.file = other
	r.reload(t.Context()) // active already: only noted
	if len(s.proposals) != 1 || s.proposals[0].GetConfig() != nil {
		t.Errorf("proposed %v", s.proposals)
	}
	s.proposals = nil
	s.boot("one", other)
	s.wantProposals(0)
}

func TestReloadOfABadFileChangesNothing(t *testing.T) {
	s := newState(t)
	r := s.boot("one", shared)
	s.wantProposals(1)
	r.file = "topology: {links: x, segments: y}\nreconciler: {workers: many}"
	r.reload(t.Context())
	s.wantProposals(0)
	s.wantActive(shared)
	r.wantLog("topology.links", "topology.segments", "reconciler.workers")
	if r.otherAuth() {
		t.Error("nodes are not let in any more")
	}
	if lines := strings.Count(r.log.String(), "\n"); lines != 0 {
		t.Errorf("log: %s", r.log.String())
	}
}

func TestReloadWithoutALeaderIsReported(t *testing.T) {
	s := newState(t)
	r := s.boot("one", none)
	r.file, s.failing = shared, errors.New("no leader")
	r.reload(t.Context())
	r.wantLog("no leader", "SIGHUP again")
	s.wantActive(none)
	s.failing = nil
	r.reload(t.Context())
	s.wantActive(shared)
}

func TestReplicaWithAnotherAuthenticationDoesNotListen(t *testing.T) {
	s := newState(t)
	r := s.boot("one", none)
	s.topologyApply(shared)
	if !r.otherAuth() {
		t.Error("nodes are let in")
	}
	r.wantLog("registration_auth", "secrets")
	r.file = shared
	r.reload(t.Context())
	if r.otherAuth() {
		t.Error("nodes are not let in, and the file says the same")
	}
	r.wantLog()
}

func TestDifferencesAreNamed(t *testing.T) {
	a, b := fleetOf(t, other), fleetOf(t, shared)
	if got, want := differences(a, b), []string{"topology", "registration_auth", "secrets"}; !sameSet(got, want) {
		t.Errorf("differences %v, want %v", got, want)
	}
	enforced := fleetOf(t, other+"\nenforce_node_connection: {timeout: 5}\nsessions: {failover_grace: 2s}")
	if got, want := differences(a, enforced), []string{"enforced_connection", "graces"}; !sameSet(got, want) {
		t.Errorf("differences %v, want %v", got, want)
	}
	if got := differences(a, fleetOf(t, other)); len(got) > 0 {
		t.Errorf("differences %v of the same", got)
	}
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
