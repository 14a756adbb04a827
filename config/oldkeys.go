package config

import (
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The control plane before 1.5 was written in Go and had other keys. oldKeys
// names those that people's files still have, by path without list indexes, and
// what to write today.
var oldKeys = map[string]string{
	"logging":       "tracing",
	"logging.level": "tracing.log_level",

	"reconciler.maxRequeues":                "reconciler.max_requeues",
	"reconciler.maxNumOfReconciles":         "reconciler.workers",
	"reconciler.maxNumOfParallelReconciles": "reconciler.workers",

	"database.filePath": "database.path, with database.type: raft",
}

// oldListenerKeys are those of northbound and southbound.
var oldListenerKeys = map[string]string{
	"httpHost":         "%s.endpoint: HOST:PORT",
	"httpPort":         "%s.endpoint: HOST:PORT",
	"logging":          "tracing",
	"logging.level":    "tracing.log_level",
	"spire":            "%s.tls.source: {type: spire}",
	"spire.socketPath": "%s.tls.source: {type: spire, socket_path: …}",
	"tls.useSpiffe":    "%s.tls.source: {type: spire}",
	"tls.certFile":     "%s.tls.source: {type: file, cert: …, key: …}",
	"tls.keyFile":      "%s.tls.source: {type: file, cert: …, key: …}",
	"tls.caFile":       "%s.tls.client_ca: {type: file, path: …}",
}

var listIndex = regexp.MustCompile(`\[\d+\]`)

// newKey returns what to write today instead of an old key.
func newKey(path string) (string, bool) {
	plain := listIndex.ReplaceAllString(path, "")
	if replacement, ok := oldKeys[plain]; ok {
		return replacement, true
	}
	api, key, _ := strings.Cut(plain, ".")
	if api != "northbound" && api != "southbound" {
		return "", false
	}
	replacement, ok := oldListenerKeys[key]
	if strings.Contains(replacement, "%s") {
		replacement = fmt.Sprintf(replacement, api)
	}
	return replacement, ok
}

// refusedOldKey reports whether the path is that of an old key without which a
// file cannot mean what it meant. Logging is none of these.
func refusedOldKey(path string) bool {
	replacement, ok := newKey(path)
	return ok && !strings.HasPrefix(replacement, "tracing")
}

// reportOld says what to write instead of an old key, once for each key below
// it if it is a section. It is false if the key is none.
func (v value) reportOld() bool {
	replacement, ok := newKey(v.path)
	if !ok {
		return false
	}
	below := false
	if v.node.Kind == yaml.MappingNode {
		o := v.readObject()
		for _, key := range o.order {
			below = o.keys[key].reportOld() || below
		}
	}
	if below {
		return true
	}
	problem := v.problem("a key of the control plane before 1.5, no longer read: write " + replacement)
	if refusedOldKey(v.path) {
		v.problems = append(v.problems, problem)
		v.refused = true
	} else {
		v.oldLogging = append(v.oldLogging, problem)
	}
	return true
}
