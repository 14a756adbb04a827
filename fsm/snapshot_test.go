package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// smallSnapshot is a snapshot with at least one record of each common kind.
func smallSnapshot(t tester) []byte {
	h := meshed(t)
	h.register("a", "n1")
	b := h.register("b", "n1")
	h.announce(b, appName("x", 1), appName("y", 1))
	h.withdraw(b, appName("y", 1))
	h.lose(SessionName{ReplicaID: "r", BootID: "b", Counter: 1})
	return snapshotBytes(t, h.store)
}

// target is a store that damaged snapshots are restored to.
type target struct {
	*Store
	// buffer is large enough for ReadSnapshot to take it instead of making its
	// own, so that a small snapshot can be read thousands of times.
	buffer *bufio.Reader
}

func newTarget(store *Store) target { return target{store, bufio.NewReaderSize(nil, snapshotBuffer)} }

// refuses checks that the store refuses a damaged snapshot and stays as it was.
func (s target) refuses(t *testing.T, damaged []byte, what string) {
	t.Helper()
	before := s.View()
	s.buffer.Reset(bytes.NewReader(damaged))
	if err := s.Restore(s.buffer); !errors.Is(err, ErrSnapshot) {
		t.Fatalf("%s: %v", what, err)
	}
	if s.View() != before {
		t.Fatalf("%s: refused, and yet the state changed", what)
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	data := smallSnapshot(t)
	store := newTarget(star(t).store)
	want := snapshotBytes(t, store.Store)
	for at := range data {
		for bit := range 8 {
			data[at] ^= 1 << bit
			store.refuses(t, data, "flipped bit")
			data[at] ^= 1 << bit
		}
	}
	if !bytes.Equal(snapshotBytes(t, store.Store), want) {
		t.Error("the state changed")
	}
	if err := store.Restore(bytes.NewReader(data)); err != nil {
		t.Errorf("the undamaged snapshot: %v", err)
	}
}

func TestEveryTruncationIsNoticed(t *testing.T) {
	data := smallSnapshot(t)
	store := newTarget(star(t).store)
	for length := range data {
		store.refuses(t, data[:length], "truncated")
	}
}

// framed writes a snapshot whose checksums are right, whatever is in it.
func framed(header *slimcppb.SnapshotHeader, records ...[]byte) []byte {
	var buffer bytes.Buffer
	out := &frameWriter{w: &buffer, sum: sha256.New()}
	out.raw([]byte(snapshotMagic))
	out.frame(header)
	for _, record := range records {
		message := &slimcppb.SnapshotRecord{}
		message.ProtoReflect().SetUnknown(record) // written as it is
		out.frame(message)
	}
	out.raw(make([]byte, 4))
	out.frame(&slimcppb.SnapshotTrailer{Records: uint64(len(records)), Sha256: out.sum.Sum(nil)})
	return buffer.Bytes()
}

func goodHeader() *slimcppb.SnapshotHeader {
	return &slimcppb.SnapshotHeader{Format: snapshotFormat, Schema: SchemaVersion, ClusterId: "c", Generation: 1, Index: 9, Term: 2}
}

func marshalRecord(t tester, record *slimcppb.SnapshotRecord) []byte {
	t.Helper()
	data, err := proto.Marshal(record)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	return data
}

func stateRecord() *slimcppb.SnapshotRecord {
	return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_State{State: &slimcppb.StateRecord{ClockUnixNanos: 5}}}
}

func nodeRecord(node *slimcppb.NodeRecord) *slimcppb.SnapshotRecord {
	return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Node{Node: node}}
}

func linkRecord(link *slimcppb.LinkRecord) *slimcppb.SnapshotRecord {
	return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Link{Link: link}}
}

func nameRecord(name *slimcppb.NameRecord) *slimcppb.SnapshotRecord {
	return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Name{Name: name}}
}

func TestASnapshotOfAnotherFormatIsRefused(t *testing.T) {
	state := marshalRecord(t, stateRecord())
	store := newTarget(New())
	if err := store.Restore(bytes.NewReader(framed(goodHeader(), state))); err != nil {
		t.Fatalf("a good one: %v", err)
	}
	equal(t, "index", store.View().Index(), 9)

	newerFormat, newerSchema := goodHeader(), goodHeader()
	newerFormat.Format++
	newerSchema.Schema++
	store.refuses(t, framed(newerFormat, state), "newer format")
	store.refuses(t, framed(newerSchema, state), "newer schema")
	store.refuses(t, framed(&slimcppb.SnapshotHeader{}, state), "empty header")
	store.refuses(t, nil, "nothing")
	store.refuses(t, []byte("database disk image"), "something else")
	store.refuses(t, framed(goodHeader()), "no state record")
	store.refuses(t, framed(goodHeader(), nil, state), "an empty record")
	store.refuses(t, framed(goodHeader(), state, []byte{0xff, 0xff}), "a record that is no message")
	store.refuses(t, framed(goodHeader(), state, []byte{0xfa, 0x3e, 0x00}), "a record of an unknown kind")
}

// Checksums that are right do not make a state that cannot be.
func TestASnapshotThatContradictsItselfIsRefused(t *testing.T) {
	session := func(counter uint64) *slimcppb.SessionName {
		return &slimcppb.SessionName{ReplicaId: "r", BootId: "b", Counter: counter}
	}
	node := func(group, id string, counter uint64) *slimcppb.NodeRecord {
		return &slimcppb.NodeRecord{
			NodeId: NodeID(group, id), Group: group, Node: id, State: uint32(NodePresent),
			Sessions: []*slimcppb.SessionRecord{{Session: session(counter), Epoch: counter}},
		}
	}
	link := func() *slimcppb.LinkRecord {
		return &slimcppb.LinkRecord{
			LinkId: "l", SourceNodeId: "a/n1", SourceGroup: "a", DestGroup: "b", Status: uint32(LinkPending),
		}
	}
	fleet := &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Fleet{Fleet: mesh().GetSetFleetConfig().GetConfig()}}
	base := []*slimcppb.SnapshotRecord{stateRecord(), fleet, nodeRecord(node("a", "n1", 1)), nodeRecord(node("b", "n1", 2))}
	load := func(more ...*slimcppb.SnapshotRecord) error {
		var records [][]byte
		for _, record := range append(append([]*slimcppb.SnapshotRecord{}, base...), more...) {
			records = append(records, marshalRecord(t, record))
		}
		return New().Restore(bytes.NewReader(framed(goodHeader(), records...)))
	}
	if err := load(linkRecord(link())); err != nil {
		t.Fatalf("a good one: %v", err)
	}

	inside, twice, applied, nobody, stranger := link(), link(), link(), link(), link()
	inside.DestGroup = "a"
	twice.LinkId = "other"
	applied.Status = uint32(LinkApplied)
	nobody.SourceNodeId = "a/n9"
	stranger.DestGroup = "c"
	badID, wrongID, noSession := node("c", "n1", 3), node("c", "n1", 3), node("c", "n1", 3)
	badID.Group, badID.NodeId = "*", "*/n1"
	wrongID.NodeId = "c/other"
	noSession.Sessions = nil
	x := appName("x", 1).Proto()
	for what, more := range map[string][]*slimcppb.SnapshotRecord{
		"a link inside a group":            {linkRecord(inside)},
		"two links of a pair":              {linkRecord(link()), linkRecord(twice)},
		"an applied link without an end":   {linkRecord(applied)},
		"a link of nobody":                 {linkRecord(nobody)},
		"a link that the topology forbids": {linkRecord(stranger)},
		"a malformed id":                   {nodeRecord(badID)},
		"an id that is not the node's":     {nodeRecord(wrongID)},
		"a session of two nodes":           {nodeRecord(node("c", "n1", 2))},
		"a node with neither session":      {nodeRecord(noSession)},
		"a name without a name":            {nameRecord(&slimcppb.NameRecord{})},
		"a name that nobody announces":     {nameRecord(&slimcppb.NameRecord{Name: x})},
		"a name that an absent node has":   {nameRecord(&slimcppb.NameRecord{Name: x, Announcers: []*slimcppb.AnnouncerRecord{{NodeId: "c/n1", Group: "c"}}})},
		"a name that another group has":    {nameRecord(&slimcppb.NameRecord{Name: x, Announcers: []*slimcppb.AnnouncerRecord{{NodeId: "a/n1", Group: "b"}}})},
		"announcers that are not in order": {nameRecord(&slimcppb.NameRecord{Name: x, Announcers: []*slimcppb.AnnouncerRecord{{NodeId: "a/n1", Group: "a", FirstIndex: 2}, {NodeId: "b/n1", Group: "b", FirstIndex: 1}}})},
		"an announcer that is buried as well": {
			nameRecord(&slimcppb.NameRecord{Name: x, Announcers: []*slimcppb.AnnouncerRecord{{NodeId: "a/n1", Group: "a"}}}),
			{Record: &slimcppb.SnapshotRecord_Tombstone{Tombstone: &slimcppb.TombstoneRecord{Name: x, NodeId: "a/n1", Group: "a"}}},
		},
	} {
		if err := load(more...); !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestARestoredStoreGoesOn(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	x := appName("x", 1)
	h.announce(sessions["a"], x)
	before := h.view()
	feed := h.store.Subscribe()
	defer feed.Close()
	if _, _, err := feed.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.store.Restore(bytes.NewReader(snapshotBytes(t, h.store))); err != nil {
		t.Fatal(err)
	}
	// Readers are told that anything may have changed.
	changes, view, err := feed.Next(t.Context())
	if err != nil || !changes.All || view != h.view() || view == before {
		t.Errorf("the feed says %+v, %v", changes, err)
	}
	h.expectForwards(x, map[string][]string{"b/n1": {"a"}})
	equal(t, "link", h.between("a", "b"), func() *Link { link, _ := before.LinkBetween("a", "b"); return link }())
	h.announce(sessions["b"], x)
	h.register("c", "n1")
	h.check()
}

// A snapshot shows the state when it was taken, however long it takes to write.
func TestASnapshotIsOfTheMomentItWasTaken(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	captured := h.store.Capture()
	want := snapshotBytes(t, h.store)
	h.announce(sessions["a"], appName("x", 1))
	h.depart("b/n1", sessions["b"])
	var late bytes.Buffer
	if err := captured.Write(&late); err != nil || !bytes.Equal(late.Bytes(), want) {
		t.Errorf("written later it differs (%v)", err)
	}
	equal(t, "index", captured.Index()+3, h.view().Index())
}

type failingWriter struct{ after int }

var errDiskFull = errors.New("disk full")

func (w *failingWriter) Write(data []byte) (int, error) {
	if w.after -= len(data); w.after < 0 {
		return 0, errDiskFull
	}
	return len(data), nil
}

func TestAWriteErrorIsReported(t *testing.T) {
	h := meshed(t)
	sessions := h.fleetOf("a", "b")
	var names []Name
	for i := range 256 {
		names = append(names, appName("x", byte(i)))
	}
	for range 3 {
		h.announce(sessions["a"], names...)
	}
	size := len(snapshotBytes(t, h.store))
	for _, after := range []int{0, size / 2, size - 1} {
		if err := h.store.Capture().Write(&failingWriter{after: after}); !errors.Is(err, errDiskFull) {
			t.Errorf("after %d bytes: %v", after, err)
		}
	}
	if err := h.store.Capture().Write(&failingWriter{after: size}); err != nil {
		t.Error(err)
	}
}

type failingReader struct {
	r io.Reader
}

func (r failingReader) Read(data []byte) (int, error) {
	n, err := r.r.Read(data)
	if err == io.EOF {
		err = errDiskFull
	}
	return n, err
}

func TestAReadErrorIsReported(t *testing.T) {
	data := smallSnapshot(t)
	store := New()
	err := store.Restore(failingReader{bytes.NewReader(data[:len(data)/2])})
	if !errors.Is(err, ErrSnapshot) || !errors.Is(err, errDiskFull) {
		t.Errorf("%v", err)
	}
}
