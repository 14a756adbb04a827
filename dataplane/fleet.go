package dataplane

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	dataplanepb "github.com/slim-cp/slim-cp/proto/dataplane/v1"
)

// FleetOptions describe a Fleet.
type FleetOptions struct {
	Groups        int
	NodesPerGroup int
	Names         int    // per group, spread over its nodes
	GroupPrefix   string // empty: "group-"; a number follows, from 1
	// Node holds what all nodes share. Ids, group and endpoints are filled in.
	Node NodeOptions
	// Network is the network to use; nil: a new one.
	Network *Network
}

// Fleet is a set of simulated nodes in one Network: nodes "node-1", ... in each
// of the groups "group-1", ..., with names "org/GROUP/app-1", ...
type Fleet struct {
	Network *Network
	nodes   []*Node
}

// NewFleet makes the nodes of a fleet, stopped.
func NewFleet(options FleetOptions) (*Fleet, error) {
	if options.Groups < 1 || options.NodesPerGroup < 1 || options.Names < 0 {
		return nil, fmt.Errorf("a fleet of %d groups with %d nodes and %d names each: want at least 1, 1 and 0",
			options.Groups, options.NodesPerGroup, options.Names)
	}
	if options.GroupPrefix == "" {
		options.GroupPrefix = "group-"
	}
	fleet := &Fleet{Network: options.Network}
	if fleet.Network == nil {
		fleet.Network = NewNetwork(NetworkOptions{})
	}
	for g := 1; g <= options.Groups; g++ {
		if err := fleet.addGroup(options, fmt.Sprintf("%s%d", options.GroupPrefix, g)); err != nil {
			return nil, err
		}
	}
	return fleet, nil
}

func (f *Fleet) addGroup(options FleetOptions, group string) error {
	var members []*Node
	for i := 1; i <= options.NodesPerGroup; i++ {
		node := options.Node
		node.Group, node.ID = group, fmt.Sprintf("node-%d", i)
		node.Endpoint = fmt.Sprintf("%s.%s.internal:46357", node.ID, group)
		node.ExternalEndpoint = fmt.Sprintf("%s.%s.example:46357", node.ID, group)
		member, err := f.Network.NewNode(node)
		if err != nil {
			return err
		}
		members = append(members, member)
	}
	for i := range options.Names {
		members[i%len(members)].Announce(FleetName(group, i+1))
	}
	f.nodes = append(f.nodes, members...)
	return nil
}

// FleetName is the name of a fleet's application, numbered from 1 in its group.
// The same number always gives the same instance id.
func FleetName(group string, number int) *dataplanepb.Name {
	return InstanceName("org", group, fmt.Sprintf("app-%d", number))
}

// InstanceName is a name with an instance id made of its components, so that it
// is the same in every run.
func InstanceName(first, second, third string) *dataplanepb.Name {
	sum := sha256.Sum256([]byte(first + "/" + second + "/" + third))
	return NewName(first, second, third, binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16]))
}

// Nodes returns all nodes, group by group.
func (f *Fleet) Nodes() []*Node { return f.nodes }

// Node returns a node by its full id, or nil.
func (f *Fleet) Node(id string) *Node { return f.Network.Node(id) }

// Start starts all nodes that are stopped, without waiting for them to register.
func (f *Fleet) Start() error {
	for _, node := range f.nodes {
		if err := node.Start(); err != nil && !errors.Is(err, ErrRunning) {
			return err
		}
	}
	return nil
}

// WaitRegistered waits until every node that runs is registered.
func (f *Fleet) WaitRegistered(ctx context.Context) error {
	for _, node := range f.nodes {
		if err := node.WaitRegistered(ctx); err != nil && !errors.Is(err, ErrStopped) {
			return err
		}
	}
	return nil
}

// GaveUp returns the nodes that will never talk to a control plane again.
func (f *Fleet) GaveUp() []*Node {
	var lost []*Node
	for _, node := range f.nodes {
		if node.GaveUp() != nil {
			lost = append(lost, node)
		}
	}
	return lost
}

// Close kills all nodes.
func (f *Fleet) Close() {
	var wait sync.WaitGroup
	for _, node := range f.nodes {
		wait.Go(node.Kill)
	}
	wait.Wait()
}
