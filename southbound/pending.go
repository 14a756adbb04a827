package southbound

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	slimcppb "github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// maxBatchNames and maxBatchBytes bound one Announce (protocol N5).
	maxBatchNames = 1000
	maxBatchBytes = 256 << 10
	// DefaultMaxPending bounds the names and claims of one stream that wait to be
	// proposed. Beyond it the stream is not read.
	DefaultMaxPending = 100_000
)

// pending holds what a node said and what is not proposed yet: the last word per
// name and per link.
type pending struct {
	// ready holds a token when something was added, room one when something was
	// taken.
	ready, room chan struct{}
	most        int // names and claims

	mu       sync.Mutex
	names    map[fsm.Name]word
	claims   map[string]string // message id by link id
	arrivals []arrival         // each name and claim once, in order of arrival
}

// word is what a node said last of a name.
type word struct {
	withdraw bool
	// doubtful: announced by a replay only, or more than once. Its withdrawal
	// will have to be looked into (protocol N7).
	doubtful bool
	// news: it was withdrawn in between, so the state must hear of it even if it
	// has the announcement.
	news bool
}

// arrival is a place in the order: of a claim, or else of a name.
type arrival struct {
	linkID string
	name   fsm.Name
}

// batch is one proposal: names, or a claim.
type batch struct {
	changes   []*slimcppb.NameChange
	linkID    string
	messageID string
	// flapBytes of the changes are of withdrawals, and of names that came back.
	flapBytes int
}

func newPending(most int) *pending {
	return &pending{
		most:   most,
		ready:  make(chan struct{}, 1),
		room:   make(chan struct{}, 1),
		names:  map[fsm.Name]word{},
		claims: map[string]string{},
	}
}

// announce notes that a node announces a name. It returns false when there is no
// room for it.
func (p *pending) announce(name fsm.Name, replay bool) bool {
	return p.addName(name, func(last word, known bool) word {
		if known && !last.withdraw {
			return word{doubtful: true, news: last.news}
		}
		return word{doubtful: replay, news: known}
	})
}

// withdraw is like announce.
func (p *pending) withdraw(name fsm.Name) bool {
	return p.addName(name, func(word, bool) word { return word{withdraw: true} })
}

func (p *pending) addName(name fsm.Name, next func(last word, known bool) word) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, known := p.names[name]
	if !known {
		if len(p.arrivals) >= p.most {
			return false
		}
		p.arrivals = append(p.arrivals, arrival{name: name})
	}
	p.names[name] = next(last, known)
	notify(p.ready)
	return true
}

// addClaim is like announce.
func (p *pending) addClaim(linkID, messageID string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.claims[linkID]; !known {
		if len(p.arrivals) >= p.most {
			return false
		}
		p.arrivals = append(p.arrivals, arrival{linkID: linkID})
	}
	p.claims[linkID] = messageID
	notify(p.ready)
	return true
}

// waitRoom blocks until something was taken out.
func (p *pending) waitRoom(ctx context.Context) error {
	select {
	case <-p.room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take returns the next proposal, nil if nothing waits. Announcements that
// change nothing are dropped. A claim keeps its place among the names.
func (p *pending) take(unchanged func(fsm.Name) bool) *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer notify(p.room)
	next, size := &batch{}, 0
	for len(p.arrivals) > 0 && len(next.changes) < maxBatchNames {
		head := p.arrivals[0]
		if head.linkID != "" {
			if len(next.changes) > 0 {
				break
			}
			p.drop()
			next.linkID, next.messageID = head.linkID, p.claims[head.linkID]
			delete(p.claims, head.linkID)
			return next
		}
		if said := p.names[head.name]; said.withdraw || said.news || !unchanged(head.name) {
			change := &slimcppb.NameChange{Name: head.name.Proto(), Withdraw: said.withdraw, Replay: said.doubtful}
			bytes := proto.Size(change) + 4
			if size += bytes; size > maxBatchBytes && len(next.changes) > 0 {
				break
			}
			if said.withdraw || said.news {
				next.flapBytes += bytes
			}
			next.changes = append(next.changes, change)
		}
		p.drop()
		delete(p.names, head.name)
	}
	if len(next.changes) == 0 {
		return nil
	}
	return next
}

// drop removes the oldest arrival. p.mu is held.
func (p *pending) drop() {
	p.arrivals[0] = arrival{}
	p.arrivals = p.arrivals[1:]
}

func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
