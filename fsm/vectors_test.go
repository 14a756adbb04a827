package fsm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// The hashes that the data plane computes.
func TestHashComponent(t *testing.T) {
	for component, want := range map[string]uint64{
		"":        0x95634172a60b7544,
		"org":     0x873e580376ea963b,
		"ns":      17219925055306830033,
		"app":     9712949549825652437,
		"bob":     5309210987355009988,
		"default": 2419281581437851240,
		"agntcy":  1629362083701025730,
	} {
		equal(t, "hash of "+component, HashComponent(component), want)
	}
}

func TestNoInstance(t *testing.T) {
	equal(t, "text", NoInstance.String(), "NULL_COMPONENT")
	id := Name{ID: NoInstance}.Wire().GetName().GetNameId()
	equal(t, "high half", id.GetId_0(), uint64(math.MaxUint64))
	equal(t, "low half", id.GetId_1(), uint64(math.MaxUint64))
	equal(t, "text of an instance", InstanceID{15: 1}.String(), "00000000-0000-0000-0000-000000000001")
	equal(t, "text of a name", Name{C0: "org", C1: "ns", C2: "app", ID: NoInstance}.String(), "org/ns/app/NULL_COMPONENT")
}

// A node compares names by structure: each has the same parts and the same bytes
// every time, and the instance id is always there.
func TestNameOnTheWire(t *testing.T) {
	name := Name{C0: "org", C1: "ns", C2: "app", ID: InstanceID{0: 0x80, 7: 1, 15: 2}}
	encoded := joinHex(
		"08", varint(0x873e580376ea963b), "10", varint(17219925055306830033), "18", varint(9712949549825652437),
		"22", "0d", "08", varint(0x8000000000000001), "10", varint(2),
	)
	texts := joinHex("0a03", hex.EncodeToString([]byte("org")), "1202", hex.EncodeToString([]byte("ns")), "1a03", hex.EncodeToString([]byte("app")))
	want := append(append([]byte{0x0a, byte(len(encoded))}, encoded...), append([]byte{0x12, byte(len(texts))}, texts...)...)
	for range 2 {
		got, err := proto.MarshalOptions{Deterministic: true}.Marshal(name.Wire())
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%x, not %x (%v)", got, want, err)
		}
	}
	back, err := ParseName(name.Wire())
	if err != nil || back != name {
		t.Errorf("read back as %v, %v", back, err)
	}
}

func TestParseName(t *testing.T) {
	good := func() *dataplanepb.Name { return appName("x", 7).Wire() }
	for what, c := range map[string]struct {
		change func(*dataplanepb.Name)
		want   Name
		bad    string
	}{
		"as sent":           {func(*dataplanepb.Name) {}, appName("x", 7), ""},
		"hashes of others":  {func(n *dataplanepb.Name) { n.Name.Component_0 = 1 }, appName("x", 7), ""},
		"no instance id":    {func(n *dataplanepb.Name) { n.Name.NameId = nil }, Name{C0: "org", C1: "ns", C2: "x", ID: NoInstance}, ""},
		"empty components":  {func(n *dataplanepb.Name) { n.StrName = &dataplanepb.StringName{} }, Name{ID: InstanceID{15: 7}}, ""},
		"no encoded part":   {func(n *dataplanepb.Name) { n.Name = nil }, Name{}, "encoded part"},
		"no string part":    {func(n *dataplanepb.Name) { n.StrName = nil }, Name{}, "string part"},
		"component too big": {func(n *dataplanepb.Name) { n.StrName.StrComponent_1 = strings.Repeat("x", 1025) }, Name{}, "1025 bytes"},
		"not UTF-8":         {func(n *dataplanepb.Name) { n.StrName.StrComponent_2 = "\xff" }, Name{}, "UTF-8"},
	} {
		wire := good()
		c.change(wire)
		got, err := ParseName(wire)
		if c.bad == "" && (err != nil || got != c.want) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
		if c.bad != "" && (!errors.Is(err, ErrBadName) || !strings.Contains(err.Error(), c.bad)) {
			t.Errorf("%s: error %v does not name %q", what, err, c.bad)
		}
	}
	if _, err := ParseName(nil); !errors.Is(err, ErrBadName) {
		t.Errorf("no name: %v", err)
	}
}

func TestLinkIDsNameTheirCluster(t *testing.T) {
	ours, theirs := newHistory(t), &history{t: t, store: New(), spoken: map[SessionName]uint64{}}
	theirs.must(initCommand("other-cluster"))
	for _, h := range []*history{ours, theirs} {
		h.must(mesh())
		h.register("a", "n1")
		h.register("b", "n1")
	}
	id := ours.between("a", "b").ID
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 8 || parsed.Variant() != uuid.RFC4122 || parsed.String() != id {
		t.Errorf("%q is version %d, variant %v (%v)", id, parsed.Version(), parsed.Variant(), err)
	}
	equal(t, "ours", ours.view().OwnLinkID(id), true)
	equal(t, "theirs", theirs.view().OwnLinkID(id), false)
	equal(t, "theirs at us", ours.view().OwnLinkID(theirs.between("a", "b").ID), false)

	parsed[6] = parsed[6]&0x0f | 0x40 // our hash in a random UUID
	for _, strange := range []string{parsed.String(), "", "link", "e9a3aab6-2f5b-4c8b-9f7e-0a4f3c1e8d55"} {
		equal(t, "a stranger's id "+strange, ours.view().OwnLinkID(strange), false)
	}
}

// Entries that are in a log already must draw the same ids and picks under every
// release.
func TestDrawsOfOldEntries(t *testing.T) {
	h := meshed(t)
	h.seed = 41
	h.register("a", "n1")
	h.register("b", "n1")
	equal(t, "link id", h.between("a", "b").ID, "f069097c-ed1b-8b6e-be1f-952388cfd206")
}

func joinHex(parts ...string) []byte {
	data, err := hex.DecodeString(strings.Join(parts, ""))
	if err != nil {
		panic(err)
	}
	return data
}

// varint is a number as protobuf writes it, in hexadecimal.
func varint(n uint64) string {
	var data []byte
	for ; n >= 0x80; n >>= 7 {
		data = append(data, byte(n)|0x80)
	}
	return hex.EncodeToString(append(data, byte(n)))
}
