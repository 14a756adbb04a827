package budget

import (
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// openTimeout is how long a connection may be without a stream: who has
	// something to say opens one at once.
	openTimeout = 20 * time.Second
	// sweepPeriod is how often the connections are looked through.
	sweepPeriod = time.Second
	// MaxBeforeRegistration is how many bytes are read from a connection before a
	// node has registered on it.
	MaxBeforeRegistration = 4 << 20
	// freeBytes of each connection do not count for the bound of all: a registration
	// of usual size is never held up by what others send.
	freeBytes = 32 << 10
)

// errTooMuch ends a connection.
var errTooMuch = errors.New("too much was sent before a registration")

// Connections are those that one kind of client has open, bounded in number and in
// what they may send before they are trusted. Create it with NewConnections.
type Connections struct {
	limit      int
	unfinished int // bytes of all together before registrations; 0: not bounded

	mu       sync.Mutex
	open     map[*Conn]struct{}
	spent    int           // of unfinished
	room     chan struct{} // closed and replaced when something was given back
	full     bool          // until there are clearly fewer than the limit
	changed  chan struct{} // holds a token when full has changed
	sweeping bool
	counters Counters
}

// Counters are what happened to the connections of one kind.
type Counters struct {
	Open       int    // now
	Unfinished int    // bytes that unregistered connections hold now, beyond their free ones
	Idle       uint64 // closed for lack of a stream
	TooMuch    uint64 // closed for what they sent before a registration
	Held       uint64 // reads that had to wait for others' unfinished requests
	Full       uint64 // times that the limit was reached
}

// NewConnections bounds the number of connections, and the bytes of those that
// have not registered (0: they are not bounded).
func NewConnections(limit, unfinished int) *Connections {
	return &Connections{
		limit: limit, unfinished: unfinished, open: map[*Conn]struct{}{},
		room: make(chan struct{}), changed: make(chan struct{}, 1),
	}
}

// Counters returns the counters.
func (c *Connections) Counters() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	counters := c.counters
	counters.Open, counters.Unfinished = len(c.open), c.spent
	return counters
}

// Full reports whether newcomers should go elsewhere: from when all but a reserve
// of the connections are in use until there is room again.
func (c *Connections) Full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.full
}

// Changed gets a value when Full changes.
func (c *Connections) Changed() <-chan struct{} { return c.changed }

// Reserve is how many connections may still come when Full begins: those that wait
// to be accepted then.
func (c *Connections) Reserve() int { return max(1, c.limit/4) }

// update judges full again. c.mu is held.
func (c *Connections) update() {
	before, most := c.full, max(1, c.limit-c.Reserve())
	switch {
	case len(c.open) >= most:
		c.full = true
	case len(c.open) < max(1, most-most/8):
		c.full = false
	}
	if c.full == before {
		return
	}
	if c.full {
		c.counters.Full++
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// add begins to count a connection.
func (c *Connections) add(conn net.Conn) *Conn {
	added := &Conn{Conn: conn, of: c, opened: time.Now(), closed: make(chan struct{}), trusted: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[added] = struct{}{}
	c.update()
	if !c.sweeping {
		c.sweeping = true
		time.AfterFunc(sweepPeriod, c.sweep)
	}
	return added
}

// remove ends the counting of a connection.
func (c *Connections) remove(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
	c.giveBack(conn)
	c.update()
	c.freed()
}

// giveBack ends the charge of a connection. c.mu is held.
func (c *Connections) giveBack(conn *Conn) {
	c.spent -= conn.charged
	conn.charged = 0
}

// freed wakes who waits for room. c.mu is held.
func (c *Connections) freed() {
	close(c.room)
	c.room = make(chan struct{})
}

// sweep closes connections that opened no stream in time, and, while something
// runs out, those that have none any more. It runs while there are connections.
func (c *Connections) sweep() {
	c.mu.Lock()
	short := c.full || len(c.open) >= c.limit || c.unfinished > 0 && c.spent >= c.unfinished
	var idle []*Conn
	for conn := range c.open {
		if conn.registered || conn.streams > 0 || time.Since(conn.opened) < openTimeout {
			continue
		}
		if !conn.used || short {
			idle = append(idle, conn)
		}
	}
	c.counters.Idle += uint64(len(idle))
	c.sweeping = len(c.open) > 0
	if c.sweeping {
		time.AfterFunc(sweepPeriod, c.sweep)
	}
	c.mu.Unlock()
	for _, conn := range idle {
		go func() { _ = conn.Close() }() // TLS may have a goodbye to say
	}
}

// waitRoom returns when there are fewer connections than the limit, or the channel
// is closed.
func (c *Connections) waitRoom(closed <-chan struct{}) {
	for {
		c.mu.Lock()
		room, under := c.room, len(c.open) < c.limit
		c.mu.Unlock()
		if under {
			return
		}
		select {
		case <-room:
		case <-closed:
			return
		}
	}
}
