package reconciler_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slim-cp/slim-cp/dataplane"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/test/world"
)

var (
	modelSeed = flag.Uint64("model.seed", 0, "replay the round of the model test with this seed; 0: the default rounds")
	modelLong = flag.Int("model.rounds", 0, "number of rounds of the model test, of random seeds; 0: the default rounds")
	modelLog  = flag.Bool("model.log", false, "print the events of the model test and the control plane's log")
)

const (
	// A full run. A round is a world of its own with a seed of its own.
	modelRounds   = 14
	modelQuiesces = 4   // of a round
	modelEvents   = 200 // before each of them
	modelGroups   = 5
	modelMembers  = 3 // of each group
)

// TestModel lets a fleet live through a random life and checks, whenever it has
// come to rest, that everything is as topology and applications ask. A round
// that fails names its seed; -model.seed replays it.
func TestModel(t *testing.T) {
	seeds := make([]uint64, defaultRounds)
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}
	switch {
	case *modelSeed != 0:
		seeds = []uint64{*modelSeed}
	case *modelLong > 0:
		seeds = make([]uint64, *modelLong)
		for i := range seeds {
			seeds[i] = rand.Uint64()
		}
	}
	counts := map[string]int{}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { playRound(t, seed, counts) })
		if t.Failed() {
			t.Fatalf("replay with: go test ./reconciler -run TestModel -model.seed %d", seed)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%6d × %s", counts[kind], kind)
		if len(seeds) >= modelRounds && counts[kind] < 200 {
			t.Errorf("only %d events of kind %q", counts[kind], kind)
		}
	}
}

func playRound(t *testing.T, seed uint64, counts map[string]int) {
	var log io.Writer
	if *modelLog {
		log = os.Stderr
	}
	random := rand.New(rand.NewPCG(seed, 2))
	options := world.Options{Seed: seed, Log: log}
	if random.IntN(2) == 0 {
		options.Teardown = 20 * time.Millisecond
	}
	options.Reconciler.OrphanDetection = random.IntN(2) == 0
	world.Run(t, options, func(t *testing.T, w *world.World) {
		m := &model{t: t, w: w, random: random, log: log, counts: counts}
		m.populate()
		for range modelQuiesces {
			m.chooseTopologies()
			for range modelEvents {
				m.step()
			}
			m.rest()
		}
	})
}

// model is the driver of one round. What it does depends on its seed and on what
// it did before, never on what the control plane made of it.
type model struct {
	t       *testing.T
	w       *world.World
	random  *rand.Rand
	log     io.Writer
	counts  map[string]int
	members []*member
	// topologies to choose from until the next rest. Names that several groups
	// announce occur only with topologies of one segment: what a message to one
	// reaches through several segments is not for the model to say.
	topologies [][]*slimcppb.Segment
	shared     bool
	stalled    bool // the log
}

type member struct {
	node     *dataplane.Node
	running  bool
	stalled  bool
	deaf     bool // loses claims
	mute     bool // drops acknowledgements
	refusing bool
	// secure: other groups need their own credentials to dial it. Such a dial
	// cannot be bounded, so it has to end well before the world can rest.
	secure bool
	names  map[string]bool
	port   int
}

func (m *model) note(format string, args ...any) {
	if m.log != nil {
		fmt.Fprintf(m.log, "%s EVENT %s\n", time.Now().Format("04:05.000"), fmt.Sprintf(format, args...))
	}
}

func (m *model) populate() {
	for g := range modelGroups {
		for i := range modelMembers {
			var changes []func(*dataplane.NodeOptions)
			if i == 2 && g == 1 {
				changes = append(changes, world.NoExternal)
			}
			secure := g == 4
			if secure {
				changes = append(changes, func(o *dataplane.NodeOptions) { o.TLSRequired = true })
			}
			if g == 3 {
				changes = append(changes, func(o *dataplane.NodeOptions) { o.LocalApplications = true })
			}
			node := m.w.AddNode(fmt.Sprintf("g%d", g+1), fmt.Sprintf("n%d", i+1), changes...)
			m.members = append(m.members, &member{node: node, secure: secure, names: map[string]bool{}})
		}
	}
}

func (m *model) chooseTopologies() {
	if m.shared = m.random.IntN(2) == 0; m.shared {
		m.topologies = [][]*slimcppb.Segment{
			{world.Segment("mesh", "*~*")},
			{world.Segment("star", "g1~*")},
			{world.Segment("chain", "g1~g2", "g2~g3", "g3~g4", "g4~g5")},
			{world.Segment("pairs", "g1~g2", "g3~g4")},
		}
	} else {
		m.topologies = [][]*slimcppb.Segment{
			{world.Segment("left", "g1~g2", "g2~g3"), world.Segment("right", "g3~g4", "g4~g5", "g3~g5")},
			{world.Segment("spoke-$group", "$group~g1")},
			{world.Segment("one", "g1~*"), world.Segment("two", "g2~*")},
			{},
		}
	}
	for _, member := range m.members {
		for text := range member.names {
			if !m.shared && strings.HasPrefix(text, "shared") {
				m.withdraw(member, text)
			}
		}
	}
	m.changeTopology()
}

// event is one kind of what may happen. do returns false if it cannot happen now.
type event struct {
	kind   string
	weight int
	do     func(m *model) bool
}

var events = []event{
	{"join", 12, (*model).join},
	{"crash", 5, (*model).crash},
	{"deregister", 4, (*model).deregister},
	{"reconnect", 12, (*model).reconnect},
	{"break a link", 10, (*model).breakLink},
	{"announce", 18, (*model).announce},
	{"withdraw", 12, (*model).withdrawOne},
	{"topology", 4, func(m *model) bool { m.changeTopology(); return true }},
	{"endpoint", 4, (*model).changeEndpoint},
	{"stall", 5, (*model).stall},
	{"lose claims", 5, (*model).loseClaims},
	{"drop acknowledgements", 4, (*model).dropAcks},
	{"refuse links", 4, (*model).refuse},
	{"log stall", 3, (*model).stallLog},
	{"outcome unknown", 4, (*model).forgetOutcome},
	{"leader", 3, (*model).changeLeader},
	{"restart", 3, (*model).restart},
}

func (m *model) step() {
	total := 0
	for _, e := range events {
		total += e.weight
	}
	for {
		at := m.random.IntN(total)
		for _, e := range events {
			if at -= e.weight; at < 0 {
				if e.do(m) {
					m.counts[e.kind]++
					m.pause()
					return
				}
				break
			}
		}
	}
}

// pause lets some time pass: often none, sometimes enough for a grace to end.
func (m *model) pause() {
	switch m.random.IntN(20) {
	case 0:
		pass(time.Duration(m.random.IntN(40_000)) * time.Millisecond)
	case 1, 2, 3, 4:
		pass(time.Duration(m.random.IntN(3000)) * time.Millisecond)
	case 5, 6, 7, 8, 9, 10:
		pass(time.Duration(m.random.IntN(50)) * time.Millisecond)
	}
}

// pick draws a member that the condition holds for.
func (m *model) pick(condition func(*member) bool) (*member, bool) {
	var candidates []*member
	for _, member := range m.members {
		if condition(member) {
			candidates = append(candidates, member)
		}
	}
	if len(candidates) == 0 {
		return nil, false
	}
	return candidates[m.random.IntN(len(candidates))], true
}

func isRunning(member *member) bool { return member.running }

func isStopped(member *member) bool { return !member.running }

// accept ends a member's refusal before its endpoint goes away. A node that was
// told to dial with its own settings dials until it is accepted, and hears and
// sees nothing else meanwhile: if the endpoint never comes back the node is lost,
// and no control plane can help it.
func (m *model) accept(member *member) {
	if member.refusing {
		member.refusing = false
		member.node.RefuseConnections(false)
		pass(1100 * time.Millisecond)
	}
}

func (m *model) join() bool {
	member, ok := m.pick(isStopped)
	if !ok {
		return false
	}
	m.note("join %s", member.node.ID())
	m.w.Start(member.node)
	member.running = true
	return true
}

func (m *model) crash() bool {
	member, ok := m.pick(isRunning)
	if !ok {
		return false
	}
	m.accept(member)
	m.note("crash %s", member.node.ID())
	member.node.Kill()
	member.running = false
	return true
}

func (m *model) deregister() bool {
	member, ok := m.pick(func(member *member) bool { return member.running && !member.stalled })
	if !ok || m.stalled {
		return false
	}
	m.accept(member)
	m.note("deregister %s", member.node.ID())
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// A node without a stream cannot say goodbye; it ends all the same.
	if err := member.node.Deregister(ctx); err != nil {
		m.note("%v", err)
	}
	member.running = false
	return true
}

func (m *model) reconnect() bool {
	member, ok := m.pick(isRunning)
	if !ok {
		return false
	}
	m.note("reconnect %s", member.node.ID())
	m.cut(member)
	return true
}

// cut breaks a node's stream if it is registered: a real node that is cut off
// before is lost for good, whatever the control plane does (protocol A1).
func (m *model) cut(member *member) {
	synctest.Wait() // or it may be about to connect anew
	if member.node.Phase() == dataplane.Registered {
		member.node.CloseStream()
	}
}

func (m *model) breakLink() bool {
	links := m.w.Network.Links()
	if len(links) == 0 {
		return false
	}
	link := links[m.random.IntN(len(links))]
	m.note("break %v", link)
	m.w.Network.Break(link.ID)
	return true
}

func (m *model) announce() bool {
	member := m.members[m.random.IntN(len(m.members))]
	text := fmt.Sprintf("%s-%d", member.node.ID(), m.random.IntN(4))
	switch m.random.IntN(4) {
	case 0:
		text = "group-" + member.node.Group()
	case 1:
		if m.shared {
			text = fmt.Sprintf("shared-%d", m.random.IntN(2))
		}
	}
	if member.names[text] {
		return false
	}
	m.note("announce %s at %s", text, member.node.ID())
	member.names[text] = true
	member.node.Announce(world.Name(text))
	return true
}

func (m *model) withdrawOne() bool {
	member, ok := m.pick(func(member *member) bool { return len(member.names) > 0 })
	if !ok {
		return false
	}
	names := slices.Sorted(maps.Keys(member.names))
	m.withdraw(member, names[m.random.IntN(len(names))])
	return true
}

func (m *model) withdraw(member *member, text string) {
	m.note("withdraw %s at %s", text, member.node.ID())
	delete(member.names, text)
	member.node.Withdraw(world.Name(text))
}

func (m *model) changeTopology() {
	at := m.random.IntN(len(m.topologies))
	m.note("topology %v", m.topologies[at])
	m.w.SetTopology(m.topologies[at]...)
}

// changeEndpoint restarts a node's process with another address.
func (m *model) changeEndpoint() bool {
	member, ok := m.pick(func(member *member) bool { return member.running && !member.secure })
	if !ok {
		return false
	}
	m.accept(member)
	m.note("endpoint of %s", member.node.ID())
	member.node.Kill()
	member.port++
	external := member.node.ExternalEndpoint()
	if external != "" {
		external = fmt.Sprintf("%s.example:%d", strings.ReplaceAll(member.node.ID(), "/", "."), member.port)
	}
	if err := member.node.SetEndpoints(fmt.Sprintf("%s.internal:%d", strings.ReplaceAll(member.node.ID(), "/", "."), member.port), external); err != nil {
		m.t.Fatal(err)
	}
	m.w.Start(member.node)
	return true
}

func (m *model) stall() bool {
	member := m.members[m.random.IntN(len(m.members))]
	member.stalled = !member.stalled
	m.note("stall %s %v", member.node.ID(), member.stalled)
	if member.stalled && member.node.Phase() != dataplane.Registered {
		member.stalled = false
		return false
	}
	member.node.Stall(member.stalled)
	return true
}

func (m *model) loseClaims() bool {
	member := m.members[m.random.IntN(len(m.members))]
	member.deaf = !member.deaf
	m.note("lose claims %s %v", member.node.ID(), member.deaf)
	member.node.LoseClaims(member.deaf)
	return true
}

func (m *model) dropAcks() bool {
	member := m.members[m.random.IntN(len(m.members))]
	member.mute = !member.mute
	m.note("drop acknowledgements %s %v", member.node.ID(), member.mute)
	member.node.DropAcks(member.mute)
	return true
}

func (m *model) forgetOutcome() bool {
	count := 1 + m.random.IntN(3)
	m.note("outcome of %d proposals unknown", count)
	m.w.Replica().Forget(count)
	return true
}

func (m *model) refuse() bool {
	member := m.members[m.random.IntN(len(m.members))]
	member.refusing = !member.refusing
	m.note("refuse links %s %v", member.node.ID(), member.refusing)
	member.node.RefuseConnections(member.refusing)
	return true
}

func (m *model) stallLog() bool {
	m.stalled = !m.stalled
	m.note("log stall %v", m.stalled)
	m.w.Replica().Stall(m.stalled)
	return true
}

func (m *model) changeLeader() bool {
	m.note("leader")
	m.w.Resign()
	pass(time.Duration(m.random.IntN(3000)) * time.Millisecond)
	m.w.Lead()
	return true
}

func (m *model) restart() bool {
	m.note("restart")
	m.stalled = false
	m.w.Replica().Stall(false)
	if m.random.IntN(2) == 0 {
		m.w.Restart()
	} else {
		m.w.Crash()
	}
	return true
}

// rest ends every fault and lets the world settle.
func (m *model) rest() {
	m.note("rest")
	m.stalled = false
	m.w.Replica().Stall(false)
	m.w.Replica().Forget(0)
	for _, member := range m.members {
		member.stalled, member.deaf, member.mute, member.refusing = false, false, false, false
		member.node.Stall(false)
		member.node.LoseClaims(false)
		member.node.DropAcks(false)
		member.node.RefuseConnections(false)
		if member.secure && !member.running {
			m.w.Start(member.node)
			member.running = true
		}
	}
	m.w.Settle()
	m.note("at rest")
}
