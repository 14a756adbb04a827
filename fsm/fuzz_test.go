package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// splitRecords cuts fuzzed bytes into records, each behind a length of two bytes,
// so that the fuzzer gets past the checksums.
func splitRecords(data []byte) [][]byte {
	var records [][]byte
	for len(data) >= 2 {
		length := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
		records = append(records, data[2:2+length])
		data = data[2+length:]
	}
	return records
}

func joinRecords(records [][]byte) []byte {
	var data []byte
	for _, record := range records {
		data = binary.BigEndian.AppendUint16(data, uint16(len(record)))
		data = append(data, record...)
	}
	return data
}

// FuzzReadSnapshot reads snapshots of any bytes and, with checksums that are
// right, of any records. It does not panic; what it accepts holds the invariants,
// is written in one form, and can be read again.
func FuzzReadSnapshot(f *testing.F) {
	golden := goldenSnapshot(f)
	f.Add(golden, false)
	f.Add(smallSnapshot(f), false)
	snapshot, err := ReadSnapshot(bytes.NewReader(golden))
	if err != nil {
		f.Fatal(err)
	}
	var records [][]byte
	for record := range snapshot.tables.records() {
		records = append(records, marshalRecord(f, record))
	}
	f.Add(joinRecords(records), true)
	f.Fuzz(func(t *testing.T, data []byte, records bool) {
		if records {
			data = framed(goodHeader(), splitRecords(data)...)
		}
		store := New()
		before := store.View()
		if err := store.Restore(bytes.NewReader(data)); err != nil {
			if !errors.Is(err, ErrSnapshot) || store.View() != before {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if err := store.View().Check(); err != nil {
			t.Fatalf("accepted, and yet: %v", err)
		}
		written := snapshotBytes(t, store)
		again := New()
		if err := again.Restore(bytes.NewReader(written)); err != nil {
			t.Fatalf("what was written is refused: %v", err)
		}
		if !bytes.Equal(snapshotBytes(t, again), written) {
			t.Fatal("written again it differs")
		}
	})
}
