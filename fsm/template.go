package fsm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// TemplateSchema is the schema that commands with a template of the topology need.
	TemplateSchema = 2
	// MaxRenderedSegments bounds the segments that a template is rendered to.
	MaxRenderedSegments = 10_000
	// maxRenderedBytes bounds them encoded: they have to fit into a command, together
	// with the rest of a fleet configuration.
	maxRenderedBytes = 256 << 10
	// maxRenderedPairs bounds the pairs of groups that they link, each counted in every
	// segment. All replicas expand them whenever a group comes or goes, and "*" stands
	// for all groups.
	maxRenderedPairs = 16 << 20
	// maxRenderedError bounds the text of an error.
	maxRenderedError = 1 << 10
)

// ErrGroupsChanged says that a template was rendered for another set of groups. It is
// to be rendered again.
var ErrGroupsChanged = errors.New("the topology's template was rendered for other groups")

// NewRenderedSegments is what a template was rendered to for groups, which must be in
// order. Apply accepts it only as long as they are the present ones. It is an error if
// the segments are too many.
func NewRenderedSegments(source string, groups []string, segments []*slimcppb.Segment) (*slimcppb.RenderedSegments, error) {
	if err := checkRendered(segments, len(groups)); err != nil {
		return nil, err
	}
	return &slimcppb.RenderedSegments{Template: templateHash(source), Groups: groupsHash(groups), Segments: segments}, nil
}

// FailedSegments says that a template could not be rendered for groups.
func FailedSegments(source string, groups []string, err error) *slimcppb.RenderedSegments {
	text := err.Error()
	text = strings.ToValidUTF8(text[:min(len(text), maxRenderedError)], "")
	return &slimcppb.RenderedSegments{
		Template: templateHash(source), Groups: groupsHash(groups), Error: text,
	}
}

// checkRendered bounds what the segments cost every replica.
func checkRendered(segments []*slimcppb.Segment, groups int) error {
	if len(segments) > MaxRenderedSegments {
		return fmt.Errorf("segments-template rendered %d segments, at most %d are accepted", len(segments), MaxRenderedSegments)
	}
	size := proto.Size(&slimcppb.Topology{Segments: segments})
	if size > maxRenderedBytes {
		return fmt.Errorf("segments-template rendered segments of %d bytes, at most %d are accepted", size, maxRenderedBytes)
	}
	number := func(group string) int {
		if group == Wildcard {
			return groups
		}
		return 1
	}
	pairs := 0
	for _, segment := range segments {
		for _, adjacency := range segment.GetLinks() {
			for _, neighbor := range adjacency.GetNeighbors() {
				pairs += number(adjacency.GetGroup()) * number(neighbor)
			}
		}
	}
	if pairs > maxRenderedPairs {
		return fmt.Errorf("segments-template rendered segments that link %d pairs of groups, at most %d are accepted", pairs, maxRenderedPairs)
	}
	return nil
}

// templateHash tells templates apart.
func templateHash(source string) []byte {
	sum := sha256.Sum256([]byte(source))
	return sum[:]
}

// groupsHash tells sets of groups, which must be in order, apart.
func groupsHash(groups []string) []byte {
	hash := sha256.New()
	for _, group := range groups {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(group)))
		_, _ = hash.Write(size[:]) // never fails
		_, _ = hash.Write([]byte(group))
	}
	return hash.Sum(nil)
}

// UsesTemplate reports whether the topology of a document is made from a template.
func UsesTemplate(config *slimcppb.FleetConfig) bool {
	return config.GetTopology().GetSegmentsTemplate() != ""
}

// TemplateGroups returns the groups that a template of the topology is rendered for,
// in order: those with a node that has not departed. Nodes without a group count as
// one with an empty name.
func (t *tables) TemplateGroups() []string {
	var groups []string
	for group := range t.Groups() {
		if group.Present > 0 {
			groups = append(groups, group.Name)
		}
	}
	return groups
}

// Rendered returns what the topology's template was rendered to last, nil if it never
// was or there is none. It belongs to the state.
func (t *tables) Rendered() *slimcppb.RenderedSegments { return t.rendered }

// TemplateOutdated reports whether the topology's template is to be rendered, since
// the groups are others than it was rendered for. Without groups there is nothing to
// link, and what was rendered last stays.
func (t *tables) TemplateOutdated() bool {
	source := t.fleet.GetTopology().GetSegmentsTemplate()
	if source == "" {
		return false
	}
	groups := t.TemplateGroups()
	return len(groups) > 0 && (!bytes.Equal(t.rendered.GetGroups(), groupsHash(groups)) ||
		!bytes.Equal(t.rendered.GetTemplate(), templateHash(source)))
}

// acceptRendered judges what comes with a document that has a template: without it
// the new topology would be empty until the leader has rendered it.
func (a *applier) acceptRendered(config *slimcppb.FleetConfig, rendered *slimcppb.RenderedSegments) error {
	source := config.GetTopology().GetSegmentsTemplate()
	groups := a.TemplateGroups()
	switch {
	case source == "" && rendered == nil:
		return nil
	case a.command.GetSchema() < TemplateSchema:
		return fmt.Errorf("%w: a segments-template needs schema %d", ErrInvalid, TemplateSchema)
	case source == "" || len(config.GetTopology().GetSegments()) > 0:
		return fmt.Errorf("%w: segments and a segments-template exclude each other", ErrInvalid)
	case len(groups) == 0 && rendered == nil:
		return nil
	case !bytes.Equal(rendered.GetTemplate(), templateHash(source)) || rendered.GetError() != "":
		return fmt.Errorf("%w: the template was not rendered", ErrInvalid)
	case !bytes.Equal(rendered.GetGroups(), groupsHash(groups)):
		return ErrGroupsChanged
	}
	return nil
}

// setRenderedSegments takes over what the leader rendered, unless the template or the
// groups have changed meanwhile. A failure keeps the segments of before.
func (a *applier) setRenderedSegments(command *slimcppb.RenderedSegments) Result {
	source := a.fleet.GetTopology().GetSegmentsTemplate()
	switch {
	case a.command.GetSchema() < TemplateSchema:
		return Result{Err: fmt.Errorf("%w: rendered segments need schema %d", ErrInvalid, TemplateSchema)}
	case source == "" || !bytes.Equal(command.GetTemplate(), templateHash(source)):
		return Result{Err: ErrStale}
	case !bytes.Equal(command.GetGroups(), groupsHash(a.TemplateGroups())):
		return Result{Err: ErrGroupsChanged}
	}
	before := a.rendered
	a.rendered = command
	if command.GetError() != "" {
		a.rendered = proto.CloneOf(command)
		a.rendered.Segments = before.GetSegments()
	}
	a.changes.Fleet = true
	if !sameSegments(before, a.rendered) {
		a.topologyChanged()
	}
	return Result{}
}

func sameSegments(a, b *slimcppb.RenderedSegments) bool {
	return proto.Equal(&slimcppb.RenderedSegments{Segments: a.GetSegments()}, &slimcppb.RenderedSegments{Segments: b.GetSegments()})
}
