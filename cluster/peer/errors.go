package peer

import (
	"errors"
	"fmt"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Errors of a refused connection.
var (
	// ErrWrongCluster: the other side belongs to another cluster.
	ErrWrongCluster = errors.New("wrong cluster")
	// ErrWrongProtocol: the other side speaks another version of this protocol.
	ErrWrongProtocol = errors.New("wrong protocol version")
	// ErrRemoved: this replica's id was removed from the cluster.
	ErrRemoved = errors.New("this replica was removed from the cluster")
	// ErrDuplicate: another process lives under this replica's id.
	ErrDuplicate = errors.New("another process uses this replica's id")
	// ErrNoCluster: the other side is not a member of a cluster.
	ErrNoCluster = errors.New("not a member of a cluster")
	// ErrClosed: the port is closed.
	ErrClosed = errors.New("cluster port is closed")
)

// refusals maps what is refused on the wire to errors, one to one.
var refusals = map[slimcppb.Refusal]error{
	slimcppb.Refusal_REFUSAL_WRONG_CLUSTER:  ErrWrongCluster,
	slimcppb.Refusal_REFUSAL_WRONG_PROTOCOL: ErrWrongProtocol,
	slimcppb.Refusal_REFUSAL_REMOVED:        ErrRemoved,
	slimcppb.Refusal_REFUSAL_DUPLICATE:      ErrDuplicate,
	slimcppb.Refusal_REFUSAL_NO_CLUSTER:     ErrNoCluster,
}

// refusalOf returns how an error is refused on the wire.
func refusalOf(err error) slimcppb.Refusal {
	for refusal, known := range refusals {
		if errors.Is(err, known) {
			return refusal
		}
	}
	return slimcppb.Refusal_REFUSAL_WRONG_CLUSTER
}

// refused returns the error of an answer, nil if the connection stands.
func refused(answer *slimcppb.HelloAnswer, address string) error {
	refusal := answer.GetRefusal()
	if refusal == slimcppb.Refusal_REFUSAL_NONE {
		return nil
	}
	known, ok := refusals[refusal]
	if !ok {
		known = ErrWrongProtocol
	}
	return &refusedError{text: fmt.Sprintf("%s refused the connection: %s", address, answer.GetReason()), kind: known}
}

// refusedError is a refusal in the words of the replica that refused.
type refusedError struct {
	text string
	kind error
}

func (e *refusedError) Error() string { return e.text }
func (e *refusedError) Unwrap() error { return e.kind }
