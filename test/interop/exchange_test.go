//go:build interop

package interop_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// tickPeriod is the clock of an application in an exchange.
	tickPeriod = 100 * time.Millisecond
	// latestArrival is how late a message may be when nothing is wrong: an order of
	// magnitude more than on an idle machine.
	latestArrival = 2 * time.Second
)

// exchange is two applications that each send the other a message every
// tickPeriod, in sessions without retransmission.
type exchange struct {
	one, other *app
	word       string // in each of its messages
}

func startExchange(t *testing.T, one, other *app) *exchange {
	t.Helper()
	e := &exchange{one: one, other: other, word: strconv.Itoa(one.commands)}
	for _, pair := range [][2]*app{{one, other}, {other, one}} {
		pair[0].do(t, fmt.Sprintf("talk %s %d %s", pair[1].name, tickPeriod.Milliseconds(), e.word))
	}
	return e
}

// waitTicks waits until each has received so many further messages, whatever was
// lost.
func (e *exchange) waitTicks(t *testing.T, further int) {
	t.Helper()
	for _, pair := range [][2]*app{{e.one, e.other}, {e.other, e.one}} {
		want, count := len(e.ticks(pair[0], pair[1]))+further, 0
		pair[0].waitEvent(t, fmt.Sprintf("message %d of the exchange", want), appAnswer, func(got event) bool {
			if _, ok := e.tick(got, pair[1]); ok {
				count++
			}
			return count >= want
		})
	}
}

// waitSent waits until each has sent so many further messages.
func (e *exchange) waitSent(t *testing.T, further int) {
	t.Helper()
	for _, a := range []*app{e.one, e.other} {
		sent := func(got event) bool { return got.Event == "sent" && strings.HasPrefix(got.Text, e.word+" ") }
		want, count := further, 0
		for _, line := range a.Lines() {
			if got, ok := parseEvent(line); ok && sent(got) {
				want++
			}
		}
		a.waitEvent(t, fmt.Sprintf("message %d to be sent", want), appAnswer, func(got event) bool {
			if sent(got) {
				count++
			}
			return count >= want
		})
	}
}

// stop ends the exchange, and returns how it went in each direction.
func (e *exchange) stop(t *testing.T) traffic {
	t.Helper()
	var all traffic
	for _, pair := range [][2]*app{{e.one, e.other}, {e.other, e.one}} {
		answer, err := pair[0].ask(t, "hush", appAnswer)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.heard(pair[1], pair[0], answer.Sent))
	}
	return all
}

// tick is one message of an exchange.
type tick struct {
	number       int
	sent, arrive time.Time
}

// tick reads an application's message of this exchange.
func (e *exchange) tick(got event, from *app) (tick, bool) {
	if got.Event != "message" || !strings.Contains(got.From, from.name) {
		return tick{}, false
	}
	var number int
	var word string
	var sent int64
	_, err := fmt.Sscanf(got.Text, "tick %s %d %d", &word, &number, &sent)
	return tick{number: number, sent: time.UnixMilli(sent), arrive: time.UnixMilli(got.At)}, err == nil && word == e.word
}

// ticks returns what an application got from the other.
func (e *exchange) ticks(at, from *app) []tick {
	var ticks []tick
	for _, line := range at.Lines() {
		if got, ok := parseEvent(line); ok {
			if message, ok := e.tick(got, from); ok {
				ticks = append(ticks, message)
			}
		}
	}
	return ticks
}

// oneWay is how the messages of one direction fared.
type oneWay struct {
	from, to       string
	sent, received int
	twice          int
	latest         time.Duration // the longest way of a message
	gap            time.Duration // the longest time without an arrival
}

func (e *exchange) heard(at, from *app, sent int) oneWay {
	way := oneWay{from: from.name, to: at.name, sent: sent}
	seen := map[int]bool{}
	var last time.Time
	for _, got := range e.ticks(at, from) {
		if seen[got.number] {
			way.twice++
			continue
		}
		seen[got.number] = true
		way.received++
		way.latest = max(way.latest, got.arrive.Sub(got.sent))
		if !last.IsZero() {
			way.gap = max(way.gap, got.arrive.Sub(last))
		}
		last = got.arrive
	}
	return way
}

func (w oneWay) String() string {
	return fmt.Sprintf("%s -> %s: sent %d, received %d, latest arrival after %v, longest gap %v", w.from, w.to, w.sent, w.received, w.latest, w.gap)
}

// traffic is an exchange that is over.
type traffic []oneWay

func (ways traffic) String() string {
	lines := make([]string, len(ways))
	for i, way := range ways {
		lines[i] = way.String()
	}
	return strings.Join(lines, "; ")
}

// complete is nil if every message arrived, once.
func (ways traffic) complete() error {
	var all error
	for _, way := range ways {
		if way.received != way.sent || way.twice > 0 {
			all = errors.Join(all, fmt.Errorf("%v, %d twice: want all, once", way, way.twice))
		}
	}
	return all
}

// undisturbed is nil if every message arrived, once and in time. The processors
// must have nothing else to do.
func (ways traffic) undisturbed() error {
	all := ways.complete()
	for _, way := range ways {
		if way.latest > latestArrival {
			all = errors.Join(all, fmt.Errorf("%v: want each within %v", way, latestArrival))
		}
	}
	return all
}
