package fsm

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

const maxIDBytes = 253

// ErrBadID is wrapped by the errors of CheckNodeID.
var ErrBadID = errors.New("malformed id")

// NodeID returns a node's full id: group/node, or the bare id without a group.
func NodeID(group, node string) string {
	if group == "" {
		return node
	}
	return group + "/" + node
}

// CheckNodeID says what is wrong with the ids that a node registers with
// (protocol A8). Refused is what the form of a full id needs, or what no line of a
// log or list can show: "*" is the source of a template, and "/" ends a group.
func CheckNodeID(group, node string) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	switch {
	case node == "":
		return fmt.Errorf("%w: node id is empty", ErrBadID)
	case node == "*":
		return fmt.Errorf("%w: node id %q is reserved", ErrBadID, node)
	case len(node) > maxIDBytes:
		return fmt.Errorf("%w: node id of %d bytes, at most %d are accepted", ErrBadID, len(node), maxIDBytes)
	case !utf8.ValidString(node):
		return fmt.Errorf("%w: node id %q is not UTF-8", ErrBadID, node)
	case strings.ContainsFunc(node, unicode.IsControl):
		return fmt.Errorf("%w: node id %q has a control character", ErrBadID, node)
	case group == "" && strings.Contains(node, "/"):
		return fmt.Errorf("%w: node id %q has a /, which is accepted only beside a group", ErrBadID, node)
	}
	return nil
}

// CheckGroup says what is wrong with the name of a group (protocol A8). The empty
// one, that of nodes without a group, is none.
func CheckGroup(group string) error {
	if group == "" {
		return fmt.Errorf("%w: group is empty", ErrBadID)
	}
	return checkGroup(group)
}

func checkGroup(group string) error {
	switch {
	case group == "":
		return nil
	case group == "*":
		return fmt.Errorf("%w: group %q is reserved", ErrBadID, group)
	case len(group) > maxIDBytes:
		return fmt.Errorf("%w: group of %d bytes, at most %d are accepted", ErrBadID, len(group), maxIDBytes)
	case !utf8.ValidString(group):
		return fmt.Errorf("%w: group %q is not UTF-8", ErrBadID, group)
	}
	for _, r := range group {
		if unicode.IsControl(r) || r == '/' {
			return fmt.Errorf("%w: group %q has %q, which is not accepted", ErrBadID, group, r)
		}
	}
	return nil
}

// checkGroup also refuses what was refused before schema 2: white space, colons and
// bars.
func (a *applier) checkGroup(group string) error {
	if err := checkGroup(group); err != nil || a.meta.ActiveSchema >= 2 {
		return err
	}
	for _, r := range group {
		if unicode.IsSpace(r) || r == ':' || r == '|' {
			return fmt.Errorf("%w: group %q has %q, which is not accepted", ErrBadID, group, r)
		}
	}
	return nil
}

// checkNodeID also refuses what was refused before schema 2.
func (a *applier) checkNodeID(group, node string) error {
	if err := CheckNodeID(group, node); err != nil || a.meta.ActiveSchema >= 2 {
		return err
	}
	if strings.Contains(node, "|") {
		return fmt.Errorf("%w: node id %q has a |", ErrBadID, node)
	}
	return a.checkGroup(group)
}

// clusterMark is what the link ids of one cluster have in common.
func clusterMark(clusterID string) [6]byte {
	sum := sha256.Sum256([]byte(clusterID))
	return [6]byte(sum[:6])
}

// newLinkID draws a link id: a UUID of version 8 that begins with a hash of the
// cluster id, so that we know our own links on a node (protocol L4).
func (a *applier) newLinkID() string {
	var id uuid.UUID
	mark := clusterMark(a.meta.ClusterID)
	a.pick(1) // makes the generator
	random := a.random.Uint64()
	copy(id[:6], mark[:])
	id[6] = 0x80 | byte(random>>56)&0x0f
	id[7] = byte(random >> 48)
	id[8] = 0x80 | byte(random>>40)&0x3f
	for i := range 5 {
		id[9+i] = byte(random >> (8 * i))
	}
	random = a.random.Uint64()
	id[14], id[15] = byte(random), byte(random>>8)
	return id.String()
}

// OwnLinkID reports whether a link id was made by this cluster.
func (t *tables) OwnLinkID(id string) bool {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 8 {
		return false
	}
	return [6]byte(parsed[:6]) == clusterMark(t.meta.ClusterID)
}
