package operator

import (
	"encoding/binary"
	"math"

	"github.com/google/uuid"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// nameText writes a name as c0/c1/c2/ID. ID is a UUID, or NULL_COMPONENT for a
// name that means no particular instance. A name that is missing altogether
// becomes the placeholder.
func nameText(name *dataplanepb.Name, placeholder string) string {
	if name == nil {
		return placeholder
	}
	words := name.GetStrName()
	return words.GetStrComponent_0() + "/" + words.GetStrComponent_1() + "/" + words.GetStrComponent_2() +
		"/" + instanceText(name.GetName().GetNameId())
}

func instanceText(id *dataplanepb.NameId) string {
	if id == nil || id.GetId_0() == math.MaxUint64 && id.GetId_1() == math.MaxUint64 {
		return "NULL_COMPONENT"
	}
	var bytes uuid.UUID
	binary.BigEndian.PutUint64(bytes[:8], id.GetId_0())
	binary.BigEndian.PutUint64(bytes[8:], id.GetId_1())
	return bytes.String()
}
