package config

import (
	"fmt"
	"strings"

	"github.com/slim-cp/slim-cp/segmenttemplate"
)

// topology decodes the groups' topology and, as upstream has it in the same
// section, the registration credentials.
func topology(t *Topology, r *RegistrationAuth) decode {
	return func(v value) {
		var links []Adjacency
		table := fields{
			"links":             optional(adjacencies(&links, false)),
			"segments":          optional(segments(&t.Segments)),
			"segments-template": segmentsTemplate(&t.SegmentsTemplate),
			"registration_auth": registrationAuth(r),
		}
		if head := v.readObject(); head.has("segments") && len(head.keys["segments"].node.Content) > 0 {
			table["links"] = func(v value) { v.warn("ignored, as there are segments beside it") }
		}
		found := v.object(table)
		if found.has("segments-template") && (found.has("links") || found.has("segments")) {
			found.failAt("segments-template", "'links', 'segments', and 'segments-template' are mutually exclusive in topology config")
		}
		if len(links) > 0 {
			t.Segments = []Segment{{Name: DefaultSegment, Links: links}}
		}
		t.ConfigManaged = len(t.Segments) > 0 || t.SegmentsTemplate != ""
		if t.ConfigManaged && r.Type == RegistrationSharedSecret && len(r.Secrets) == 0 && !found.failedBelow("registration_auth") {
			found.keys["registration_auth"].readObject().failAt("secrets",
				"no secrets: accepted: one per group, or a topology without links and segments, to which operators add groups")
		}
	}
}

// segmentsTemplate decodes the template that segments are made from. What it names and
// writes shows only when it is rendered.
func segmentsTemplate(to *string) decode {
	return func(v value) {
		text, ok := v.text()
		if !ok {
			v.refuse("a string, the template of a list of segments", false)
			return
		}
		if _, err := segmenttemplate.Parse(text); err != nil {
			v.fail(strings.ReplaceAll(err.Error(), "\n", " "))
			return
		}
		*to = text
	}
}

func segments(to *[]Segment) decode {
	return func(v value) {
		names := make(map[string]int)
		v.list("a list of segments {name: …, links: …}", func(item value) {
			var s Segment
			found := item.object(fields{
				"name":  anyStr(&s.Name),
				"links": optional(adjacencies(&s.Links, true)),
			})
			found.require("name", "a string")
			found.require("links", acceptedLinks)
			s.Name = template(s.Name)
			*to = append(*to, s)
			if !found.has("name") {
				return
			}
			if first, twice := names[s.Name]; twice {
				found.keys["name"].warn(fmt.Sprintf("the segment on line %d has the same name", first))
			} else {
				names[s.Name] = item.node.Line
			}
			if isTemplate(s.Links) && !strings.Contains(s.Name, GroupTemplate) {
				found.keys["name"].warn("a template without " + GroupTemplate + " in its name: the segments of all groups get the same name")
			}
		})
	}
}

const (
	acceptedLinks     = "a list of links {group: …, neighbors: […]}"
	acceptedNeighbors = `a list of groups, or ["*"] for every group`
)

// adjacencies decodes a list of links, within a segment or not.
func adjacencies(to *[]Adjacency, inSegment bool) decode {
	return func(v value) {
		v.list(acceptedLinks, func(item value) {
			var a Adjacency
			group := groupName(&a.Group, inSegment)
			found := item.object(fields{
				"group":     group,
				"domain":    group,
				"name":      group,
				"neighbors": neighbors(&a.Neighbors, inSegment),
			})
			switch {
			case found.has("group") && found.has("domain"):
				item.fail("group and domain are the same key: accepted: one of them")
			case found.has("name") && (found.has("group") || found.has("domain")):
				item.fail("name, group and domain are the same key: accepted: one of them")
			case !found.has("domain") && !found.has("name"):
				found.require("group", `the name of a group, or "*" for every group`)
			}
			found.require("neighbors", acceptedNeighbors)
			*to = append(*to, a)
		})
	}
}

func neighbors(to *[]string, inSegment bool) decode {
	return func(v value) {
		v.list(acceptedNeighbors, func(item value) {
			var name string
			groupName(&name, inSegment)(item)
			*to = append(*to, name)
		})
	}
}

// groupName decodes a group in a link. A name that no group can have is
// harmless and, as in upstream, no reason to refuse a file.
func groupName(to *string, inSegment bool) decode {
	return func(v value) {
		before := len(v.problems)
		anyStr(to)(v)
		name := template(*to)
		switch {
		case len(v.problems) > before:
		case name != "*" && !validGroup(name):
			v.warn(fmt.Sprintf("value %s: no group has this name: accepted: %s; or \"*\"", v.show(), acceptedGroup))
		case inSegment:
			*to = name
		case strings.Contains(name, GroupTemplate):
			v.warn(fmt.Sprintf("value %s: a template stands for groups in segments only, here for itself", v.show()))
		}
	}
}

// template writes a template in the older spelling, which is that of the state.
func template(text string) string { return strings.ReplaceAll(text, "$domain", GroupTemplate) }

func isTemplate(links []Adjacency) bool {
	for _, link := range links {
		if strings.Contains(link.Group, GroupTemplate) {
			return true
		}
		for _, neighbor := range link.Neighbors {
			if strings.Contains(neighbor, GroupTemplate) {
				return true
			}
		}
	}
	return false
}
