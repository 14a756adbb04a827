package reconciler_test

import (
	"os"
	"testing"

	"github.com/slim-cp/slim-cp/test/world"
)

func TestFleetConverges(t *testing.T) {
	world.Run(t, world.Options{Log: os.Stderr}, func(t *testing.T, w *world.World) {
		for _, group := range []string{"a", "b", "c"} {
			w.Join(group, "n1").Announce(world.Name("app-" + group))
			w.Join(group, "n2")
		}
		w.Settle()
	})
}
