package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxComponentBytes bounds one component of a name. Nodes know no bound; a
// command of a thousand names must fit into one message.
const maxComponentBytes = 1024

// InstanceID tells the instances of an application apart: 128 bits, big-endian.
type InstanceID [16]byte

// NoInstance is the id of a name that means no particular instance.
var NoInstance = InstanceID{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// String returns the id's text form: a UUID, or NULL_COMPONENT for none.
func (id InstanceID) String() string {
	if id == NoInstance {
		return "NULL_COMPONENT"
	}
	return uuid.UUID(id).String()
}

// Name is an application name: three components and an instance id. It is
// comparable and the key of the names table.
type Name struct {
	C0, C1, C2 string
	ID         InstanceID
}

// ErrBadName is wrapped by the errors of ParseName.
var ErrBadName = errors.New("malformed name")

// ParseName reads a name from a node's message. A name without either of its
// two parts is malformed; the hashes in it are not looked at, since we send our
// own (protocol C13).
func ParseName(wire *dataplanepb.Name) (Name, error) {
	switch {
	case wire == nil:
		return Name{}, fmt.Errorf("%w: absent", ErrBadName)
	case wire.GetName() == nil:
		return Name{}, fmt.Errorf("%w: encoded part absent", ErrBadName)
	case wire.GetStrName() == nil:
		return Name{}, fmt.Errorf("%w: string part absent", ErrBadName)
	}
	name := Name{
		C0: wire.GetStrName().GetStrComponent_0(),
		C1: wire.GetStrName().GetStrComponent_1(),
		C2: wire.GetStrName().GetStrComponent_2(),
		ID: NoInstance,
	}
	if id := wire.GetName().GetNameId(); id != nil {
		binary.BigEndian.PutUint64(name.ID[:8], id.GetId_0())
		binary.BigEndian.PutUint64(name.ID[8:], id.GetId_1())
	}
	return name, name.validate()
}

func (n Name) validate() error {
	for _, component := range []string{n.C0, n.C1, n.C2} {
		if len(component) > maxComponentBytes {
			return fmt.Errorf("%w: component of %d bytes, at most %d are accepted", ErrBadName, len(component), maxComponentBytes)
		}
		if !utf8.ValidString(component) {
			return fmt.Errorf("%w: component %q is not UTF-8", ErrBadName, component)
		}
	}
	return nil
}

// Wire builds the name as nodes know it. Every name that leaves the control
// plane is built here, so that a node sees the same bytes each time: it compares
// names by structure (protocol C13).
func (n Name) Wire() *dataplanepb.Name {
	return &dataplanepb.Name{
		Name: &dataplanepb.EncodedName{
			Component_0: HashComponent(n.C0),
			Component_1: HashComponent(n.C1),
			Component_2: HashComponent(n.C2),
			NameId: &dataplanepb.NameId{
				Id_0: binary.BigEndian.Uint64(n.ID[:8]),
				Id_1: binary.BigEndian.Uint64(n.ID[8:]),
			},
		},
		StrName: &dataplanepb.StringName{
			StrComponent_0: n.C0,
			StrComponent_1: n.C1,
			StrComponent_2: n.C2,
		},
	}
}

// HashComponent is the data plane's hash of one component: XXH64 with seed 0 of
// its bytes and one byte 0xff.
func HashComponent(component string) uint64 {
	var digest xxhash.Digest
	digest.Reset()
	_, _ = digest.WriteString(component)
	_, _ = digest.Write([]byte{math.MaxUint8})
	return digest.Sum64()
}

// String returns the display form, c0/c1/c2/id.
func (n Name) String() string {
	return strings.Join([]string{n.C0, n.C1, n.C2, n.ID.String()}, "/")
}

// Compare orders names by components, then by id.
func (n Name) Compare(other Name) int {
	if order := strings.Compare(n.C0, other.C0); order != 0 {
		return order
	}
	if order := strings.Compare(n.C1, other.C1); order != 0 {
		return order
	}
	if order := strings.Compare(n.C2, other.C2); order != 0 {
		return order
	}
	return bytes.Compare(n.ID[:], other.ID[:])
}

// Proto returns the name as it stands in commands and snapshots.
func (n Name) Proto() *slimcppb.Name {
	message := &slimcppb.Name{Component0: n.C0, Component1: n.C1, Component2: n.C2}
	if n.ID != NoInstance {
		message.InstanceId = n.ID[:]
	}
	return message
}

// nameFromProto reads a name from a command or a snapshot.
func nameFromProto(message *slimcppb.Name) (Name, error) {
	if message == nil {
		return Name{}, fmt.Errorf("%w: absent", ErrBadName)
	}
	name := Name{C0: message.GetComponent0(), C1: message.GetComponent1(), C2: message.GetComponent2(), ID: NoInstance}
	switch id := message.GetInstanceId(); len(id) {
	case 0:
	case len(name.ID):
		copy(name.ID[:], id)
	default:
		return Name{}, fmt.Errorf("%w: instance id of %d bytes, 16 are accepted", ErrBadName, len(id))
	}
	return name, name.validate()
}
