package operator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connectTimeout is how long one of several control planes has to take a connection
// before the next one is asked.
const connectTimeout = 2 * time.Second

// servers are the control planes to ask, the first one that answers. One goroutine
// uses them.
type servers struct {
	endpoints   []endpoint
	options     []grpc.DialOption
	limit       time.Duration      // of all calls together
	connections []*grpc.ClientConn // of the endpoints, nil until it is needed
	// first is where the next call begins: with the one that answered last.
	first int
	// passed are those that the last call asked in vain.
	passed []passedOver
}

// passedOver is a control plane that could not be asked.
type passedOver struct {
	asked endpoint
	cause error
}

func newServers(endpoints []endpoint, options ...grpc.DialOption) *servers {
	return &servers{endpoints: endpoints, options: options, connections: make([]*grpc.ClientConn, len(endpoints))}
}

func (s *servers) close() {
	for _, connection := range s.connections {
		if connection != nil {
			_ = connection.Close()
		}
	}
}

// asked is the one that the last call reached, or tried last.
func (s *servers) asked() endpoint { return s.endpoints[s.first] }

// call runs a call against one after the other until one is available.
func (s *servers) call(ctx context.Context, call func(context.Context, *grpc.ClientConn) error) error {
	s.passed = nil
	for {
		connection, err := s.connection(s.first)
		if err != nil {
			return err
		}
		err = call(ctx, connection)
		if len(s.passed) == len(s.endpoints)-1 || ctx.Err() != nil || !elsewhere(err) {
			return err
		}
		s.passed = append(s.passed, passedOver{s.asked(), err})
		s.first = (s.first + 1) % len(s.endpoints)
	}
}

func (s *servers) connection(at int) (*grpc.ClientConn, error) {
	if s.connections[at] != nil {
		return s.connections[at], nil
	}
	options := slices.Clone(s.options)
	if len(s.endpoints) > 1 {
		options = append(options, grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout}))
	}
	connection, err := s.endpoints[at].dial(options...)
	s.connections[at] = connection
	return connection, err
}

// elsewhere reports whether another replica may do what this one did not.
func elsewhere(err error) bool {
	return status.Code(err) == codes.Unavailable && !errors.As(err, new(*finalError))
}

// finalError is one after which nobody else is asked: something was sent that must not
// be sent twice.
type finalError struct{ cause error }

func (e *finalError) Error() string              { return e.cause.Error() }
func (e *finalError) Unwrap() error              { return e.cause }
func (e *finalError) GRPCStatus() *status.Status { return status.Convert(e.cause) }

// aboutTheReplica marks a command that changes the one replica which is asked.
const aboutTheReplica = "about-the-replica"

// checkOne refuses several control planes for a command that must not reach just
// anyone.
func checkOne(command *cobra.Command, endpoints []endpoint) error {
	if _, one := command.Annotations[aboutTheReplica]; !one || len(endpoints) == 1 {
		return nil
	}
	var addresses []string
	for _, each := range endpoints {
		addresses = append(addresses, each.address)
	}
	return usageErrorf("%q is about the replica that is asked: name one instead of %s", command.CommandPath(), strings.Join(addresses, ","))
}
