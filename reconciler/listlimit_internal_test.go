package reconciler

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/slim-cp/slim-cp/southbound"
)

// line is a limiter and the drivers that it woke.
type line struct {
	*listLimiter
	woken []string
}

func newLine() *line {
	l := &line{}
	l.listLimiter = newListLimiter(func(nodeID string) { l.woken = append(l.woken, nodeID) })
	return l
}

func fleetOf(count int) []*driver {
	drivers := make([]*driver, count)
	for i := range drivers {
		drivers[i] = &driver{id: fmt.Sprint("n", i)}
	}
	return drivers
}

func TestListsUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fleet := newLine(), fleetOf(2000)
		reading := map[*driver]bool{}
		for _, d := range fleet {
			if l.acquire(d, false, 1) {
				reading[d] = true
			}
		}
		if len(reading) != maxLists {
			t.Fatalf("%d lists at once, want %d", len(reading), maxLists)
		}
		// Each that ends makes room for the one that waits longest.
		l.leave(fleet[0])
		if !slices.Equal(l.woken, []string{fleet[maxLists].id}) {
			t.Errorf("woken %v", l.woken)
		}
		for _, d := range fleet {
			l.leave(d)
		}
		if l.reading != 0 || l.slow != 0 || l.bytes != 0 {
			t.Errorf("at the end %d lists, %d slow ones, %d bytes", l.reading, l.slow, l.bytes)
		}
	})
}

func TestLargeListsAreBoundedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fleet := newLine(), fleetOf(3)
		if !l.acquire(fleet[0], false, 2*maxListBytes) {
			t.Error("no list at all, since it is large")
		}
		if l.acquire(fleet[1], false, 1) {
			t.Error("a second list beside a very large one")
		}
		l.leave(fleet[0])
		if !l.acquire(fleet[1], false, maxListBytes/2) || !l.acquire(fleet[2], false, maxListBytes/2) {
			t.Error("two lists that fit are not read at once")
		}
		l.leave(fleet[1])
		l.leave(fleet[2])
	})
}

func TestGatewaysAreListedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fleet := newLine(), fleetOf(maxLists+3)
		for _, d := range fleet {
			l.acquire(d, false, 1)
		}
		gateway, became := &driver{id: "gateway"}, fleet[maxLists+2]
		l.acquire(gateway, true, 1)
		l.acquire(became, true, 1) // it holds a link since it asked first
		for _, d := range fleet[:4] {
			l.leave(d)
		}
		want := []string{gateway.id, became.id, fleet[maxLists].id, fleet[maxLists+1].id}
		if !slices.Equal(l.woken, want) {
			t.Errorf("woken %v, want %v", l.woken, want)
		}
		for d := range l.places {
			l.leave(d)
		}
	})
}

// Nodes that do not answer hold up the lists of others for moments only, and however
// many they are, the lists under way stay bounded.
func TestSilentNodesDoNotHoldUpLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fleet := newLine(), fleetOf(2000)
		for _, d := range fleet {
			l.acquire(d, false, 1)
		}
		<-time.After(listTime)
		synctest.Wait()
		if l.reading != maxLists || l.slow != maxLists {
			t.Errorf("%d lists and %d slow ones", l.reading, l.slow)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if l.reading != maxLists || l.slow != maxSlowLists {
			t.Errorf("a minute later %d lists and %d slow ones", l.reading, l.slow)
		}
		for d := range l.places {
			l.leave(d)
		}
	})
}

func TestManySilentNodesAreNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connected = 400
		judge := newSilenceJudge(hclog.NewNullLogger())
		judge.note("early")
		if judge.believed(connected) {
			t.Error("a node is silent in the first second of a leadership")
		}
		<-time.After(silenceHold)
		judge.note("n")
		if !judge.believed(connected) {
			t.Error("one node that does not answer is not believed")
		}
		for i := range connected / 2 {
			judge.note(fmt.Sprint("m", i))
		}
		if judge.believed(connected) {
			t.Error("half of the fleet is taken for silent at once")
		}
		for i := range connected / 2 {
			judge.forget(fmt.Sprint("m", i))
		}
		if !judge.believed(connected) {
			t.Error("one node is not believed after the others have answered")
		}
		for i := range connected / 2 {
			judge.note(fmt.Sprint("m", i))
		}
		<-time.After(silenceFresh + southbound.SilentAfter)
		judge.note("n")
		if !judge.believed(connected) {
			t.Error("what was said of others long ago counts")
		}
	})
}

func TestDialsBackOff(t *testing.T) {
	want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}
	for i, seconds := range want {
		if delay := dialDelay(uint32(i + 1)); delay != seconds*time.Second {
			t.Errorf("%v after failure %d, want %v", delay, i+1, seconds*time.Second)
		}
	}
}
