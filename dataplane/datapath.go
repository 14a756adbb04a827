package dataplane

import (
	"context"
	"errors"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// Errors of a Datapath.
var (
	// ErrUnreachable: nothing accepted the connection; trying again may help.
	ErrUnreachable = errors.New("connection refused")
	// ErrNoConnection: the connection does not exist, or no longer.
	ErrNoConnection = errors.New("connection not found")
	// ErrNoSubscription: no record with that subscription id.
	ErrNoSubscription = errors.New("subscription id not found")
	// ErrEndpointInUse: another running node listens on the endpoint.
	ErrEndpointInUse = errors.New("endpoint in use")
)

// Datapath is the message-forwarding half of a node, as its controller needs it.
// Methods may be called from several goroutines.
type Datapath interface {
	// Start binds the node's endpoints and its applications' names. What happens
	// from then on is told to the observer.
	Start(Observer) error
	// Stop drops every connection without a word, as the end of a process does.
	Stop()
	// Connect makes one attempt to open a connection; ErrUnreachable is worth
	// another one.
	Connect(ctx context.Context, config ClientConfig) error
	// Disconnect ends a connection, maybe some time later.
	Disconnect(connection uint64) error
	// Lookup finds the oldest connection with a link id.
	Lookup(linkID string) (Connection, bool)
	// Subscribe adds one record: messages to the name go over the connection.
	// Records count: two of one name and connection need two calls of Unsubscribe.
	Subscribe(connection uint64, name *dataplanepb.Name, id uint64) error
	// Unsubscribe removes the record with that id.
	Unsubscribe(connection uint64, name *dataplanepb.Name, id uint64) error
	// AttachName and DetachName are an application's subscribe and unsubscribe.
	AttachName(name *dataplanepb.Name)
	DetachName(name *dataplanepb.Name)
	// Connections lists the connection table, by id.
	Connections() []Connection
	// Table lists the forwarding table in a fixed order.
	Table() []TableEntry
}

// Observer is told what happens in a Datapath. Calls come in order, possibly
// with locks of the datapath held: they must not block nor call it.
type Observer interface {
	// LinkNegotiated: a remote connection is up; both ends are told.
	LinkNegotiated(linkID string)
	// NameAttached and NameDetached: an application came or went.
	NameAttached(name *dataplanepb.Name)
	NameDetached(name *dataplanepb.Name)
	// ConnectionLost: a connection ended over which these names were reached.
	ConnectionLost(names []*dataplanepb.Name)
}

// Connection is one entry of a node's connection table.
type Connection struct {
	ID        uint64
	Type      controllerpb.ConnectionType
	Direction controllerpb.ConnectionDirection
	LinkID    string // empty: none
	Peer      string // node id of the other end without its group; empty: unknown
	Config    string // JSON; {} for a connection that this node did not dial
}

// TableEntry is one name of a forwarding table and the connections that it is
// reached over. Applications are LOCAL and EDGE connections.
type TableEntry struct {
	Name        *dataplanepb.Name
	Connections []Connection
}

func (c Connection) entry() *controllerpb.ConnectionEntry {
	entry := &controllerpb.ConnectionEntry{
		Id:             c.ID,
		ConnectionType: c.Type,
		ConfigData:     c.Config,
		Direction:      c.Direction,
	}
	if c.LinkID != "" {
		entry.LinkId = &c.LinkID
	}
	if c.Peer != "" {
		entry.PeerNodeId = &c.Peer
	}
	return entry
}
