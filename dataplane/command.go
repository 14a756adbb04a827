package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	controllerpb "github.com/slim-cp/slim-cp/proto/controller/v1"
	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// obey carries out a command and acknowledges each of its items. The error is
// ErrPanicked or the end of the process.
func (c *controller) obey(s *session, messageID string, command *controllerpb.ConfigurationCommand) error {
	ack := &controllerpb.ConfigurationCommandAck{OriginalMessageId: messageID}
	apply := c.applyIncrement
	if command.GetReconcile() {
		apply = c.applyState
	}
	if err := apply(command, ack); err != nil {
		return err
	}
	if c.node.dropAcks.Load() {
		return nil
	}
	s.send(&controllerpb.ControlMessage{
		MessageId: uuid.NewString(),
		Payload:   &controllerpb.ControlMessage_ConfigCommandAck{ConfigCommandAck: ack},
	})
	return nil
}

// applyIncrement carries out the four sections in their fixed order.
func (c *controller) applyIncrement(command *controllerpb.ConfigurationCommand, ack *controllerpb.ConfigurationCommandAck) error {
	for _, linkID := range command.GetConnectionsToDelete() {
		ack.ConnectionsStatus = append(ack.ConnectionsStatus, connectionAck(linkID, c.deleteLink(linkID)))
	}
	for _, connection := range command.GetConnectionsToCreate() {
		err := c.createLink(connection)
		ack.ConnectionsStatus = append(ack.ConnectionsStatus, connectionAck(connection.GetLinkId(), err))
	}
	for _, r := range command.GetRoutesToSet() {
		connection, found := c.datapath.Lookup(r.GetLinkId())
		if !found {
			ack.RoutesStatus = append(ack.RoutesStatus, routeAck(r, linkNotFound(r)))
			continue
		}
		if !complete(r.GetName()) {
			return fmt.Errorf("%w: route without the parts of a name", ErrPanicked)
		}
		ack.RoutesStatus = append(ack.RoutesStatus, routeAck(r, c.subscribe(c.subscriptionWait(), r.GetName(), connection.ID)))
	}
	for _, r := range command.GetRoutesToDelete() {
		connection, found := c.datapath.Lookup(r.GetLinkId())
		if !found {
			ack.RoutesStatus = append(ack.RoutesStatus, routeAck(r, linkNotFound(r)))
			continue
		}
		if !complete(r.GetName()) {
			return fmt.Errorf("%w: route without the parts of a name", ErrPanicked)
		}
		ack.RoutesStatus = append(ack.RoutesStatus, routeAck(r, c.unsubscribe(c.subscriptionWait(), r.GetName(), connection.ID)))
	}
	return c.ctx.Err()
}

// applyState makes links and routes equal to the command, which states them all.
func (c *controller) applyState(command *controllerpb.ConfigurationCommand, ack *controllerpb.ConfigurationCommandAck) error {
	c.removeUnlistedLinks(command.GetConnectionsToCreate(), ack)
	for _, connection := range command.GetConnectionsToCreate() {
		if linkID := connection.GetLinkId(); linkID != "" {
			ack.ConnectionsStatus = append(ack.ConnectionsStatus, connectionAck(linkID, c.ensureLink(connection)))
		}
	}
	wanted := make(map[route]bool)
	var set []*controllerpb.RouteAck
	for _, r := range command.GetRoutesToSet() {
		connection, found := c.datapath.Lookup(r.GetLinkId())
		if !found {
			ack.RoutesStatus = append(ack.RoutesStatus, routeAck(r, ErrNoConnection))
			continue
		}
		if !complete(r.GetName()) {
			return fmt.Errorf("%w: route without the parts of a name", ErrPanicked)
		}
		key := route{identityOf(r.GetName()), connection.ID}
		if wanted[key] {
			continue // two of the same are one, with one acknowledgement
		}
		wanted[key] = true
		set = append(set, &controllerpb.RouteAck{Route: r})
	}
	c.removeUnlistedRoutes(wanted, ack)
	wait := c.subscriptionWait() // all wait at the same time
	for _, pending := range set {
		connection, found := c.datapath.Lookup(pending.GetRoute().GetLinkId())
		if !found {
			ack.RoutesStatus = append(ack.RoutesStatus, routeAck(pending.GetRoute(), ErrNoConnection))
			continue
		}
		var err error
		if !c.isTracked(pending.GetRoute().GetName(), connection.ID) {
			err = c.subscribe(wait, pending.GetRoute().GetName(), connection.ID)
		}
		ack.RoutesStatus = append(ack.RoutesStatus, routeAck(pending.GetRoute(), err))
	}
	return c.ctx.Err()
}

// removeUnlistedLinks ends the outgoing links that a full state does not name.
func (c *controller) removeUnlistedLinks(listed []*controllerpb.Connection, ack *controllerpb.ConfigurationCommandAck) {
	keep := make(map[string]bool)
	for _, connection := range listed {
		keep[connection.GetLinkId()] = true
	}
	for _, connection := range c.datapath.Connections() {
		if connection.Type != remote || connection.Direction != outgoing || connection.LinkID == "" || keep[connection.LinkID] {
			continue
		}
		c.forget(connection.ID)
		err := c.datapath.Disconnect(connection.ID)
		ack.ConnectionsStatus = append(ack.ConnectionsStatus, connectionAck(connection.LinkID, err))
	}
}

// removeUnlistedRoutes ends the routes that are tracked and not wanted. It
// cannot see any others. The acknowledgements name no link.
func (c *controller) removeUnlistedRoutes(wanted map[route]bool, ack *controllerpb.ConfigurationCommandAck) {
	c.mu.Lock()
	stale := make(map[nameKey]map[uint64]*dataplanepb.Name)
	for key, subscriptions := range c.tracked {
		for _, s := range subscriptions {
			if wanted[s.route()] {
				continue
			}
			if stale[key] == nil {
				stale[key] = make(map[uint64]*dataplanepb.Name)
			}
			stale[key][s.connection] = s.name
		}
	}
	c.mu.Unlock()
	wait := c.subscriptionWait() // all wait at the same time
	for _, key := range sortedKeys(stale) {
		for _, connection := range slices.Sorted(maps.Keys(stale[key])) {
			name := stale[key][connection]
			ack.RoutesStatus = append(ack.RoutesStatus, routeAck(&controllerpb.Route{Name: name}, c.unsubscribe(wait, name, connection)))
		}
	}
}

// deleteLink ends a link. The accepting end says yes, forgets the link's routes
// and does nothing else.
func (c *controller) deleteLink(linkID string) error {
	if linkID == "" {
		return errors.New("link_id cannot be empty")
	}
	connection, found := c.datapath.Lookup(linkID)
	if !found {
		return fmt.Errorf("Connection with link_id %s not found", linkID) //nolint:staticcheck // a node's own words
	}
	c.forget(connection.ID)
	return c.datapath.Disconnect(connection.ID)
}

// createLink is for the form of increments: all is in the JSON, the link id too.
func (c *controller) createLink(connection *controllerpb.Connection) error {
	config, err := parseClientConfig(connection.GetConfigData())
	if err != nil {
		return parseError(err)
	}
	if config.LinkID == "" || config.Type != remote {
		config.LinkID = uuid.NewString()
	}
	if _, live := c.datapath.Lookup(config.LinkID); live {
		return nil
	}
	return c.open(config)
}

// ensureLink is for the form of full states. A link that lives is left alone,
// whatever its configuration says.
func (c *controller) ensureLink(connection *controllerpb.Connection) error {
	if _, live := c.datapath.Lookup(connection.GetLinkId()); live {
		return nil
	}
	config, err := parseServerConfig(connection.GetLinkId(), connection.GetConfigData(), c.hasCredentials)
	if err != nil {
		return err
	}
	return c.open(config)
}

func (c *controller) hasCredentials(endpoint string) bool {
	return slices.Contains(c.node.options.OutboundCredentials, endpoint)
}

// open dials until it works, for ever unless the configuration bounds it; the
// node does nothing else meanwhile.
func (c *controller) open(config ClientConfig) error {
	for retry := uint64(1); ; retry++ {
		err := c.datapath.Connect(c.ctx, config)
		if err == nil {
			return nil
		}
		pause, again := config.Backoff.wait(retry)
		if !again || !errors.Is(err, ErrUnreachable) {
			return errors.New("Connection failed: configuration error") //nolint:staticcheck // a node's own words
		}
		if !sleep(c.ctx, pause) {
			return c.ctx.Err()
		}
	}
}

// subscribe adds a record under a new id. It does not look for an older one, so
// a route that is set twice leaves one that nothing can delete.
func (c *controller) subscribe(wait time.Time, name *dataplanepb.Name, connection uint64) error {
	id := c.drawID()
	if err := c.awaitDatapath(wait); err != nil {
		return fmt.Errorf("Failed to subscribe: %w", err) //nolint:staticcheck // a node's own words
	}
	if err := c.datapath.Subscribe(connection, name, id); err != nil {
		return fmt.Errorf("Failed to subscribe: ack rejected by datapath: %w", err) //nolint:staticcheck // a node's own words
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key, set := keyOf(name), subscription{name, connection, id}
	if at := c.trackedAt(name, connection); at >= 0 {
		c.tracked[key][at] = set
	} else {
		c.tracked[key] = append(c.tracked[key], set)
	}
	return nil
}

// trackedAt returns where a route is among the tracked ones of its key, or -1. mu
// is held.
func (c *controller) trackedAt(name *dataplanepb.Name, connection uint64) int {
	wanted := route{identityOf(name), connection}
	return slices.IndexFunc(c.tracked[keyOf(name)], func(s subscription) bool { return s.route() == wanted })
}

// untrack forgets what of the key's routes a predicate names. mu is held.
func (c *controller) untrack(key nameKey, gone func(subscription) bool) {
	if left := slices.DeleteFunc(c.tracked[key], gone); len(left) > 0 {
		c.tracked[key] = left
	} else {
		delete(c.tracked, key)
	}
}

// unsubscribe removes the record of a tracked route. For any other the node
// draws an id that the datapath does not know.
func (c *controller) unsubscribe(wait time.Time, name *dataplanepb.Name, connection uint64) error {
	var id uint64
	c.mu.Lock()
	at := c.trackedAt(name, connection)
	if at >= 0 {
		id = c.tracked[keyOf(name)][at].id
		c.untrack(keyOf(name), func(s subscription) bool { return s.id == id })
	}
	c.mu.Unlock()
	if at < 0 {
		id = c.drawID()
	}
	if err := c.awaitDatapath(wait); err != nil {
		return fmt.Errorf("Failed to unsubscribe: %w", err) //nolint:staticcheck // a node's own words
	}
	if err := c.datapath.Unsubscribe(connection, name, id); err != nil {
		return fmt.Errorf("Failed to unsubscribe: ack rejected by datapath: %w", err) //nolint:staticcheck // a node's own words
	}
	return nil
}

func (c *controller) isTracked(name *dataplanepb.Name, connection uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trackedAt(name, connection) >= 0
}

// forget drops the ids of all routes over a connection.
func (c *controller) forget(connection uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.tracked {
		c.untrack(key, func(s subscription) bool { return s.connection == connection })
	}
}

// drawID returns a subscription id that no record has. 0 belongs to peers and
// applications.
func (c *controller) drawID() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	return c.lastID
}

// complete reports whether a name has both its parts.
func complete(name *dataplanepb.Name) bool {
	return name.GetName() != nil && name.GetStrName() != nil
}

func connectionAck(linkID string, err error) *controllerpb.ConnectionAck {
	ack := &controllerpb.ConnectionAck{LinkId: linkID, Success: err == nil}
	if err != nil {
		ack.ErrorMsg = err.Error()
	}
	return ack
}

func routeAck(r *controllerpb.Route, err error) *controllerpb.RouteAck {
	ack := &controllerpb.RouteAck{Route: r, Success: err == nil}
	if err != nil {
		ack.ErrorMsg = err.Error()
	}
	return ack
}

func linkNotFound(r *controllerpb.Route) error {
	linkID := "<none>"
	if r.LinkId != nil {
		linkID = r.GetLinkId()
	}
	return fmt.Errorf("Connection with link_id %s not found", linkID) //nolint:staticcheck // a node's own words
}
