package dataplane

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// The figures come from real nodes.
func TestHashes(t *testing.T) {
	for text, want := range map[string]uint64{
		"": 10764519495013463364, "org": 9745323415579563579, "ns": 17219925055306830033, "app": 9712949549825652437,
		"bob": 5309210987355009988, "default": 2419281581437851240, "agntcy": 1629362083701025730,
	} {
		if got := hashComponent(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestNameSurvivesItsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		component := rapid.StringMatching(`[a-z0-9.~ äß-]{1,8}`)
		name := NewName(component.Draw(t, "first"), component.Draw(t, "second"), component.Draw(t, "third"), rapid.Uint64().Draw(t, "high"), rapid.Uint64().Draw(t, "low"))
		got, err := ParseName(FormatName(name))
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, name) {
			t.Fatalf("%v became %v", name, got)
		}
	})
}

func TestNameWithoutInstance(t *testing.T) {
	name, err := ParseName("org/ns/bob")
	if err != nil {
		t.Fatal(err)
	}
	if keyOf(name).hasInstance() || FormatName(name) != "org/ns/bob" {
		t.Errorf("got %v", name)
	}
	bare := &dataplanepb.Name{Name: &dataplanepb.EncodedName{}}
	if keyOf(bare).hasInstance() {
		t.Error("an absent id is an instance")
	}
}

func TestBadNames(t *testing.T) {
	for _, text := range []string{"", "org/ns", "org//app", "a/b/c/d", "a/b/c/d/e"} {
		if name, err := ParseName(text); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v, %v", text, name, err)
		}
	}
}
