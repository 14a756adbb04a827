package segments

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// Kinds of calls.
const (
	Add    = "add"
	Remove = "remove"
	Read   = "read"
)

// Call is what an operator asked for: the Input of an operation.
type Call struct {
	Kind string
	Name string // of the segment
}

// Answer is what the operator was told: the Output of an operation.
type Answer struct {
	// Unknown: the call may take effect at any time from its beginning on, or never.
	Unknown bool
	// There: of a read, the segment is there; of a removal, it was.
	There bool
}

// Model judges calls of one segment after the other.
func Model() porcupine.Model {
	return porcupine.Model{
		Partition:         bySegment,
		Init:              func() any { return false },
		Step:              step,
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

func bySegment(history []porcupine.Operation) [][]porcupine.Operation {
	byName := map[string][]porcupine.Operation{}
	for _, operation := range history {
		name := operation.Input.(Call).Name
		byName[name] = append(byName[name], operation)
	}
	var parts [][]porcupine.Operation
	for _, part := range byName {
		parts = append(parts, part)
	}
	return parts
}

func step(state, input, output any) (bool, any) {
	there, answer := state.(bool), output.(Answer)
	switch input.(Call).Kind {
	case Add:
		return true, true
	case Remove:
		return answer.Unknown || answer.There == there, false
	default:
		return answer.There == there, there
	}
}
