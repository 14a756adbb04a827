package dataplane

import (
	"slices"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
)

// listChunk is the largest number of entries in one list message.
const listChunk = 100

// chunks calls send with at most listChunk entries at a time and whether they
// are the last, at least once.
func chunks[T any](entries []T, send func(chunk []T, done bool)) {
	if len(entries) == 0 {
		send(nil, true)
	}
	sent := 0
	for chunk := range slices.Chunk(entries, listChunk) {
		sent += len(chunk)
		send(chunk, sent == len(entries))
	}
}

func (c *controller) listConnections(s *session, request string) {
	var entries []*controllerpb.ConnectionEntry
	for _, connection := range c.datapath.Connections() {
		entries = append(entries, connection.entry())
	}
	chunks(entries, func(chunk []*controllerpb.ConnectionEntry, done bool) {
		s.send(&controllerpb.ControlMessage{
			MessageId: uuid.NewString(),
			Payload: &controllerpb.ControlMessage_ConnectionListResponse{ConnectionListResponse: &controllerpb.ConnectionListResponse{
				OriginalMessageId: request, Entries: chunk, Done: done,
			}},
		})
	})
}

func (c *controller) listRoutes(s *session, request string) {
	var entries []*controllerpb.RouteEntry
	for _, name := range c.datapath.Table() {
		entry := &controllerpb.RouteEntry{Name: name.Name}
		for _, connection := range name.Connections {
			entry.Connections = append(entry.Connections, connection.entry())
		}
		entries = append(entries, entry)
	}
	chunks(entries, func(chunk []*controllerpb.RouteEntry, done bool) {
		s.send(&controllerpb.ControlMessage{
			MessageId: uuid.NewString(),
			Payload: &controllerpb.ControlMessage_RouteListResponse{RouteListResponse: &controllerpb.RouteListResponse{
				OriginalMessageId: request, Entries: chunk, Done: done,
			}},
		})
	})
}
