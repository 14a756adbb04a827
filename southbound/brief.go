package southbound

import (
	"slices"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// addConnections takes a chunk of a list.
func (w *waiter) addConnections(entries []*controllerpb.ConnectionEntry) {
	w.entries += len(entries)
	if w.brief {
		entries = briefly(entries)
	}
	w.answer.Connections = append(w.answer.Connections, entries...)
}

func (w *waiter) addRoutes(entries []*controllerpb.RouteEntry) {
	w.entries += len(entries)
	if w.brief {
		entries = slices.DeleteFunc(entries, func(entry *controllerpb.RouteEntry) bool {
			entry.Connections = briefly(entry.GetConnections())
			return len(entry.GetConnections()) == 0
		})
	}
	w.answer.Routes = append(w.answer.Routes, entries...)
}

// briefly leaves out the connections to peers, and all configurations.
func briefly(entries []*controllerpb.ConnectionEntry) []*controllerpb.ConnectionEntry {
	kept := slices.DeleteFunc(entries, func(entry *controllerpb.ConnectionEntry) bool {
		return entry.GetConnectionType() == controllerpb.ConnectionType_CONNECTION_TYPE_PEER
	})
	for _, entry := range kept {
		entry.ConfigData = ""
	}
	return kept
}
