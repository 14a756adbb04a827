package peer

import (
	"fmt"
	"net"
	"testing"

	"pgregory.net/rapid"
)

type hostAddr string

func (a hostAddr) Network() string { return "tcp" }
func (a hostAddr) String() string  { return string(a) }

// caller is a connection that only has an address.
type caller struct {
	net.Conn
	from   string
	closed bool
}

func (c *caller) RemoteAddr() net.Addr { return hostAddr(c.from) }
func (c *caller) Close() error {
	c.closed = true
	return nil
}

// Whatever comes, the lobby keeps its bounds; somebody makes room after the grace
// unless all are verified; and who makes room is of the fullest class.
func TestLobbyKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLobby(maxGuests)
		var guests []*guest
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			host := fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 5).Draw(t, "host"))
			count := rapid.IntRange(1, 300).Draw(t, "count")
			reached := stage(rapid.IntRange(int(silent), int(verified)).Draw(t, "stage"))
			leaving := rapid.Bool().Draw(t, "leaving")
			for range count {
				if g := comeIn(t, l, host); g != nil {
					l.advance(g, reached)
					guests = append(guests, g)
				}
			}
			for i := 0; leaving && i < len(guests); i += 2 {
				pushedOut := guests[i].place == nil
				if l.leave(guests[i]) == pushedOut {
					t.Fatal("a guest was let out twice, or not at all")
				}
			}
		}
	})
}

// age lets the grace of all guests pass.
func age(l *lobby) {
	for _, guests := range l.classes {
		for place := guests.Front(); place != nil; place = place.Next() {
			g := place.Value.(*guest)
			g.since = g.since.Add(-grace)
		}
	}
}

func comeIn(t *rapid.T, l *lobby, host string) *guest {
	sizes := map[class]int{}
	for class, guests := range l.classes {
		sizes[class] = guests.Len()
	}
	full := l.hosts[host] >= maxGuests/2
	conn := &caller{from: host + ":1"}
	entry := l.enter(conn)
	if entry.wait > 0 {
		age(l)
		entry = l.enter(conn)
	}
	if evicted := entry.evicted; evicted != nil {
		class := evicted.class
		if !evicted.Conn.(*caller).closed || class.stage == verified || full && class.host != host {
			t.Fatalf("%v made room for one from %s", class, host)
		}
		for other, size := range sizes {
			if other.stage != verified && (!full || other.host == host) && size > sizes[class] {
				t.Fatalf("of %d in %v, one made room, though %d are in %v", sizes[class], class, size, other)
			}
		}
	}
	if entry.guest == nil {
		for class := range sizes {
			if class.stage != verified && (!full || class.host == host) {
				t.Fatalf("one from %s was refused, while %v could make room", host, class)
			}
		}
	}
	total, perHost := 0, map[string]int{}
	for class, guests := range l.classes {
		total += guests.Len()
		perHost[class.host] += guests.Len()
	}
	if total > maxGuests || perHost[host] > maxGuests/2 || total != l.total || perHost[host] != l.hosts[host] {
		t.Fatalf("%d guests, %d of %s", total, perHost[host], host)
	}
	return entry.guest
}

func TestHostOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.1.2.3:4":               "10.1.2.3",
		"[::ffff:10.1.2.3]:4":      "10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:7":         "fe80::/64",
		"pipe":                     "pipe",
	} {
		if got := hostOf(remote); got != want {
			t.Errorf("%s counts for %s, want %s", remote, got, want)
		}
	}
}
