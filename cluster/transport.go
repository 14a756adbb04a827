package cluster

import "github.com/hashicorp/raft"

// peerTransport is what a replica needs of a transport. Both of the library's
// transports have it.
type peerTransport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// mainLoopTransport sends heartbeats through raft's main loop. Handled on the
// transport's goroutine, beside the main loop, they can put two leaders into
// one term (hashicorp/raft#695).
type mainLoopTransport struct {
	peerTransport
}

// SetHeartbeatHandler does nothing, on purpose.
func (mainLoopTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// loneTransport is the transport of a replica without peers. It opens no port.
func loneTransport(replicaID string) mainLoopTransport {
	_, transport := raft.NewInmemTransport(raft.ServerAddress(replicaID))
	return mainLoopTransport{peerTransport: transport}
}

// closeTransport ends a transport that the library did not take over: it would go
// on accepting for ever.
func closeTransport(transport raft.Transport) error {
	if closing, ok := transport.(raft.WithClose); ok {
		return closing.Close()
	}
	return nil
}
