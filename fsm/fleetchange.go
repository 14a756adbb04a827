package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// NoAuth is the kind of registration authentication that lets every node in.
	NoAuth = "none"
	// manyLinks is from how many links on their removal needs to be meant, if it is
	// that of more than half of them.
	manyLinks = 10
	// maxNamedChanges bounds how many groups or links a line names.
	maxNamedChanges = 10
)

// FleetChange is what another fleet configuration would change.
type FleetChange struct {
	// AuthFrom and AuthTo are the kinds of registration authentication.
	AuthFrom, AuthTo string
	// Unprotected are the groups with nodes that authenticate now and would not, or
	// could not, any more.
	Unprotected []string
	// SecretsAdded, SecretsChanged and SecretsRemoved are groups of the document.
	SecretsAdded, SecretsChanged, SecretsRemoved []string
	// TopologyTo says who would manage the topology instead, "" if that stays.
	TopologyTo string
	// NoTopology: a file gives the topology, and none would.
	NoTopology bool
	// NoSegments: there are segments, and a template makes none.
	NoSegments bool
	// LinksRemoved are live links, by their groups, of Links in all. LinksAdded are
	// pairs of groups with nodes that would be linked.
	LinksRemoved, LinksAdded [][2]string
	Links                    int
	// Other are further parts of the document that differ.
	Other []string
}

// FleetChange says what a fleet configuration would change if it became the active
// one. It changes nothing, and costs the pairs of groups that would be linked.
// rendered is what the template in it, if there is one, was rendered to.
func (t *tables) FleetChange(wanted *slimcppb.FleetConfig, rendered *slimcppb.RenderedSegments) FleetChange {
	c := FleetChange{AuthFrom: authOf(t.fleet), AuthTo: authOf(wanted)}
	after := *t
	after.fleet, after.rendered = wanted, rendered
	c.compareSecrets(t.fleet, wanted)
	for group := range t.Groups() {
		if group.Name != "" && t.authenticates(group.Name) && !after.authenticates(group.Name) {
			c.Unprotected = append(c.Unprotected, group.Name)
		}
	}
	c.NoTopology = t.ConfigManaged() && !after.ConfigManaged()
	c.NoSegments = len(t.presentGroups()) > 0 && wanted.GetTopology().GetSegmentsTemplate() != "" &&
		len(t.graph.segments) > 0 && t.ConfigManaged() && len(rendered.GetSegments()) == 0
	switch {
	case c.NoTopology:
		c.TopologyTo = "operators"
	case !t.ConfigManaged() && after.ConfigManaged():
		c.TopologyTo = "the file"
	}
	if !proto.Equal(t.fleet.GetTopology(), wanted.GetTopology()) || !sameSegments(t.rendered, rendered) {
		c.compareLinks(t, &after)
	}
	if !proto.Equal(t.fleet.GetEnforcedConnection(), wanted.GetEnforcedConnection()) {
		c.Other = append(c.Other, "enforced connection settings")
	}
	if !proto.Equal(t.fleet.GetGraces(), wanted.GetGraces()) {
		c.Other = append(c.Other, "sessions")
	}
	return c
}

// authOf is the kind of a document's registration authentication. A cluster without
// a document has none.
func authOf(config *slimcppb.FleetConfig) string {
	return cmp.Or(config.GetRegistrationAuth(), NoAuth)
}

// authenticates reports whether the nodes of a group have to prove it, and can.
func (t *tables) authenticates(group string) bool {
	switch authOf(t.fleet) {
	case NoAuth:
		return false
	case SharedSecret:
		_, ok := t.Secret(group)
		return ok
	}
	return true
}

func (c *FleetChange) compareSecrets(before, after *slimcppb.FleetConfig) {
	known := make(map[string]*slimcppb.GroupSecret)
	for _, secret := range before.GetSecrets() {
		known[secret.GetGroup()] = secret
	}
	kept := make(map[string]bool)
	for _, secret := range after.GetSecrets() {
		group := secret.GetGroup()
		kept[group] = true
		switch old, ok := known[group]; {
		case !ok:
			c.SecretsAdded = append(c.SecretsAdded, group)
		case !proto.Equal(old, secret):
			c.SecretsChanged = append(c.SecretsChanged, group)
		}
	}
	for _, secret := range before.GetSecrets() {
		if !kept[secret.GetGroup()] {
			c.SecretsRemoved = append(c.SecretsRemoved, secret.GetGroup())
		}
	}
}

func (c *FleetChange) compareLinks(before, after *tables) {
	groups := before.presentGroups()
	graph := after.expand(groups)
	for pair := range before.pairs.all() {
		c.Links++
		if !graph.allowed(pair.a, pair.b) {
			c.LinksRemoved = append(c.LinksRemoved, [2]string{pair.a, pair.b})
		}
	}
	for _, group := range groups {
		for _, peer := range graph.neighbors(group) {
			if group < peer && !before.graph.allowed(group, peer) {
				c.LinksAdded = append(c.LinksAdded, [2]string{group, peer})
			}
		}
	}
}

// Losses says what the change takes away that is not taken away by accident: who
// wants it has to say so. A line each, none if there is nothing of the kind.
func (c FleetChange) Losses() []string {
	var lines []string
	if len(c.Unprotected) > 0 {
		lines = append(lines, "authentication ends for "+named("group", "groups", c.Unprotected)+", which have nodes")
		if len(c.Unprotected) == 1 {
			lines[0] = "authentication ends for group " + c.Unprotected[0] + ", which has nodes"
		}
	}
	if c.NoTopology {
		lines = append(lines, "the whole topology goes")
	}
	if c.NoSegments {
		lines = append(lines, "segments-template rendered no segments, and there are some")
	}
	if removed := len(c.LinksRemoved); removed >= manyLinks && 2*removed > c.Links {
		lines = append(lines, fmt.Sprintf("%d of %d links go: %s", removed, c.Links, pairNames(c.LinksRemoved)))
	}
	return lines
}

// Lines describes the change, a fact a line. No secret is told.
func (c FleetChange) Lines() []string {
	var lines []string
	say := func(text string, args ...any) { lines = append(lines, fmt.Sprintf(text, args...)) }
	if c.AuthFrom != c.AuthTo {
		say("registration_auth: %s -> %s", c.AuthFrom, c.AuthTo)
	}
	for _, secrets := range []struct {
		what   string
		groups []string
	}{{"added", c.SecretsAdded}, {"changed", c.SecretsChanged}, {"removed", c.SecretsRemoved}} {
		if len(secrets.groups) > 0 {
			say("secrets %s: %s", secrets.what, named("group", "groups", secrets.groups))
		}
	}
	if c.TopologyTo != "" {
		say("topology: managed by %s", c.TopologyTo)
	}
	if len(c.LinksRemoved) > 0 {
		say("links removed: %d of %d: %s", len(c.LinksRemoved), c.Links, pairNames(c.LinksRemoved))
	}
	if len(c.LinksAdded) > 0 {
		say("links added: %d: %s", len(c.LinksAdded), pairNames(c.LinksAdded))
	}
	for _, part := range c.Other {
		say("changed: %s", part)
	}
	return lines
}

func pairNames(pairs [][2]string) string {
	words := make([]string, 0, maxNamedChanges+1)
	for _, pair := range pairs[:min(len(pairs), maxNamedChanges+1)] {
		words = append(words, pair[0]+"↔"+pair[1])
	}
	return enumerate(words, len(pairs))
}

func named(one, many string, words []string) string {
	if len(words) == 1 {
		return one + " " + words[0]
	}
	return many + " " + enumerate(words, len(words))
}

// enumerate joins the first words of count for people.
func enumerate(words []string, count int) string {
	if count <= maxNamedChanges {
		return strings.Join(words, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(slices.Clone(words[:maxNamedChanges]), ", "), count-maxNamedChanges)
}
