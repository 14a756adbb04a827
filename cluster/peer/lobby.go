package peer

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxGuests bounds the connections that have not been answered yet, where the
	// options do not. One host has half of them: nobody fills the lobby alone.
	maxGuests = 1024
	// grace is what a guest has for each step before it may be pushed out. The port
	// waits for that, so it accepts some 2,500 connections a second from a crowded
	// host: strangers that come again at once cost less, and replicas behind them
	// in the backlog get in soon.
	grace = 200 * time.Millisecond
	// hostBitsIPv6 is the length of the prefix that counts as one host: whoever
	// has an IPv6 address mostly has all of its /64.
	hostBitsIPv6 = 64
)

// lobby holds the accepted connections that have not been answered yet. Anybody
// who reaches the port can open them, so the lobby makes room instead of
// refusing a newcomer, who may be a replica: a full lobby kept sshd's users out
// (CVE-2010-5107).
type lobby struct {
	limit int

	mu      sync.Mutex
	total   int
	hosts   map[string]int       // guests
	classes map[class]*list.List // of *guest, the oldest in front; none is empty
}

// class is what guests compete in: the host they come from, and how far they
// have come. Those who stall fill one class and push each other out, while a
// replica, in the one before or behind, gets on.
type class struct {
	host  string
	stage stage
}

type stage int

const (
	silent   stage = iota // not a byte has come
	speaking              // some have
	// verified: the certificate is, or without TLS the hello is complete. Such a
	// guest is never pushed out; its time is bounded.
	verified
)

// guest is a connection in the lobby. Read is for one goroutine at a time.
type guest struct {
	net.Conn
	lobby *lobby
	spoke bool // Read's

	// The lobby's.
	class class
	place *list.Element // nil: not in the lobby any more
	since time.Time     // in the class
}

// Read implements net.Conn.
func (g *guest) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if n > 0 && !g.spoke {
		g.spoke = true
		g.lobby.advance(g, speaking)
	}
	return n, err
}

func newLobby(limit int) *lobby {
	return &lobby{limit: limit, hosts: map[string]int{}, classes: map[class]*list.List{}}
}

// admission is what became of a newcomer.
type admission struct {
	guest   *guest        // nil: it was not taken in
	evicted *guest        // closed to make room
	wait    time.Duration // until it may be tried again; 0: it has to be closed
}

// enter takes a connection in. If there is no room, it closes the guest that has
// waited longest in the fullest class, of the same host if that host has its
// share. Verified guests stay: if there are no others, nobody is taken in.
func (l *lobby) enter(conn net.Conn) admission {
	host := hostOf(conn.RemoteAddr().String())
	l.mu.Lock()
	defer l.mu.Unlock()
	result := admission{guest: &guest{Conn: conn, lobby: l}}
	if perHost := l.hosts[host] >= max(1, l.limit/2); perHost || l.total >= l.limit {
		oldest := l.oldest(func(c class) bool { return !perHost || c.host == host })
		if oldest == nil {
			return admission{}
		}
		if wait := grace - time.Since(oldest.since); wait > 0 {
			return admission{wait: wait}
		}
		l.remove(oldest)
		_ = oldest.Close()
		result.evicted = oldest
	}
	l.add(result.guest, class{host: host, stage: silent})
	return result
}

// oldest returns the guest that has been longest in the fullest class. Nil:
// nobody may be pushed out.
func (l *lobby) oldest(eligible func(class) bool) *guest {
	var found *guest
	most := 0
	for class, guests := range l.classes {
		first := guests.Front().Value.(*guest)
		switch {
		case class.stage == verified || !eligible(class):
		case guests.Len() > most, guests.Len() == most && first.since.Before(found.since):
			found, most = first, guests.Len()
		}
	}
	return found
}

// advance notes how far a guest has come.
func (l *lobby) advance(g *guest, stage stage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.place == nil || g.class.stage >= stage {
		return
	}
	class := class{host: g.class.host, stage: stage}
	l.remove(g)
	l.add(g, class)
}

// leave lets a guest out. False: it was pushed out before.
func (l *lobby) leave(g *guest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.place == nil {
		return false
	}
	l.remove(g)
	return true
}

func (l *lobby) add(g *guest, class class) {
	guests, ok := l.classes[class]
	if !ok {
		guests = list.New()
		l.classes[class] = guests
	}
	g.class, g.since = class, time.Now()
	g.place = guests.PushBack(g)
	l.hosts[class.host]++
	l.total++
}

func (l *lobby) remove(g *guest) {
	guests := l.classes[g.class]
	guests.Remove(g.place)
	g.place = nil
	if guests.Len() == 0 {
		delete(l.classes, g.class)
	}
	l.total--
	if l.hosts[g.class.host]--; l.hosts[g.class.host] == 0 {
		delete(l.hosts, g.class.host)
	}
}

// hostOf returns what a connection's remote address counts for.
func hostOf(remote string) string {
	address, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	host := address.Addr().Unmap().WithZone("")
	if host.Is4() {
		return host.String()
	}
	prefix, err := host.Prefix(hostBitsIPv6)
	if err != nil {
		return host.String()
	}
	return prefix.String()
}
