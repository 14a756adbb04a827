package reconciler

import (
	"sync"
	"time"
)

// Lists are what costs a fleet most: each node may list every name of the fleet, and
// after a leader change all of them are to be read. Bounds keep them from pushing
// everything else aside, in the replicas and in the nodes.
const (
	// maxLists and maxListBytes bound the lists that are read at once. One is always
	// read, however large.
	maxLists     = 16
	maxListBytes = 64 << 20
	// nameBytes is what a name costs in a list, roughly, and connectionListBytes what
	// a list of connections costs.
	nameBytes           = 512
	connectionListBytes = 64 << 10
	// A list that has taken listTime makes room for another one, since its node may
	// have fallen silent; maxSlowLists bounds how many of these there are.
	listTime     = 2 * time.Second
	maxSlowLists = 64
)

// listLimiter bounds the lists under way. Drivers ask for a place, and are woken when
// they have one. Nodes that hold links come first: others have no routes to wait for.
type listLimiter struct {
	wake func(nodeID string)

	mu     sync.Mutex
	places map[*driver]*listPlace
	// gateways and others wait, in the order in which they came. Places that wait no
	// more, or not there, are skipped.
	gateways, others []*listPlace
	reading, slow    int
	bytes            int // of those that are read and not slow
}

// listPlace is a driver's place in the line, or among those whose list is read.
type listPlace struct {
	driver  *driver
	gateway bool
	bytes   int
	state   placeState
	timer   *time.Timer // while reading
}

type placeState int

const (
	placeWaiting placeState = iota
	placeReading            // or about to
	placeSlow
	placeLeft
)

func newListLimiter(wake func(nodeID string)) *listLimiter {
	return &listLimiter{wake: wake, places: map[*driver]*listPlace{}}
}

// acquire reports whether the driver may read a list of about that size now. If not,
// it is woken later, and has to ask again. It gives its place back by leave.
func (l *listLimiter) acquire(d *driver, gateway bool, bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	place, ok := l.places[d]
	switch {
	case !ok:
		place = &listPlace{driver: d, gateway: gateway, bytes: bytes}
		l.places[d] = place
		l.enqueue(place)
	case place.state == placeWaiting && gateway && !place.gateway:
		place.gateway = true
		l.enqueue(place)
	}
	l.grant(d)
	return place.state != placeWaiting
}

// leave gives a driver's place back, whatever it is.
func (l *listLimiter) leave(d *driver) {
	l.mu.Lock()
	defer l.mu.Unlock()
	place, ok := l.places[d]
	if !ok {
		return
	}
	delete(l.places, d)
	switch place.state {
	case placeReading:
		place.timer.Stop()
		l.reading--
		l.bytes -= place.bytes
	case placeSlow:
		l.slow--
	}
	place.state = placeLeft
	l.grant(nil)
}

// yield is leave for a driver that was given a place and cannot use it now. One that
// waits keeps its place in the line.
func (l *listLimiter) yield(d *driver) {
	l.mu.Lock()
	place, ok := l.places[d]
	unused := ok && place.state != placeWaiting
	l.mu.Unlock()
	if unused {
		l.leave(d)
	}
}

func (l *listLimiter) enqueue(place *listPlace) {
	if place.gateway {
		l.gateways = append(l.gateways, place)
	} else {
		l.others = append(l.others, place)
	}
}

// grant gives places away while there is room, and wakes who gets one, apart from the
// driver that asks. l.mu is held.
func (l *listLimiter) grant(asking *driver) {
	for {
		place := l.next()
		if place == nil || l.reading > 0 && (l.reading >= maxLists || l.bytes+place.bytes > maxListBytes) {
			return
		}
		place.state = placeReading
		l.reading++
		l.bytes += place.bytes
		place.timer = time.AfterFunc(listTime, func() { l.slowDown(place) })
		if place.driver != asking {
			l.wake(place.driver.id)
		}
	}
}

// next returns who waits longest of the most urgent.
func (l *listLimiter) next() *listPlace {
	for _, line := range []struct {
		places  *[]*listPlace
		gateway bool
	}{{&l.gateways, true}, {&l.others, false}} {
		for len(*line.places) > 0 {
			first := (*line.places)[0]
			if first.state == placeWaiting && first.gateway == line.gateway {
				return first
			}
			(*line.places)[0] = nil
			*line.places = (*line.places)[1:]
		}
	}
	return nil
}

// slowDown makes room for another list behind one that takes long.
func (l *listLimiter) slowDown(place *listPlace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if place.state != placeReading {
		return
	}
	if l.slow >= maxSlowLists {
		place.timer.Reset(listTime)
		return
	}
	place.state = placeSlow
	l.slow++
	l.reading--
	l.bytes -= place.bytes
	l.grant(nil)
}
