package southbound_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// blackHole is a connection over which nothing arrives any more once it is cut, and
// that says nothing of it.
type blackHole struct {
	net.Conn
	cut *atomic.Bool
}

func (b blackHole) Read(p []byte) (int, error) {
	for {
		n, err := b.Conn.Read(p)
		if err != nil || !b.cut.Load() {
			return n, err
		}
	}
}

func (b blackHole) Write(p []byte) (int, error) {
	if b.cut.Load() {
		return len(p), nil
	}
	return b.Conn.Write(p)
}

// B-36: of a node whose machine is gone without a word the session ends within 40 s.
func TestHalfOpenStreamIsNoticed(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		var cut atomic.Bool
		r.wrap = func(conn net.Conn) net.Conn { return blackHole{Conn: conn, cut: &cut} }
		r.join("a", "1")
		r.wrap = nil
		r.join("a", "2")
		pass(3*time.Minute + time.Second) // they live, and have just been pinged
		for _, id := range []string{"a/1", "a/2"} {
			if node, _ := r.replica.store.View().Node(id); !node.Connected() {
				t.Fatalf("%s lost its session without a cause", id)
			}
		}
		cut.Store(true)
		pass(40 * time.Second)
		if node, _ := r.replica.store.View().Node("a/1"); node.Connected() {
			t.Error("the session of the one that is gone is still there")
		}
		if node, _ := r.replica.store.View().Node("a/2"); !node.Connected() {
			t.Error("the other one lost its session")
		}
	})
}

// HTTP/2 on the wire: a frame is a length of three bytes, a type, flags, a stream and
// the content.
const (
	clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7
	flagAck       = 1
	frameHeader   = 9
)

func frame(kind, flags byte, content string) []byte {
	header := binary.BigEndian.AppendUint32(nil, uint32(len(content))<<8|uint32(kind))
	return append(append(header, flags, 0, 0, 0, 0), content...)
}

// B-37: pings every second are answered, for as long as they come, and not taken for
// an attack. No gRPC client of Go pings so often.
func TestPingsOfNodesAreWelcome(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		conn, err := r.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		const pings = 120
		answered := make(chan int, 1)
		go func() {
			answers := 0
			defer func() { answered <- answers }()
			header := make([]byte, frameHeader)
			for answers < pings {
				if _, err := io.ReadFull(conn, header); err != nil {
					return
				}
				length := int64(binary.BigEndian.Uint32(header) >> 8)
				if _, err := io.CopyN(io.Discard, conn, length); err != nil || header[3] == frameGoAway {
					return
				}
				if header[3] == framePing && header[4] == flagAck {
					answers++
				}
			}
		}()
		if _, err := conn.Write(append([]byte(clientPreface), frame(frameSettings, 0, "")...)); err != nil {
			t.Fatal(err)
		}
		for range pings {
			if _, err := conn.Write(frame(framePing, 0, "12345678")); err != nil {
				break
			}
			pass(time.Second)
		}
		if answers := <-answered; answers != pings {
			t.Errorf("%d of %d pings were answered", answers, pings)
		}
	})
}
