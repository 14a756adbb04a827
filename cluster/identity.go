package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/google/uuid"
)

const (
	identityFile = "identity.json"
	lockFile     = "lock"
)

// identity is who a replica is. It is drawn with the data directory and never
// changes, whatever the replica is called later.
type identity struct {
	dir string // empty: in memory only

	mu     sync.Mutex
	record identityRecord
}

type identityRecord struct {
	ReplicaID string `json:"replica_id"`
	// ClusterID is empty until the cluster was initialised.
	ClusterID string `json:"cluster_id,omitempty"`
	// Joining is the id of a cluster that the replica is joining: none of its
	// state is here yet.
	Joining string `json:"joining_cluster_id,omitempty"`
	// Boots is the number of the present start. It is written before it is used, so
	// that no two starts have the same one unless the directory was copied, or put back
	// from an older image.
	Boots uint64 `json:"boots,omitempty"`
}

func newIdentity(dir, name string) *identity {
	id := uuid.New()
	return &identity{dir: dir, record: identityRecord{
		ReplicaID: fmt.Sprintf("%s-%x", name, id[:4]),
	}}
}

// loadIdentity returns an error that is fs.ErrNotExist if the directory has no
// identity yet.
func loadIdentity(dir string) (*identity, error) {
	path := filepath.Join(dir, identityFile)
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := &identity{dir: dir}
	if err := json.Unmarshal(content, &i.record); err != nil {
		return nil, fmt.Errorf("%w: %s is damaged: %w", ErrDataDir, path, err)
	}
	if i.record.ReplicaID == "" {
		return nil, fmt.Errorf("%w: %s is damaged: replica_id is missing", ErrDataDir, path)
	}
	return i, nil
}

func (i *identity) replicaID() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record.ReplicaID
}

func (i *identity) clusterID() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record.ClusterID
}

// allegiance returns the id of the cluster that the replica is a member of or is
// joining, empty if there is none.
func (i *identity) allegiance() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return cmp.Or(i.record.ClusterID, i.record.Joining)
}

// joining returns the id of the cluster that the replica is joining, empty if there
// is none.
func (i *identity) joining() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record.Joining
}

// join notes, durably, which cluster the replica is joining; empty: none.
func (i *identity) join(clusterID string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	record := i.record
	record.Joining = clusterID
	if record == i.record {
		return nil
	}
	if err := i.write(record); err != nil {
		return err
	}
	i.record = record
	return nil
}

// boots returns the number of the present start.
func (i *identity) boots() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record.Boots
}

// begin counts a start, durably.
func (i *identity) begin() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	record := i.record
	record.Boots++
	if err := i.write(record); err != nil {
		return err
	}
	i.record = record
	return nil
}

// adopt compares the cluster id of the state with the data directory's. The
// first one that is seen is kept. Two clusters' logs look alike to Raft, which
// would merge them silently.
func (i *identity) adopt(clusterID string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch i.record.ClusterID {
	case clusterID:
		return nil
	case "":
		record := i.record
		if record.Joining != "" && record.Joining != clusterID {
			return fmt.Errorf("%w: the replica is joining cluster %s, its state is that of cluster %q",
				ErrWrongCluster, record.Joining, clusterID)
		}
		record.ClusterID, record.Joining = clusterID, ""
		if err := i.write(record); err != nil {
			return err
		}
		i.record = record
		return nil
	default:
		return fmt.Errorf("%w: the data directory belongs to cluster %s, its state to cluster %q",
			ErrWrongCluster, i.record.ClusterID, clusterID)
	}
}

func (i *identity) write(record identityRecord) error {
	if i.dir == "" {
		return nil
	}
	content, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	if err := writeDurably(filepath.Join(i.dir, identityFile), append(content, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrStoreFailed, err)
	}
	return nil
}

// writeDurably replaces a file so that a crash leaves the old or the new one.
func writeDurably(path string, content []byte) (err error) {
	temporary := path + ".tmp"
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// lockDir keeps other processes out of the data directory until the returned
// file is closed or the process ends.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(file, 32))
		_ = file.Close()
		return nil, fmt.Errorf("%w: %s is in use by another slim-cp (process %s)",
			ErrDataDir, dir, strings.TrimSpace(string(holder)))
	}
	if err == nil {
		err = errors.Join(file.Truncate(0), writeProcessID(file))
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%w: lock %s: %w", ErrDataDir, path, err)
	}
	return file, nil
}

func writeProcessID(file *os.File) error {
	_, err := file.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	return err
}

// makeDir creates the data directory and makes its entry durable.
func makeDir(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%w: %s is not a directory", ErrDataDir, dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = syncDir(filepath.Dir(filepath.Clean(dir)))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDataDir, err)
	}
	return nil
}
