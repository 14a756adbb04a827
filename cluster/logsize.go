package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// defaultMaxLogBytes bounds the entries of the log together (protocol X6).
	defaultMaxLogBytes = 256 << 20
	// defaultMaxLogBytesInMemory bounds an in-memory log.
	defaultMaxLogBytesInMemory = 64 << 20
	// minMaxLogBytes is the least that may be set: what can be in flight, several
	// times.
	minMaxLogBytes = 32 << 20
	// logSpanBytes of consecutive entries are counted together.
	logSpanBytes = 128 << 10
	// entryOverheadBytes is what an entry needs beside its data.
	entryOverheadBytes = 128
	// logSizePeriod is how often the log's size is looked at. It bounds how far
	// the log grows beyond what makes a snapshot due.
	logSizePeriod = time.Second
	// logSizePauses are the periods to wait after a snapshot that did not shorten the
	// log enough.
	logSizePauses = 10
	// logSnapshotTimeout is how long a snapshot is waited for.
	logSnapshotTimeout = 10 * time.Minute
)

// logSpan is a run of consecutive entries.
type logSpan struct{ first, last, bytes uint64 }

// logSize knows how many bytes the entries of a log have, and how many of the newest
// entries fit into a number of bytes. The library bounds the log by the number of its
// entries only, and an entry has between 60 bytes and several MiB.
type logSize struct {
	mu    sync.Mutex
	spans []logSpan // in the order of their entries
	total uint64
}

// add counts an entry behind all others. One that is stored again counts again, which
// is never too little.
func (s *logSize) add(index, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total += bytes
	if n := len(s.spans); n > 0 {
		if last := &s.spans[n-1]; last.bytes < logSpanBytes || index <= last.last {
			last.last = max(last.last, index)
			last.bytes += bytes
			return
		}
	}
	s.spans = append(s.spans, logSpan{first: index, last: index, bytes: bytes})
}

// remove takes entries from the beginning or the end, both bounds included. Of a span
// that is cut the bytes are divided evenly.
func (s *logSize) remove(from, to uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := make([]logSpan, 0, len(s.spans))
	total := uint64(0)
	for _, span := range s.spans {
		rest := span
		switch {
		case from <= span.first && to >= span.last:
			continue
		case from <= span.first && to >= span.first:
			rest.first = to + 1
		case from > span.first && from <= span.last:
			rest.last = from - 1
		}
		if rest != span {
			rest.bytes = uint64(float64(span.bytes) / float64(span.last-span.first+1) * float64(rest.last-rest.first+1))
		}
		kept = append(kept, rest)
		total += rest.bytes
	}
	s.spans, s.total = kept, total
}

// bytes returns the bytes of all entries.
func (s *logSize) bytes() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// fitting returns how many of the newest entries have at most so many bytes, to a
// span; at least 1.
func (s *logSize) fitting(bytes uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, sum := uint64(0), uint64(0)
	for i := len(s.spans) - 1; i >= 0; i-- {
		if sum += s.spans[i].bytes; sum > bytes {
			break
		}
		entries = s.spans[len(s.spans)-1].last - s.spans[i].first + 1
	}
	return max(entries, 1)
}

// sizedLogs is a log store whose bytes are counted.
type sizedLogs struct {
	raft.LogStore
	size *logSize
}

func (s sizedLogs) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

func (s sizedLogs) StoreLogs(logs []*raft.Log) error {
	err := s.LogStore.StoreLogs(logs)
	if err == nil {
		for _, log := range logs {
			s.size.add(log.Index, uint64(len(log.Data)+len(log.Extensions)+entryOverheadBytes))
		}
	}
	return err
}

func (s sizedLogs) DeleteRange(from, to uint64) error {
	err := s.LogStore.DeleteRange(from, to)
	if err == nil {
		s.size.remove(from, to)
	}
	return err
}

// boundLog keeps the entries of the log within their bound: when three quarters of it
// are in use it has a snapshot written, behind which half of it stays.
func (r *Replica) boundLog(ctx context.Context) {
	limit := r.options.MaxLogBytes
	trailing := r.options.trailingLogs
	pause := r.options.logSizePeriod
	for {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = r.options.logSizePeriod
		// The library writes snapshots of its own too, by the number of entries.
		wanted := min(r.options.trailingLogs, r.storage.size.fitting(limit/2))
		if r.storage.size.bytes() <= limit/2 {
			wanted = r.options.trailingLogs
		}
		if wanted != trailing {
			if err := r.reloadRaft(func(config *raft.ReloadableConfig) { config.TrailingLogs = wanted }); err != nil {
				r.logger.Warn("the log could not be bounded", "error", err)
			}
			trailing = wanted
		}
		if r.storage.size.bytes() <= limit/4*3 {
			continue
		}
		if r.shortenLog(ctx); r.storage.size.bytes() > limit/4*3 {
			pause *= logSizePauses
		}
	}
}

func (r *Replica) shortenLog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, logSnapshotTimeout)
	defer cancel()
	if err := r.Snapshot(ctx); err != nil && ctx.Err() == nil {
		r.logger.Warn("the log is long, and no snapshot could be written to shorten it", "log_bytes", r.storage.size.bytes(), "error", err)
	}
}
