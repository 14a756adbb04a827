package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestFindsEachUnexplainedIteration(t *testing.T) {
	const sample = "testdata/sample/sample.go"
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasSuffix(line, "// want") {
			want = append(want, fmt.Sprintf("%s:%d:", sample, i+1))
		}
	}
	found, err := check([]string{"./testdata/sample"})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != len(want) {
		t.Fatalf("found %q, want %q", found, want)
	}
	for i := range want {
		if !strings.Contains(found[i], want[i]) {
			t.Errorf("found %q, want %q", found[i], want[i])
		}
	}
}
