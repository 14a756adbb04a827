//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/process"
)

// clusterTime bounds what a cluster may take to settle after a failure: an election
// and what follows it, on a busy machine.
const clusterTime = 30 * time.Second

// eventually polls a condition of other processes.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(clusterTime)
	defer deadline.Stop()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", clusterTime, what)
		}
	}
}

// roles are the roles of all replicas by name.
func roles(status *slimcppb.ClusterStatusResponse) map[string]slimcppb.ReplicaRole {
	roles := map[string]slimcppb.ReplicaRole{}
	for _, replica := range status.GetReplicas() {
		roles[replica.GetName()] = replica.GetRole()
	}
	return roles
}

const (
	leads  = slimcppb.ReplicaRole_REPLICA_ROLE_LEADER
	votes  = slimcppb.ReplicaRole_REPLICA_ROLE_VOTER
	isHeld = slimcppb.ReplicaRole_REPLICA_ROLE_HELD_BACK
)

// leaderOf returns the replica that leads by the word of all that are given, and
// the others.
func leaderOf(t *testing.T, replicas []*process.Replica) (leader *process.Replica, others []*process.Replica) {
	t.Helper()
	eventually(t, "one leader", func() bool {
		leader, others = nil, nil
		for _, r := range replicas {
			found := roles(r.Status(t))
			if found[r.Member.Name] != leads {
				others = append(others, r)
				continue
			}
			if leader != nil {
				return false
			}
			leader = r
		}
		return leader != nil
	})
	return leader, others
}

// waitTolerance waits until a replica says that so many may fail.
func waitTolerance(t *testing.T, r *process.Replica, tolerance uint32) {
	t.Helper()
	eventually(t, fmt.Sprintf("failure tolerance of %d", tolerance), func() bool {
		return r.Status(t).GetFailureTolerance() == tolerance
	})
}

func TestClusterForms(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, mesh)
	waitTolerance(t, replicas[2], 1)
	for _, r := range replicas {
		status := r.Status(t)
		if found := roles(status); len(found) != 3 || found["cp-1"] != leads || found["cp-2"] != votes || found["cp-3"] != votes {
			t.Errorf("%s says %v", r.Member.Name, status)
		}
		for _, replica := range status.GetReplicas() {
			if !replica.GetHealthy() || replica.GetVersion() == "" || replica.GetSchema() == 0 {
				t.Errorf("%s says %v", r.Member.Name, replica)
			}
		}
		table := r.MustOperate(t, "cluster", "status")
		for _, want := range []string{"leader: " + status.GetLeaderId(), "failure tolerance: 1", "term: ", "LAST_CONTACT", r.Cluster} {
			if !strings.Contains(table, want) {
				t.Errorf("no %q in\n%s", want, table)
			}
		}
	}
	// Each may be repeated.
	before := replicas[0].Status(t).GetClusterId()
	replicas[1].MustOperate(t, "cluster", "init")
	replicas[1].MustOperate(t, "cluster", "join", replicas[2].Cluster)
	if after := replicas[1].Status(t); after.GetClusterId() != before || len(after.GetReplicas()) != 3 {
		t.Errorf("after init and join on a member: %v", after)
	}
}

// fails runs a command that must fail with one line that holds the words.
func fails(t *testing.T, r *process.Replica, code int, words []string, args ...string) {
	t.Helper()
	got, stdout, stderr := r.Operate(t, args...)
	if got != code || strings.Count(stderr, "\n") != 1 {
		t.Errorf("%v: exit code %d, want %d and one line:\n%s%s", args, got, code, stdout, stderr)
	}
	for _, word := range words {
		if !strings.Contains(stderr, word) {
			t.Errorf("%v: no %q in: %s", args, word, stderr)
		}
	}
}

func TestJoinIsRefused(t *testing.T) {
	one, other := process.FormCluster(t, binaries, 1, ""), process.FormCluster(t, binaries, 1, "")
	fails(t, one[0], 1, []string{"belongs to cluster", other[0].Status(t).GetClusterId()}, "cluster", "join", other[0].Cluster)
	fails(t, one[0], 1, []string{"is this replica"}, "cluster", "join", one[0].Cluster)
	fails(t, one[0], 1, []string{"127.0.0.1:1", "refused"}, "cluster", "join", "127.0.0.1:1")
	fails(t, one[0], 1, []string{"HOST:PORT"}, "cluster", "join", "nowhere")
	fails(t, one[0], 1, []string{"no such replica", "cp-9"}, "cluster", "remove", "cp-9")

	stranger := process.StartMember(t, binaries, process.Member{Name: "stranger"})
	fails(t, one[0], 1, []string{"belongs to cluster"}, "cluster", "join", other[0].Cluster)
	fails(t, stranger, 1, []string{"no leader"}, "segment", "add", "x", "--timeout", "20s")
	if table := stranger.MustOperate(t, "cluster", "status"); !strings.Contains(table, "not a member") {
		t.Errorf("status of a stranger:\n%s", table)
	}
}

// lastLine is the last line that a replica wrote to standard error.
func lastLine(p *process.Process) string {
	lines := strings.Split(strings.TrimSpace(p.Text(process.Stderr)), "\n")
	return lines[len(lines)-1]
}

// A data directory that was copied shows as one id with two lives: the newcomer
// goes.
func TestClonedDataDirectoryIsRefused(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	victim := replicas[2]
	victim.Stop(t)
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(victim.Member.DataDir)); err != nil {
		t.Fatal(err)
	}
	victim.Start(t)
	waitTolerance(t, replicas[0], 1)

	clone := process.NewMember(t, binaries, process.Member{Name: "cp-3", DataDir: copied})
	clone.Launch(t)
	if code := clone.Wait(t, clusterTime); code != 1 || !strings.Contains(lastLine(clone.Process), "copy of this data directory") {
		t.Errorf("the clone ended with exit code %d: %s", code, lastLine(clone.Process))
	}
	waitTolerance(t, victim, 1)

	second := process.NewMember(t, binaries, process.Member{Name: "cp-3", DataDir: victim.Member.DataDir})
	code, _, stderr := process.Run(t, process.Spec{Name: "second", Path: binaries.Path("slim-cp"), Args: []string{"serve", "-c", second.Config()}}, commandTime)
	if code != 1 || !strings.Contains(stderr, "in use by another slim-cp") {
		t.Errorf("a second process on one data directory: exit code %d: %s", code, stderr)
	}
}

func TestRemovedReplicaEnds(t *testing.T) {
	const exitRemoved = 10
	replicas := process.FormCluster(t, binaries, 3, "")
	removed := replicas[2]
	replicas[1].MustOperate(t, "cluster", "remove", "cp-3")
	if code := removed.Wait(t, clusterTime); code != exitRemoved || !strings.Contains(lastLine(removed.Process), "removed from the cluster") {
		t.Errorf("exit code %d: %s", code, lastLine(removed.Process))
	}
	again := process.NewMember(t, binaries, removed.Member)
	again.Launch(t)
	if code := again.Wait(t, clusterTime); code != exitRemoved {
		t.Errorf("started again: exit code %d: %s", code, lastLine(again.Process))
	}
	// By its id it is gone already; the name may be used again.
	anew := process.StartMember(t, binaries, process.Member{Name: "cp-3", Cluster: removed.Cluster})
	anew.MustOperate(t, "cluster", "join", replicas[1].Cluster)
	waitTolerance(t, anew, 1)
	anew.MustOperate(t, "cluster", "leave")
	if code := anew.Wait(t, clusterTime); code != exitRemoved {
		t.Errorf("a replica that left: exit code %d: %s", code, lastLine(anew.Process))
	}
	// One that leads hands over first.
	leader, others := leaderOf(t, replicas[:2])
	others[0].MustOperate(t, "cluster", "remove", leader.Member.Name)
	if code := leader.Wait(t, clusterTime); code != exitRemoved {
		t.Errorf("a leader that was removed: exit code %d: %s", code, lastLine(leader.Process))
	}
	fails(t, others[0], 1, nil, "cluster", "leave")
}

func TestClusterFormsUnattended(t *testing.T) {
	ports := []string{process.Loopback(process.FreePort(t)), process.Loopback(process.FreePort(t)), process.Loopback(process.FreePort(t))}
	section := fmt.Sprintf("insecure: true, bootstrap_expect: 3, join: [%q, %q, %q], autopilot: {stabilization_time: 300ms}", ports[0], ports[1], ports[2])
	var replicas []*process.Replica
	for i, port := range ports {
		replicas = append(replicas, process.StartMember(t, binaries, process.Member{Name: fmt.Sprintf("cp-%d", i+1), Cluster: port, Section: section}))
	}
	for _, r := range replicas {
		waitTolerance(t, r, 1)
	}
	ids := map[string]bool{}
	for _, r := range replicas {
		ids[r.Status(t).GetClusterId()] = true
	}
	if len(ids) != 1 {
		t.Errorf("%d clusters: %v", len(ids), ids)
	}
}

// Every command does the same on every replica.
func TestCommandsWorkOnFollowers(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	_, others := leaderOf(t, replicas)
	for _, r := range others {
		name := "of-" + r.Member.Name
		r.MustOperate(t, "segment", "add", name)
		for _, reader := range replicas {
			if list := reader.MustOperate(t, "segment", "list"); !strings.Contains(list, name) {
				t.Errorf("%s does not list what %s was answered:\n%s", reader.Member.Name, r.Member.Name, list)
			}
		}
		code, _, stderr := r.Operate(t, "segment", "list", "--stale")
		if code != 0 || !strings.HasPrefix(stderr, "As of index ") {
			t.Errorf("a stale list: exit code %d: %s", code, stderr)
		}
		r.MustOperate(t, "status")
		if code, explained, stderr := r.Operate(t, "explain", "link", "a", "b"); code != 4 || !strings.Contains(explained, "does not work") {
			t.Errorf("explain of a link that nobody asked for: exit code %d: %s%s", code, explained, stderr)
		}
		r.MustOperate(t, "cluster", "finalize-upgrade")
	}
	for i, r := range others {
		other := others[1-i]
		for range 2 {
			r.MustOperate(t, "cluster", "demote", other.Member.Name)
		}
		if role := roles(r.Status(t))[other.Member.Name]; role != isHeld {
			t.Errorf("role after a demotion: %v", role)
		}
		for range 2 {
			r.MustOperate(t, "cluster", "promote", other.Member.Name)
		}
	}
	for _, to := range []string{others[0].Member.Name, others[1].Member.Name} {
		for range 2 {
			others[0].MustOperate(t, "cluster", "transfer-leader", to)
		}
		if role := roles(others[1].Status(t))[to]; role != leads {
			t.Errorf("role after a transfer to it: %v", role)
		}
	}
}

// What was answered before a leader's death is there after it, and operators can
// write again.
func TestLeaderIsKilled(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	leader, others := leaderOf(t, replicas)
	others[0].MustOperate(t, "segment", "add", "before")
	leader.Kill(t)
	start := time.Now()
	others[0].MustOperate(t, "segment", "add", "after")
	t.Logf("operators could write again after %v", time.Since(start).Round(time.Millisecond))
	list := others[1].MustOperate(t, "segment", "list")
	if !strings.Contains(list, "before") || !strings.Contains(list, "after") {
		t.Errorf("segments after the leader's death:\n%s", list)
	}
	leader.Start(t)
	waitTolerance(t, leader, 1)
	if list := leader.MustOperate(t, "segment", "list"); !strings.Contains(list, "after") {
		t.Errorf("segments of the one that came back:\n%s", list)
	}
}

// A lone durable replica becomes the first of three by its file alone.
func TestLoneReplicaBecomesTheFirstOfThree(t *testing.T) {
	first := process.NewMember(t, binaries, process.Member{Name: "cp-1"})
	member := first.Member
	alone := fmt.Sprintf("northbound: {endpoint: %q, tls: {insecure: true}}\nsouthbound: {endpoint: %q, tls: {insecure: true}}\n"+
		"database: {type: raft, path: %q}\n", member.Northbound, member.Southbound, member.DataDir)
	if err := os.WriteFile(first.Config(), []byte(alone), 0o600); err != nil {
		t.Fatal(err)
	}
	first.Start(t)
	first.MustOperate(t, "segment", "add", "early")
	if status := first.Status(t); len(status.GetReplicas()) != 1 || status.GetFailureTolerance() != 0 {
		t.Errorf("a lone replica's status: %v", status)
	}
	first.Stop(t)

	first.Configure(t, member)
	first.Start(t)
	replicas := []*process.Replica{first}
	for _, name := range []string{"cp-2", "cp-3"} {
		r := process.StartMember(t, binaries, process.Member{Name: name})
		r.MustOperate(t, "cluster", "join", first.Cluster)
		replicas = append(replicas, r)
	}
	waitTolerance(t, first, 1)
	for _, r := range replicas {
		if list := r.MustOperate(t, "segment", "list"); !strings.Contains(list, "early") {
			t.Errorf("%s has not what the lone replica had:\n%s", r.Member.Name, list)
		}
	}
}

// The last replica of a cluster makes it anew, and keeps the state.
func TestRecoverFromALostQuorum(t *testing.T) {
	replicas := process.FormCluster(t, binaries, 3, "")
	survivor := replicas[1]
	survivor.MustOperate(t, "segment", "add", "kept")
	for _, r := range replicas {
		r.Kill(t)
	}
	recoverQuorum := func(args ...string) string {
		return succeed(t, "slim-cp", append([]string{"cluster", "recover", "-c", survivor.Config()}, args...)...)
	}
	if plan := recoverQuorum(); !strings.Contains(plan, "Nothing was changed") || strings.Count(plan, "never joins again") != 2 {
		t.Errorf("a dry run says\n%s", plan)
	}
	if done := recoverQuorum("--yes"); !strings.Contains(done, "Recovered: generation 2") {
		t.Errorf("the recovery says\n%s", done)
	}
	survivor.Start(t)
	eventually(t, "the survivor to lead", func() bool { return roles(survivor.Status(t))["cp-2"] == leads })
	if list := survivor.MustOperate(t, "segment", "list"); !strings.Contains(list, "kept") {
		t.Errorf("segments after the recovery:\n%s", list)
	}
	for _, name := range []string{"cp-1", "cp-3"} {
		r := process.StartMember(t, binaries, process.Member{Name: name})
		r.MustOperate(t, "cluster", "join", survivor.Cluster)
	}
	waitTolerance(t, survivor, 1)
}

// savedFiles are the names of the files in a folder, in order.
func savedFiles(folder string) []string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil // it is made with the first file
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	slices.Sort(names)
	return names
}
