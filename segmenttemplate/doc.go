// Package segmenttemplate renders a template into the segments of a topology. The
// language is a part of the one that Jinja and MiniJinja share: text with {{ values }},
// {% for %} and {% if %}. The only variable is groups, the list of all groups.
//
// Templates come from a configuration file and are rendered whenever a group comes or
// goes, so this is a small evaluator and not a complete engine. Every expression has a
// type: a name, filter, test or type that cannot work is an error when the template is
// read, never an empty result later. What remains are the bounds: every step and byte
// is counted, and the caller can stop a rendering. Nothing in a template can read a
// file, draw a random number, call a function or go on forever.
package segmenttemplate
