package dataplane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// noInstance fills both halves of the instance id of a name that means no
// particular instance.
const noInstance = ^uint64(0)

// ErrName reports the text of a name that cannot be read.
var ErrName = errors.New("not a name")

// NewName builds the name of one application instance: three components and
// the two halves of its 128-bit id, with the hashes that nodes forward by.
func NewName(first, second, third string, high, low uint64) *dataplanepb.Name {
	return &dataplanepb.Name{
		Name: &dataplanepb.EncodedName{
			Component_0: hashComponent(first),
			Component_1: hashComponent(second),
			Component_2: hashComponent(third),
			NameId:      &dataplanepb.NameId{Id_0: high, Id_1: low},
		},
		StrName: &dataplanepb.StringName{StrComponent_0: first, StrComponent_1: second, StrComponent_2: third},
	}
}

// ParseName reads "a/b/c", a name without instance, or "a/b/c/UUID".
func ParseName(text string) (*dataplanepb.Name, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 && len(parts) != 4 {
		return nil, fmt.Errorf("%w: %q: want a/b/c or a/b/c/UUID", ErrName, text)
	}
	for _, part := range parts {
		if part == "" {
			return nil, fmt.Errorf("%w: %q: a component is empty", ErrName, text)
		}
	}
	if len(parts) == 3 {
		return NewName(parts[0], parts[1], parts[2], noInstance, noInstance), nil
	}
	id, err := uuid.Parse(parts[3])
	if err != nil {
		return nil, fmt.Errorf("%w: %q: the instance is not a UUID", ErrName, text)
	}
	return NewName(parts[0], parts[1], parts[2], binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:])), nil
}

// FormatName is the reverse of ParseName. It accepts incomplete names.
func FormatName(name *dataplanepb.Name) string {
	s := name.GetStrName()
	text := s.GetStrComponent_0() + "/" + s.GetStrComponent_1() + "/" + s.GetStrComponent_2()
	key := keyOf(name)
	if !key.hasInstance() {
		return text
	}
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], key.high)
	binary.BigEndian.PutUint64(id[8:], key.low)
	return text + "/" + id.String()
}

// hashComponent is XXH64 with seed 0 over the text and one byte 0xFF, which
// keeps a text apart from its own prefix in a concatenation.
func hashComponent(text string) uint64 {
	return xxhash.Sum64(append([]byte(text), 0xFF))
}

// prefix is the part of a name that all its instances share.
type prefix [3]uint64

// nameKey is what a data plane forwards by: hashes and id, never the strings.
type nameKey struct {
	prefix    prefix
	high, low uint64
}

func keyOf(name *dataplanepb.Name) nameKey {
	encoded := name.GetName()
	key := nameKey{
		prefix: prefix{encoded.GetComponent_0(), encoded.GetComponent_1(), encoded.GetComponent_2()},
		high:   noInstance,
		low:    noInstance,
	}
	if id := encoded.GetNameId(); id != nil {
		key.high, key.low = id.GetId_0(), id.GetId_1()
	}
	return key
}

func (k nameKey) hasInstance() bool {
	return k.high != noInstance || k.low != noInstance
}

func compareKeys(a, b nameKey) int {
	return cmp.Or(
		cmp.Compare(a.prefix[0], b.prefix[0]), cmp.Compare(a.prefix[1], b.prefix[1]), cmp.Compare(a.prefix[2], b.prefix[2]),
		cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low),
	)
}

// identity tells apart all names that differ anywhere, strings included, as the
// book-keeping of routes does.
type identity struct {
	key     nameKey
	hasID   bool
	a, b, c string
}

func identityOf(name *dataplanepb.Name) identity {
	s := name.GetStrName()
	return identity{
		key:   keyOf(name),
		hasID: name.GetName().GetNameId() != nil,
		a:     s.GetStrComponent_0(),
		b:     s.GetStrComponent_1(),
		c:     s.GetStrComponent_2(),
	}
}
