package budget

import (
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// TestPlanAddsUp: what is planned is there, and everybody gets something.
func TestPlanAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{
			Descriptors: rapid.IntRange(64, maxDescriptors).Draw(t, "descriptors"),
			Memory:      rapid.SampledFrom([]int64{0, 64 << 20, 512 << 20, 64 << 30}).Draw(t, "memory"),
		}
		p := NewPlan(limits)
		if p.Own+p.Operators+p.Nodes > limits.Descriptors {
			t.Fatalf("more is planned than there is: %s", p)
		}
		if p.Own < ownDescriptors || p.Operators < operatorDescriptors || p.Nodes < 10 || p.Strangers < 4 || p.Unfinished < minUnfinishedMemory {
			t.Fatalf("too little: %s", p)
		}
		if limits.Memory > 0 && int64(p.Nodes)*connMemory > max(limits.Memory/2, 16*connMemory) {
			t.Fatalf("nodes get more memory than there is: %s", p)
		}
	})
}

func TestGroupMemory(t *testing.T) {
	for name, test := range map[string]struct {
		files  map[string]string
		groups string
		want   int64
	}{
		"none":                  {nil, "0::/\n", 0},
		"no limit":              {map[string]string{"memory.max": "max\n"}, "0::/\n", 0},
		"its own":               {map[string]string{"a/b/memory.max": "1000\n", "a/memory.max": "max\n"}, "0::/a/b\n", 1000},
		"one above it":          {map[string]string{"a/b/memory.max": "1000\n", "a/memory.max": "500\n"}, "0::/a/b\n", 500},
		"a container":           {map[string]string{"memory.max": "2000\n"}, "0::/pods/x\n", 2000},
		"version 1":             {map[string]string{"memory/a/memory.limit_in_bytes": "3000\n"}, "4:cpu,memory:/a\n3:pids:/a\n", 3000},
		"version 1, no limit":   {map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "4:memory:/a\n", 0},
		"another version 1":     {map[string]string{"memory/a/memory.limit_in_bytes": "3000\n"}, "4:memory_other:/a\n", 0},
		"not a number, no line": {map[string]string{"memory.max": "much\n"}, "0::/\nx\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, content := range test.files {
				path := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := groupMemory(root, test.groups); got != test.want {
				t.Errorf("limit %d, want %d", got, test.want)
			}
		})
	}
}
