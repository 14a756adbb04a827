package budget

import "fmt"

const (
	// Descriptors that are never given to nodes: of Raft's connections and the relay,
	// of the log and of snapshots; and of operators. Each grows with the limit.
	ownDescriptors      = 36
	operatorDescriptors = 8
	growth              = 32 // a 32nd of the limit each
	maxOwn              = 1024
	maxOperators        = 1024

	// maxNodeConns is as many connections of nodes as a replica takes in any case.
	maxNodeConns = 65_536
	// connMemory is what a connection with a stream takes.
	connMemory = 128 << 10
	// unfinishedMemory is what all connections together may have sent before they
	// have registered a node; a message may take 8 times as much when it is decoded.
	unfinishedMemory    = 16 << 20
	minUnfinishedMemory = 4 << 20
)

// Plan says what a process spends at most on whom.
type Plan struct {
	Limits     Limits
	Own        int // descriptors that are set aside for Raft, files and the relay
	Strangers  int // of them for connections on the cluster port that are not known yet
	Operators  int // connections
	Nodes      int // connections
	Unfinished int // bytes of requests before a registration, of all connections
}

// NewPlan divides the limits.
func NewPlan(limits Limits) Plan {
	p := Plan{
		Limits:     limits,
		Own:        min(maxOwn, ownDescriptors+limits.Descriptors/growth),
		Operators:  min(maxOperators, operatorDescriptors+limits.Descriptors/growth),
		Unfinished: unfinishedMemory,
	}
	p.Strangers = p.Own / 4
	p.Nodes = min(maxNodeConns, max(1, limits.Descriptors-p.Own-p.Operators))
	if limits.Memory > 0 {
		p.Nodes = min(p.Nodes, max(16, int(limits.Memory/2/connMemory)))
		p.Unfinished = int(min(unfinishedMemory, max(minUnfinishedMemory, limits.Memory/64)))
	}
	return p
}

// String is one line for the log.
func (p Plan) String() string {
	memory := "no limit"
	if p.Limits.Memory > 0 {
		memory = fmt.Sprintf("%d MiB", p.Limits.Memory>>20)
	}
	return fmt.Sprintf("%d descriptors: %d for the replica, %d for operators, %d for nodes; memory: %s, %d MiB of it for unfinished requests",
		p.Limits.Descriptors, p.Own, p.Operators, p.Nodes, memory, p.Unfinished>>20)
}
