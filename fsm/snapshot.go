package fsm

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// A snapshot is: the magic, then frames. A frame is a length and a CRC-32C of
// the message, both 4 bytes little-endian, then the message. The first frame is
// the header, then come the records, then a frame of length zero, then the
// trailer with their count and a SHA-256 of everything before the trailer.
// Two replicas that applied the same log write the same bytes.

const (
	snapshotMagic  = "SLIMCPS\x01"
	snapshotFormat = 1
	// snapshotBuffer is what writing or reading a snapshot holds of it, in bytes,
	// beside the record at hand.
	snapshotBuffer = 64 << 10
	// maxFrame bounds a record, so that a damaged length is no allocation.
	maxFrame = 64 << 20
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// ErrSnapshot is wrapped by the errors of reading a snapshot.
var ErrSnapshot = errors.New("snapshot cannot be read")

// Snapshot is the state at one index, to be written. It costs O(1) to take and
// may be written while the store goes on.
type Snapshot struct{ tables tables }

// Capture returns the state after the last applied entry. It is called by the
// goroutine that applies.
func (s *Store) Capture() *Snapshot { return &Snapshot{tables: s.state.copy()} }

// Index returns the log index of the last command in the snapshot.
func (s *Snapshot) Index() uint64 { return s.tables.meta.Index }

// Write writes the snapshot. It blocks as long as w does.
func (s *Snapshot) Write(w io.Writer) error {
	buffered := bufio.NewWriterSize(w, snapshotBuffer)
	out := &frameWriter{w: buffered, sum: sha256.New()}
	out.raw([]byte(snapshotMagic))
	t := &s.tables
	out.frame(&slimcppb.SnapshotHeader{
		// A binary that knows the active schema can read the snapshot, so that until
		// an upgrade is finalized the old one can come back (protocol X5).
		Format: snapshotFormat, Schema: t.meta.ActiveSchema,
		ClusterId: t.meta.ClusterID, Generation: t.meta.Generation, Index: t.meta.Index, Term: t.meta.Term,
	})
	for record := range t.records() {
		out.frame(record)
		out.records++
	}
	out.raw(make([]byte, 4))
	out.frame(&slimcppb.SnapshotTrailer{Records: out.records, Sha256: out.sum.Sum(nil)})
	if out.err != nil {
		return out.err
	}
	return buffered.Flush()
}

// records yields the state as records, in a fixed order.
func (t *tables) records() iter.Seq[*slimcppb.SnapshotRecord] {
	return func(yield func(*slimcppb.SnapshotRecord) bool) {
		state := &slimcppb.StateRecord{
			ClockUnixNanos: timeToProto(t.meta.Clock),
			LeaderTerm:     t.meta.LeaderTerm, LeaderReplica: t.meta.LeaderReplica, LeaderBoot: t.meta.LeaderBoot,
			TreesRevision: t.meta.TreesRevision, FleetRevision: t.meta.FleetRevision,
		}
		_ = yield(&slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_State{State: state}}) &&
			yield(&slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Fleet{Fleet: t.fleet}}) &&
			(t.rendered == nil ||
				yield(&slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_RenderedSegments{RenderedSegments: t.rendered}})) &&
			each(t.nodes, yield, func(n *Node) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Node{Node: n.proto()}}
			}) &&
			each(t.links, yield, func(l *Link) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Link{Link: l.proto()}}
			}) &&
			each(t.names, yield, func(r *NameRecord) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Name{Name: r.proto()}}
			}) &&
			each(t.tombstones, yield, func(t *Tombstone) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Tombstone{Tombstone: t.proto()}}
			}) &&
			each(t.ended, yield, func(e endedSession) *slimcppb.SnapshotRecord {
				record := &slimcppb.EndedSessionRecord{Session: e.name.Proto(), Index: e.index}
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_EndedSession{EndedSession: record}}
			}) &&
			each(t.segments, yield, func(s *Segment) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Segment{Segment: s.proto()}}
			}) &&
			each(t.secrets, yield, func(s *Secret) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Secret{Secret: s.proto()}}
			}) &&
			each(t.tokens, yield, func(u usedToken) *slimcppb.SnapshotRecord {
				record := &slimcppb.TokenRecord{
					Hash: []byte(u.hash), Session: u.session.Proto(), ExpiresUnixNanos: timeToProto(u.expires),
				}
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Token{Token: record}}
			}) &&
			each(t.replicas, yield, func(r *Replica) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Replica{Replica: r.proto()}}
			}) &&
			each(t.requestOrder, yield, func(r requestByAge) *slimcppb.SnapshotRecord {
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_Request{Request: r.proto()}}
			}) &&
			each(t.unlinked, yield, func(u UnlinkedGroup) *slimcppb.SnapshotRecord {
				record := &slimcppb.UnlinkedGroupRecord{Group: u.Group, NextPeer: u.NextPeer}
				return &slimcppb.SnapshotRecord{Record: &slimcppb.SnapshotRecord_UnlinkedGroup{UnlinkedGroup: record}}
			})
	}
}

func each[T any](records table[T], yield func(*slimcppb.SnapshotRecord) bool, convert func(T) *slimcppb.SnapshotRecord) bool {
	for record := range records.all() {
		if !yield(convert(record)) {
			return false
		}
	}
	return true
}

type frameWriter struct {
	w       io.Writer
	sum     hash.Hash
	records uint64
	err     error
}

func (f *frameWriter) raw(data []byte) {
	if f.err != nil {
		return
	}
	f.sum.Write(data)
	_, f.err = f.w.Write(data)
}

func (f *frameWriter) frame(message proto.Message) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		f.err = errors.Join(f.err, err)
		return
	}
	var head [8]byte
	binary.LittleEndian.PutUint32(head[:4], uint32(len(data)))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(data, crcTable))
	f.raw(head[:])
	f.raw(data)
}

// Restore replaces the state by a snapshot's. The snapshot is read and checked
// completely first; on an error the state stays as it was.
func (s *Store) Restore(r io.Reader) error {
	restored, err := readSnapshot(r, s.known, false)
	if err != nil {
		return err
	}
	s.state = restored.tables
	s.publish(nil)
	return nil
}

// ReadSnapshot reads and judges a whole snapshot that comes from outside. Of a content
// that cannot be a state's the error wraps a StateError, which lists all problems.
func ReadSnapshot(r io.Reader) (*Snapshot, error) { return readSnapshot(r, SchemaVersion, true) }

// readSnapshot reads a snapshot. What the replicas have agreed on already is not judged
// as what comes from outside is: its configuration is active, whatever it says.
func readSnapshot(r io.Reader, known uint32, outside bool) (*Snapshot, error) {
	in := &frameReader{r: bufio.NewReaderSize(r, snapshotBuffer), sum: sha256.New()}
	magic := make([]byte, len(snapshotMagic))
	if err := in.raw(magic); err != nil || string(magic) != snapshotMagic {
		return nil, fmt.Errorf("%w: it does not begin like one", ErrSnapshot)
	}
	header := &slimcppb.SnapshotHeader{}
	if more, err := in.frame(header); err != nil || !more {
		return nil, fmt.Errorf("%w: header: %w", ErrSnapshot, errors.Join(err, io.ErrUnexpectedEOF))
	}
	if header.GetFormat() != snapshotFormat {
		return nil, fmt.Errorf("%w: format %d, this binary reads %d", ErrSnapshot, header.GetFormat(), snapshotFormat)
	}
	if header.GetSchema() > known {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, schemaError("it", header.GetSchema(), known))
	}
	loader := newLoader(header)
	records, err := in.records(loader)
	if err != nil {
		return nil, fmt.Errorf("%w: record %d: %w", ErrSnapshot, records+1, err)
	}
	if err := in.trailer(records); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if err := loader.finish(outside); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return &Snapshot{tables: loader.tables}, nil
}

type frameReader struct {
	r   io.Reader
	sum hash.Hash
}

func (f *frameReader) raw(data []byte) error {
	if _, err := io.ReadFull(f.r, data); err != nil {
		return fmt.Errorf("it ends too early: %w", err)
	}
	f.sum.Write(data)
	return nil
}

// frame reads one message; false is the frame of length zero that ends the
// records.
func (f *frameReader) frame(message proto.Message) (bool, error) {
	var length, checksum [4]byte
	if err := f.raw(length[:]); err != nil {
		return false, err
	}
	size := binary.LittleEndian.Uint32(length[:])
	if size == 0 {
		return false, nil
	}
	if size > maxFrame {
		return false, fmt.Errorf("length %d, at most %d are accepted", size, maxFrame)
	}
	if err := f.raw(checksum[:]); err != nil {
		return false, err
	}
	data, err := io.ReadAll(io.LimitReader(f.r, int64(size))) // grows with what is there
	if err != nil {
		return false, err
	}
	if len(data) != int(size) {
		return false, fmt.Errorf("it ends too early: %w", io.ErrUnexpectedEOF)
	}
	f.sum.Write(data)
	if crc32.Checksum(data, crcTable) != binary.LittleEndian.Uint32(checksum[:]) {
		return false, errors.New("checksum differs")
	}
	return true, proto.Unmarshal(data, message)
}

func (f *frameReader) records(loader *loader) (uint64, error) {
	for count := uint64(0); ; count++ {
		record := &slimcppb.SnapshotRecord{}
		more, err := f.frame(record)
		if err != nil || !more {
			return count, err
		}
		if record.GetRecord() == nil {
			return count, fmt.Errorf("%w in a snapshot", ErrUnknownCommand)
		}
		loader.load(record)
	}
}

func (f *frameReader) trailer(records uint64) error {
	sum := f.sum.Sum(nil)
	trailer := &slimcppb.SnapshotTrailer{}
	if more, err := f.frame(trailer); err != nil || !more {
		return fmt.Errorf("trailer: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	if trailer.GetRecords() != records {
		return fmt.Errorf("trailer counts %d records, there are %d", trailer.GetRecords(), records)
	}
	if string(trailer.GetSha256()) != string(sum) {
		return errors.New("SHA-256 differs")
	}
	if n, _ := io.CopyN(io.Discard, f.r, 1); n > 0 {
		return errors.New("there is something behind the trailer")
	}
	return nil
}
