package load_test

import (
	"bytes"
	"fmt"
	"os"
)

// peakMemory returns the largest resident set of this process so far, in bytes,
// where the system tells. Getrusage would count that of the parent as well.
func peakMemory() (uint64, bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	_, after, found := bytes.Cut(status, []byte("VmHWM:"))
	if !found {
		return 0, false
	}
	var kibibytes uint64
	if _, err := fmt.Sscanf(string(after), "%d kB", &kibibytes); err != nil {
		return 0, false
	}
	return kibibytes << 10, true
}
