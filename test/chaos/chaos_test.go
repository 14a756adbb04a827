//go:build chaos

package chaos_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"google.golang.org/grpc/metadata"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/process"
	"github.com/slim-cp/slim-cp/test/segments"
)

var (
	duration = flag.Duration("chaos.time", 10*time.Minute, "how long faults happen")
	seed     = flag.Uint64("chaos.seed", 0, "repeat the faults of a run; 0: others each time")
	only     = flag.String("chaos.only", "", "only faults whose names hold this text")
	lines    = flag.Int("chaos.lines", 0, "how many lines of each program a failed run shows; 0: as other tests")
)

const (
	groups = 6
	names  = 4
	// heals is what the fleet may take to be whole again after the last fault.
	heals = 15 * time.Second
	// settleTime is what replicas may take to be well again.
	settleTime = time.Minute
	// phaseTime bounds how much of the history a judge looks at together.
	phaseTime = 4 * time.Second
	// clock is how moments are shown, as in the replicas' logs.
	clock = "15:04:05.000"
)

var binaries process.Binaries

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if binaries, err = process.Build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestChaos breaks the cluster for a while. Whatever happens to replicas, what was
// acknowledged stays, operators see one copy of the state, no node and no link is
// lost, and soon after the last fault everything works.
func TestChaos(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: repeat with -chaos.seed %d", *seed, *seed)
	c := form(t, binaries, rand.New(rand.NewPCG(*seed, 0)))
	c.startFleet(groups, names)
	before := c.linkIDs()
	if want := groups * (groups - 1) / 2; len(before) != want {
		t.Fatalf("%d links, want %d", len(before), want)
	}
	load := c.startLoad()
	counts := c.wreak(*duration)
	healed := time.Now()
	if err := c.delivery(heals); err != nil {
		t.Error("after the last fault:", err)
	}
	t.Logf("every name was reached from every group %v after the last fault", time.Since(healed).Round(time.Millisecond))
	load.stop()
	c.settle(settleTime)
	load.judge(t, c)
	changed := 0
	after := c.linkIDs()
	for pair, id := range before {
		if after[pair] != id {
			changed++
			t.Errorf("link between %s: was %s, is %s", pair, id, after[pair])
		}
	}
	t.Logf("link ids changed: %d of %d", changed, len(before))
	c.sameState()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%4d × %s", counts[name], name)
	}
}

// step is one moment of a run: a fault begins, ends, or everything has to be well.
type step struct {
	at      time.Duration
	begins  *happening
	ends    *happening
	settles bool
}

// happening is a fault that was drawn, and once it has begun what became of it.
type happening struct {
	fault fault
	order []int // of the seats: those that have no other fault come first to this one
	lasts time.Duration

	seats []int // to which it happens
	heal  func()
}

// plan draws all that happens in a run: up to two faults at a time, which together
// leave a majority, unless one takes it on purpose. It depends on the seed alone.
func plan(random *rand.Rand, d time.Duration, menu []fault) []step {
	var steps []step
	var ends []step // of what happens at present, in order
	for at := time.Duration(0); at < d; at += time.Duration(200+random.IntN(2000)) * time.Millisecond {
		for len(ends) > 0 && ends[0].at <= at {
			steps, ends = append(steps, ends[0]), ends[1:]
		}
		if len(ends) == 0 && random.IntN(4) == 0 {
			steps = append(steps, step{at: at, settles: true})
		}
		f := menu[random.IntN(len(menu))]
		victims := f.victims
		for _, end := range ends {
			victims += end.ends.fault.victims
		}
		if len(ends) > 1 || len(ends) == 1 && victims > size/2 {
			continue
		}
		h := &happening{fault: f, order: random.Perm(size), lasts: time.Duration(500+random.IntN(6500)) * time.Millisecond}
		steps = append(steps, step{at: at, begins: h})
		ends = append(ends, step{at: at + h.lasts, ends: h})
		slices.SortFunc(ends, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	}
	return append(steps, ends...)
}

// wreak has faults happen, and returns how often each did. What takes longer than
// planned delays the rest.
func (c *chaos) wreak(d time.Duration) map[string]int {
	menu := slices.DeleteFunc(faults(), func(f fault) bool { return !strings.Contains(f.name, *only) })
	counts := map[string]int{}
	busy := map[int]bool{} // seats that have a fault
	began := time.Now()
	for _, s := range plan(c.random, d, menu) {
		<-time.After(s.at - time.Since(began))
		c.alive()
		switch {
		case s.settles:
			c.settle(settleTime)
		case s.ends != nil:
			c.t.Logf("%s: %s ends", time.Now().Format(clock), s.ends.fault.name)
			s.ends.heal()
			for _, seat := range s.ends.seats {
				delete(busy, seat)
			}
		default:
			counts[s.begins.fault.name]++
			c.begin(s.begins, busy)
		}
	}
	return counts
}

// begin has one fault happen, to seats that have no other one.
func (c *chaos) begin(h *happening, busy map[int]bool) {
	order := h.order
	if h.fault.leader {
		order = slices.Concat(c.leaders(), order)
	}
	var victims []*member
	for _, seat := range order {
		if len(victims) < h.fault.victims && !busy[seat] {
			busy[seat] = true
			h.seats = append(h.seats, seat)
			victims = append(victims, c.members[seat])
		}
	}
	c.t.Logf("%s: %s %s, for %v", time.Now().Format(clock), h.fault.name, labels(victims), h.lasts)
	h.heal = h.fault.begin(c, victims)
}

// leaders returns the seats of the replicas that say that they lead.
func (c *chaos) leaders() []int {
	var seats []int
	for seat, m := range c.members {
		if m.down {
			continue
		}
		if status, err := m.status(); err == nil && status.GetLeaderId() == status.GetReplicaId() {
			seats = append(seats, seat)
		}
	}
	return seats
}

func labels(members []*member) string {
	var names []string
	for _, m := range members {
		names = append(names, m.name)
	}
	return strings.Join(names, ", ")
}

// load is what operators do all the time.
type load struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	callers []*segments.Caller
	keepers []*keeper
	phase   atomic.Int64
}

// startLoad has two callers on each seat, whose history is judged, and one keeper
// for each of two seats.
func (c *chaos) startLoad() *load {
	ctx, cancel := context.WithCancel(c.t.Context())
	l := &load{cancel: cancel}
	began := time.Now()
	for i := range size {
		caller := &segments.Caller{
			Client: controlplanepb.NewControlPlaneServiceClient(c.members[i].conn), ID: i, Interval: 30 * time.Millisecond,
		}
		l.callers = append(l.callers, caller)
		l.running.Go(func() { caller.Run(ctx, began, &l.phase) })
	}
	for i := range 2 {
		k := &keeper{id: i}
		for _, m := range c.members {
			k.clients = append(k.clients, controlplanepb.NewControlPlaneServiceClient(m.conn))
		}
		l.keepers = append(l.keepers, k)
		l.running.Go(func() { k.run(ctx) })
	}
	l.running.Go(func() {
		ticker := time.NewTicker(phaseTime)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				l.phase.Add(1)
			case <-ctx.Done():
				return
			}
		}
	})
	return l
}

func (l *load) stop() {
	l.cancel()
	l.running.Wait()
}

// judge checks what operators were told.
func (l *load) judge(t *testing.T, c *chaos) {
	t.Helper()
	var history []porcupine.Operation
	for _, caller := range l.callers {
		history = append(history, caller.History...)
	}
	t.Logf("%d calls, the outcome of %d is unknown", len(history), segments.Unknown(history))
	if result := porcupine.CheckOperationsTimeout(segments.Model(), history, 2*time.Minute); result != porcupine.Ok {
		t.Errorf("the answers are %s: no single copy of the state could have given them", result)
	}
	if len(history) < int(duration.Seconds()) {
		t.Errorf("only %d calls in %v", len(history), *duration)
	}
	for _, m := range c.members {
		list, err := controlplanepb.NewControlPlaneServiceClient(m.conn).ListSegments(t.Context(), &controlplanepb.SegmentListRequest{})
		if err != nil {
			t.Error(err)
			continue
		}
		there := map[string]bool{}
		for _, segment := range list.GetSegments() {
			there[segment.GetName()] = true
		}
		acknowledged, lost := 0, 0
		for _, k := range l.keepers {
			for _, name := range k.acknowledged {
				acknowledged++
				if !there[name] {
					lost++
				}
			}
		}
		if lost > 0 {
			t.Errorf("%s has lost %d of %d acknowledged changes", m.name, lost, acknowledged)
		}
		if m == c.members[0] {
			t.Logf("%d acknowledged changes, lost %d", acknowledged, lost)
		}
	}
}

// keeper adds segments, each under one request id until it is acknowledged, and
// remembers them.
type keeper struct {
	id           int
	clients      []controlplanepb.ControlPlaneServiceClient
	acknowledged []string
}

func (k *keeper) run(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("kept-%d-%d", k.id, i)
		request := metadata.AppendToOutgoingContext(ctx, "slimcp-request-id", uuid.NewString())
		for try := i; ctx.Err() == nil; try++ {
			patient, cancel := context.WithTimeout(request, 5*time.Second)
			_, err := k.clients[try%len(k.clients)].AddSegment(patient, &controlplanepb.AddSegmentRequest{Name: name})
			cancel()
			if err == nil {
				k.acknowledged = append(k.acknowledged, name)
				break
			}
			<-time.After(poll)
		}
		<-time.After(500 * time.Millisecond)
	}
}

// sameState checks that all replicas end with one state, and that none found another
// one meanwhile.
func (c *chaos) sameState() {
	c.t.Helper()
	saved := map[string][]string{}
	c.eventually(time.Minute, "all replicas have applied the same", func() error {
		clear(saved)
		for _, m := range c.members {
			status, err := m.status()
			if err != nil {
				return err
			}
			for _, note := range status.GetNotes() {
				if strings.Contains(note, "differ") {
					c.t.Errorf("%s: %s", m.name, note)
				}
			}
			if votes(status) != size {
				return fmt.Errorf("%s counts %d voters", m.name, votes(status))
			}
			digest, err := m.digest(c.t.Context())
			if err != nil {
				return err
			}
			saved[digest] = append(saved[digest], m.name)
		}
		if len(saved) != 1 {
			return fmt.Errorf("%d different states: %v", len(saved), slices.Collect(maps.Values(saved)))
		}
		return nil
	})
}

// digest is the hash of what a replica's own copy of the state saves. Two replicas
// that applied the same log save the same bytes.
func (m *member) digest(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := m.cluster.SaveSnapshot(ctx, &slimcppb.SaveSnapshotRequest{})
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(hash.Sum(nil)), nil
		} else if err != nil {
			return "", fmt.Errorf("%s: %w", m.name, err)
		}
		hash.Write(part.GetData())
	}
}
