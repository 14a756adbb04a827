package peer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"syscall"

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
	// ErrOtherReplica: another replica than the wanted one is at the address.
	ErrOtherReplica = errors.New("another replica is there")
	// ErrCertificate: the certificate is not that of the replica that uses it.
	ErrCertificate = errors.New("certificate of another")
	// ErrClosed: the port is closed.
	ErrClosed = errors.New("cluster port is closed")
)

// errNoCertificate: this side has none that is valid.
var errNoCertificate = errors.New("this replica has no valid certificate for the cluster port")

// errEvicted: a connection was closed before its hello to make room for others.
var errEvicted = errors.New("it was slow, and others came")

// refusals maps what is refused on the wire to errors, one to one.
var refusals = map[slimcppb.Refusal]error{
	slimcppb.Refusal_REFUSAL_WRONG_CLUSTER:  ErrWrongCluster,
	slimcppb.Refusal_REFUSAL_WRONG_PROTOCOL: ErrWrongProtocol,
	slimcppb.Refusal_REFUSAL_REMOVED:        ErrRemoved,
	slimcppb.Refusal_REFUSAL_DUPLICATE:      ErrDuplicate,
	slimcppb.Refusal_REFUSAL_NO_CLUSTER:     ErrNoCluster,
	slimcppb.Refusal_REFUSAL_OTHER_REPLICA:  ErrOtherReplica,
	slimcppb.Refusal_REFUSAL_CERTIFICATE:    ErrCertificate,
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

// strangerError: the other side speaks, but not this protocol.
type strangerError struct {
	head [8]byte // what it said first
}

func (e *strangerError) Error() string {
	if e.usesTLS() {
		return "it speaks TLS"
	}
	return fmt.Sprintf("it says %q", e.head[:])
}

// usesTLS reports whether what came is a TLS record: an alert or a handshake.
func (e *strangerError) usesTLS() bool {
	return (e.head[0] == 0x15 || e.head[0] == 0x16) && e.head[1] == 3
}

// hungUp reports whether an error is only that the other side is gone.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// explainHandshake says why there is no TLS with an address.
func explainHandshake(address string, err error) error {
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &plain):
		return fmt.Errorf("%s is not the cluster port of a slim-cp replica with TLS: %w", address, err)
	case hungUp(err):
		return fmt.Errorf("%s hung up; it may not use TLS as this replica does, or not be the cluster port of a slim-cp replica: %w", address, err)
	}
	return fmt.Errorf("%s: %w", address, err)
}

// explainHello says why an address did not answer the hello.
func explainHello(address string, secured bool, err error) error {
	var stranger *strangerError
	switch {
	case errors.As(err, &stranger) && stranger.usesTLS():
		return fmt.Errorf("%s uses TLS, and this replica does not: %w", address, err)
	case errors.As(err, &stranger):
		return fmt.Errorf("%s is not the cluster port of a slim-cp replica: %w", address, err)
	case hungUp(err) && secured:
		return fmt.Errorf("%s hung up; it may not be the cluster port of a slim-cp replica: %w", address, err)
	case hungUp(err):
		return fmt.Errorf("%s hung up; it may use TLS, unlike this replica, or not be the cluster port of a slim-cp replica: %w", address, err)
	}
	return fmt.Errorf("%s: %w", address, err)
}
