package fsm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// MinSecretBytes is the shortest registration secret that nodes can use.
const MinSecretBytes = 32

// Errors of the commands that operators give. Their texts reach them.
var (
	ErrConfigManaged   = errors.New("topology is config-managed; change the config file and run \"slim-cp topology apply --config FILE\"")
	ErrUnknownSegment  = errors.New("no such segment")
	ErrDefaultSegment  = errors.New("the default segment cannot be removed; remove its links instead")
	ErrUnknownEdge     = errors.New("no such link in the segment")
	ErrNotSharedSecret = errors.New("registration does not use shared secrets")
	ErrShortSecret     = fmt.Errorf("secret is shorter than %d bytes", MinSecretBytes)
)

// managedSegments lists the API-managed topology. The default segment is always
// there.
func (t *tables) managedSegments() []SegmentInfo {
	var infos []SegmentInfo
	add := func(segment *Segment) {
		info := SegmentInfo{Name: segment.Name, Edges: segment.Edges}
		for _, edge := range segment.Edges {
			info.Groups = append(info.Groups, edge[0], edge[1])
		}
		slices.Sort(info.Groups)
		info.Groups = slices.Compact(info.Groups)
		infos = append(infos, info)
	}
	fallback, _ := t.managedSegment(DefaultSegment)
	add(fallback)
	for segment := range t.segments.all() {
		if segment.Name != DefaultSegment {
			add(segment)
		}
	}
	return infos
}

func (t *tables) managedSegment(name string) (*Segment, bool) {
	if segment, ok := t.segments.get(&Segment{Name: name}); ok {
		return segment, true
	}
	if name == DefaultSegment {
		return &Segment{Name: DefaultSegment}, true
	}
	return nil, false
}

// HasSegment reports whether the API-managed topology has a segment.
func (t *tables) HasSegment(name string) bool {
	_, ok := t.managedSegment(name)
	return ok
}

func (a *applier) addSegment(command *slimcppb.AddSegment) Result {
	switch name := command.GetName(); {
	case a.ConfigManaged():
		return Result{Err: ErrConfigManaged}
	case name == "":
		return Result{Err: fmt.Errorf("%w: segment name is empty", ErrInvalid)}
	case !a.HasSegment(name):
		a.segments.set(&Segment{Name: name})
		a.graph = a.expand(a.presentGroups())
	}
	return Result{}
}

func (a *applier) removeSegment(command *slimcppb.RemoveSegment) Result {
	name := command.GetName()
	switch {
	case a.ConfigManaged():
		return Result{Err: ErrConfigManaged}
	case name == DefaultSegment:
		return Result{Err: ErrDefaultSegment}
	case !a.HasSegment(name):
		return Result{Err: ErrUnknownSegment}
	}
	a.segments.delete(&Segment{Name: name})
	a.topologyChanged()
	return Result{}
}

// edgeOf returns the segment of a command about an edge, and the edge in order.
func (a *applier) edgeOf(name, groupA, groupB string) (*Segment, [2]string, error) {
	edge := [2]string{min(groupA, groupB), max(groupA, groupB)}
	if a.ConfigManaged() {
		return nil, edge, ErrConfigManaged
	}
	segment, ok := a.managedSegment(name)
	if !ok {
		return nil, edge, ErrUnknownSegment
	}
	return segment, edge, nil
}

func compareEdges(a, b [2]string) int { return slices.Compare(a[:], b[:]) }

func (a *applier) addEdge(command *slimcppb.AddEdge) Result {
	segment, edge, err := a.edgeOf(command.GetSegment(), command.GetGroupA(), command.GetGroupB())
	if err != nil {
		return Result{Err: err}
	}
	for _, group := range edge {
		if err := a.checkGroup(group); err != nil || group == "" {
			return Result{Err: fmt.Errorf("%w: group %q", ErrInvalid, group)}
		}
	}
	if edge[0] == edge[1] {
		return Result{Err: fmt.Errorf("%w: group %q cannot be linked with itself", ErrInvalid, edge[0])}
	}
	at, found := slices.BinarySearchFunc(segment.Edges, edge, compareEdges)
	if found {
		return Result{}
	}
	a.segments.set(&Segment{Name: segment.Name, Edges: slices.Insert(slices.Clone(segment.Edges), at, edge)})
	a.topologyChanged()
	return Result{}
}

func (a *applier) removeEdge(command *slimcppb.RemoveEdge) Result {
	segment, edge, err := a.edgeOf(command.GetSegment(), command.GetGroupA(), command.GetGroupB())
	if err != nil {
		return Result{Err: err}
	}
	at, found := slices.BinarySearchFunc(segment.Edges, edge, compareEdges)
	if !found {
		return Result{Err: ErrUnknownEdge}
	}
	a.segments.set(&Segment{Name: segment.Name, Edges: slices.Delete(slices.Clone(segment.Edges), at, at+1)})
	a.topologyChanged()
	return Result{}
}

// SharedSecret is the kind of registration authentication that AddGroup serves.
const SharedSecret = "shared_secret"

// membershipManaged says whether operators may change who may register.
func (a *applier) membershipManaged() error {
	switch {
	case a.ConfigManaged():
		return ErrConfigManaged
	case a.fleet.GetRegistrationAuth() != SharedSecret:
		return ErrNotSharedSecret
	}
	return nil
}

func (a *applier) addGroup(command *slimcppb.AddGroup) Result {
	if err := a.membershipManaged(); err != nil {
		return Result{Err: err}
	}
	secret := secretFromProto(command.GetSecret(), a.index())
	if err := a.checkGroup(secret.Group); err != nil || secret.Group == "" {
		return Result{Err: fmt.Errorf("%w: group %q", ErrInvalid, secret.Group)}
	}
	if secret.KeyID == "" && len(secret.Value) < MinSecretBytes {
		return Result{Err: ErrShortSecret}
	}
	a.secrets.set(secret)
	return Result{}
}

// removeGroup drops a group's secret, whoever gave it, and evicts its nodes: they
// would not be let in again (protocol D5).
func (a *applier) removeGroup(command *slimcppb.RemoveGroup) Result {
	if err := a.membershipManaged(); err != nil {
		return Result{Err: err}
	}
	group := command.GetGroup()
	if group == "" {
		return Result{Err: fmt.Errorf("%w: group is empty", ErrInvalid)} // nodes without a group are in none
	}
	a.secrets.delete(&Secret{Group: group})
	a.dropFileSecret(group)
	for _, id := range slices.Collect(a.Members(group)) {
		node, ok := a.Node(id)
		if !ok {
			continue
		}
		if node.State != NodeLeaving {
			a.depart(node, NodeLeaving)
		}
		if node, ok := a.Node(id); ok && !node.Connected() {
			a.forgetNode(node)
		}
	}
	return Result{}
}

func (a *applier) dropFileSecret(group string) {
	at := slices.IndexFunc(a.fleet.GetSecrets(), func(s *slimcppb.GroupSecret) bool { return s.GetGroup() == group })
	if at < 0 {
		return
	}
	// The message is shared with older views: it is copied, not changed.
	a.fleet = &slimcppb.FleetConfig{
		Topology:           a.fleet.GetTopology(),
		EnforcedConnection: a.fleet.GetEnforcedConnection(),
		RegistrationAuth:   a.fleet.GetRegistrationAuth(),
		Graces:             a.fleet.GetGraces(),
		Secrets:            slices.Delete(slices.Clone(a.fleet.GetSecrets()), at, at+1),
	}
}

// forgetNode removes a node's record.
func (a *applier) forgetNode(node *Node) {
	a.removeNode(node)
	a.nodeChanged(node.ID)
	a.confirmDeleted(node.ID)
}

// expireNodes removes records of nodes that the leader found departed for the
// retention.
func (a *applier) expireNodes(command *slimcppb.ExpireNodes) Result {
	for _, id := range command.GetNodeIds() {
		if node, ok := a.Node(id); ok && node.State == NodeDeparted && !node.Connected() {
			a.forgetNode(node)
		}
	}
	return Result{}
}
