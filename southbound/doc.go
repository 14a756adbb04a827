// Package southbound holds the streams of the data-plane nodes that are
// connected to this replica.
//
// It admits and registers nodes, turns what they say into commands, and sends
// them what the leader's reconciler wants sent: Call names a session, and its
// answer is matched and gathered here. Each stream has a reader, a bounded
// outbox with a writer, and one goroutine that proposes for it in order, so that
// neither the state nor another node ever waits for a slow one.
//
// The leader reaches the streams of all replicas through a Router, and each replica
// that follows serves it through a Relay.
//
// A node that loses its stream cuts its own outgoing links, and one that is
// refused or cut off while it registers never comes back. So streams are ended
// only where a rule says so, and a registration is answered even when no leader
// is known. docs/southbound.md tells the whole life of a stream.
package southbound
