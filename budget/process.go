package budget

import (
	"bufio"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are those of a process.
type Limits struct {
	Descriptors int   // it may have open
	Memory      int64 // bytes; 0: no limit is known
}

// maxDescriptors is as many as are ever planned for.
const maxDescriptors = 1 << 20

// ProcessLimits reads the limits of this process: the soft limit of open files,
// and the least memory that a control group above it allows.
func ProcessLimits() Limits {
	limits := Limits{Descriptors: 1024}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		limits.Descriptors = int(min(files.Cur, maxDescriptors))
	}
	if groups, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		limits.Memory = groupMemory("/sys/fs/cgroup", string(groups))
	}
	return limits
}

// groupMemory returns the least limit of the control groups that the text, a
// /proc/self/cgroup, names below root; 0 if there is none. In a container the names
// may be those outside of it: then only the root is there.
func groupMemory(root, groups string) int64 {
	least := int64(math.MaxInt64)
	lines := bufio.NewScanner(strings.NewReader(groups))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, file := root, "memory.max"
		if parts[1] != "" { // version 1: a hierarchy for each kind
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			base, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		}
		for group := filepath.Clean("/" + parts[2]); ; group = filepath.Dir(group) {
			least = min(least, readLimit(filepath.Join(base, group, file)))
			if group == "/" {
				break
			}
		}
	}
	if least >= math.MaxInt64/2 { // what "no limit" looks like in version 1
		return 0
	}
	return least
}

func readLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return math.MaxInt64
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || limit <= 0 {
		return math.MaxInt64 // "max"
	}
	return limit
}
