package cluster_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// beforeIDs is a connection of which one end is of a version that names no wanted
// replica, counts no starts, and reads neither.
type beforeIDs struct {
	net.Conn
	hello  sync.Once
	answer sync.Once
	rest   io.Reader // of what was read, once the answer was changed
}

// Write implements net.Conn. The first thing that is written is a hello, as a whole.
func (c *beforeIDs) Write(p []byte) (n int, err error) {
	first := false
	c.hello.Do(func() { first = true })
	if !first {
		return c.Conn.Write(p)
	}
	hello := &slimcppb.Hello{}
	if err := proto.Unmarshal(p[8:], hello); err != nil {
		return 0, fmt.Errorf("not a hello: %w", err)
	}
	hello.WantedReplicaId, hello.Boots = "", 0
	frame, err := frameOf(p[:4], hello)
	if err != nil {
		return 0, err
	}
	if _, err := c.Conn.Write(frame); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Read implements net.Conn. The first thing that is read is the answer.
func (c *beforeIDs) Read(p []byte) (n int, err error) {
	c.answer.Do(func() {
		head := make([]byte, 8)
		if _, err = io.ReadFull(c.Conn, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[4:]))
		if _, err = io.ReadFull(c.Conn, body); err != nil {
			return
		}
		answer := &slimcppb.HelloAnswer{}
		if err = proto.Unmarshal(body, answer); err != nil {
			return
		}
		answer.Boots = 0
		var frame []byte
		frame, err = frameOf(head[:4], answer)
		c.rest = io.MultiReader(bytes.NewReader(frame), c.Conn)
	})
	if err != nil || c.rest == nil {
		return 0, fmt.Errorf("no answer: %w", err)
	}
	return c.rest.Read(p)
}

func frameOf(magic []byte, message proto.Message) ([]byte, error) {
	body, err := proto.Marshal(message)
	if err != nil {
		return nil, err
	}
	frame := binary.BigEndian.AppendUint32(append([]byte(nil), magic...), uint32(len(body)))
	return append(frame, body...), nil
}

// setOlder says which replicas are of a version before replicas were known by their
// ids alone: for connections that are made from now on.
func (n *network) setOlder(names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.older = map[string]bool{}
	for _, name := range names {
		n.older[name+":1"] = true
	}
}

// B-114: the replicas are upgraded one after the other, and back: each serves and leads
// beside those of the other version, also when two of them exchange their addresses.
func TestReplicasOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	members := []string{"a", "b", "c"}
	e.network.setOlder(members...)
	e.form(members...)
	for i, older := range [][]string{{"b", "c"}, {"c"}, {}, {"a"}, {"a", "b"}} {
		changed := []string{"a", "b", "c", "a", "b"}[i]
		e.kill(changed)
		e.network.setOlder(older...)
		e.start(changed)
		e.waitVoters(members...)
		e.transfer(changed)
		for _, name := range members {
			e.serves(name, nil)
		}
	}
	e.kill("a")
	e.kill("c")
	e.dirs["a"], e.dirs["c"] = e.dirs["c"], e.dirs["a"]
	e.network.setOlder("b", "c") // with the data goes the version
	e.start("a")
	e.start("c")
	for _, name := range members {
		e.serves(name, nil)
	}
}
