package reconciler

import (
	"strconv"
	"testing"

	"github.com/slim-cp/slim-cp/fsm"
)

// What is marked while a node answers nothing is bounded: beyond the bound all is
// compared, and nothing that was marked is lost.
func TestABatchIsBounded(t *testing.T) {
	name := func(i int) fsm.Name { return fsm.Name{C0: strconv.Itoa(i)} }
	b := newBatch()
	for i := range maxMarked {
		b.mark(name(i))
	}
	if b.nextAll || len(b.next) != maxMarked {
		t.Fatalf("all %v, %d names", b.nextAll, len(b.next))
	}
	b.mark(name(maxMarked))
	b.mark(name(0))
	if !b.nextAll || len(b.next) != 0 {
		t.Fatalf("all %v, %d names", b.nextAll, len(b.next))
	}
}
