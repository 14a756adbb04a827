package cluster

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
)

// sealBytes is the length of a checksum.
const sealBytes = 8

// sealedLogs is a log store that keeps a checksum beside each entry. Neither bbolt
// nor the library does: an entry with a flipped bit may be another valid command,
// and what was acknowledged would be gone without a word. It is the entry's
// extension, which the library uses for nothing else; an entry without one was
// written before there were checksums.
type sealedLogs struct {
	raft.LogStore
}

func (s sealedLogs) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs does not change the logs, which the library reads meanwhile.
func (s sealedLogs) StoreLogs(logs []*raft.Log) error {
	sealed := make([]*raft.Log, len(logs))
	for i, log := range logs {
		copied := *log
		copied.Extensions = binary.BigEndian.AppendUint64(nil, checksum(log))
		sealed[i] = &copied
	}
	return s.LogStore.StoreLogs(sealed)
}

// GetLog returns ErrStoreFailed for an entry that is not what was stored.
func (s sealedLogs) GetLog(index uint64, log *raft.Log) error {
	if err := s.LogStore.GetLog(index, log); err != nil {
		return err
	}
	seal := log.Extensions
	log.Extensions = nil
	if len(seal) == 0 && log.Index == index {
		return nil
	}
	if len(seal) != sealBytes || log.Index != index || binary.BigEndian.Uint64(seal) != checksum(log) {
		return fmt.Errorf("%w: log entry %d is damaged", ErrStoreFailed, index)
	}
	return nil
}

// checksum covers all that replicas agree on.
func checksum(log *raft.Log) uint64 {
	var head [17]byte
	binary.BigEndian.PutUint64(head[:], log.Index)
	binary.BigEndian.PutUint64(head[8:], log.Term)
	head[16] = byte(log.Type)
	digest := xxhash.New()
	_, _ = digest.Write(head[:])
	_, _ = digest.Write(log.Data)
	return digest.Sum64()
}
