package northbound

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/cluster"
)

const (
	// leaderTimeout bounds the wait for a leader, readTimeout like.
	leaderTimeout = readTimeout
	// leaderLook is how often a call that waits for one looks again.
	leaderLook = 50 * time.Millisecond
	// connectTimeout bounds the wait for the connection to it.
	connectTimeout = time.Second
	// leaderKey is in the headers of every answer on the cluster port: with it,
	// what failed was answered, and did not break on the way.
	leaderKey = "slimcp-answered-by"
)

// Leader finds the replica that leads.
type Leader interface {
	ReplicaID() string
	// Leadership reports whether this replica leads, and in which term.
	Leadership() (leading bool, term uint64)
	// LeaderConn returns the connection to the cluster port of the replica that
	// leads. It returns cluster.ErrNoLeader if nobody leads or this replica does.
	// Bulk transfers have a connection of their own.
	LeaderConn(bulk bool) (conn *grpc.ClientConn, leaderID string, err error)
}

// atLeader answers a call that only the leader can answer: here, or by one hop to
// the leader under the same method name. Errors carry a gRPC status.
func atLeader[Response any, Pointer interface {
	*Response
	proto.Message
}](
	ctx context.Context, s *Service, method string, request proto.Message, local func(context.Context) (Pointer, error),
) (Pointer, error) {
	conn, err := s.leaderConn(ctx, false)
	if err != nil {
		return nil, s.statusOf(err)
	}
	if conn == nil {
		s.sayWhoAnswers(ctx)
		return local(ctx)
	}
	response := Pointer(new(Response))
	var headers metadata.MD
	err = conn.Invoke(onBehalf(ctx), method, request, response, grpc.Header(&headers))
	if err != nil {
		return nil, fromLeader(err, headers)
	}
	if index := headers.Get(IndexKey); len(index) > 0 {
		_ = grpc.SetHeader(ctx, metadata.Pairs(IndexKey, index[0]))
	}
	return response, nil
}

// leaderConn returns the connection to the leader, nil if the call is to be
// answered here: this replica leads, or another one took it for the leader, and a
// call travels one hop only. It waits for a leader a while.
func (s *Service) leaderConn(ctx context.Context, bulk bool) (*grpc.ClientConn, error) {
	if s.cluster == nil || fromReplica(ctx) {
		return nil, nil
	}
	patient, cancel := context.WithTimeout(ctx, patience(ctx, leaderTimeout))
	defer cancel()
	patient, stop := s.whileQuorum(patient)
	defer stop()
	for {
		if leading, _ := s.cluster.Leadership(); leading {
			return nil, nil
		}
		conn, _, err := s.cluster.LeaderConn(bulk)
		if err == nil {
			err = waitConnected(patient, conn)
		}
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(leaderLook):
		case <-patient.Done():
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, quorumLost(patient, err)
		}
	}
}

// waitConnected waits until a connection stands. What is called on one that does not
// stand surely did not arrive.
func waitConnected(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		conn.Connect()
		if state == connectivity.Shutdown || !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("%w: the leader cannot be reached", cluster.ErrNoLeader)
		}
	}
}

// sayWhoAnswers marks an answer to another replica.
func (s *Service) sayWhoAnswers(ctx context.Context) {
	if s.cluster != nil && fromReplica(ctx) {
		_ = grpc.SetHeader(ctx, metadata.Pairs(leaderKey, s.cluster.ReplicaID()))
	}
}

// unansweredByLeader is a call that broke on the way to the leader or back.
type unansweredByLeader struct{ cause error }

func (e *unansweredByLeader) Error() string { return "the leader did not answer: " + e.cause.Error() }
func (e *unansweredByLeader) Unwrap() error { return e.cause }

// GRPCStatus makes it a status of its own.
func (e *unansweredByLeader) GRPCStatus() *status.Status {
	return status.New(status.Code(e.cause), statusText("the leader did not answer: "+status.Convert(e.cause).Message()))
}

// fromLeader returns the leader's error as it is, and tells it from none.
func fromLeader(err error, headers metadata.MD) error {
	if len(headers.Get(leaderKey)) == 0 {
		return &unansweredByLeader{cause: err}
	}
	return err
}

// unknownAtLeader is what a caller gets whose change broke on the way.
func unknownAtLeader(broken error) error {
	return status.Error(codes.Aborted, statusText((&cluster.UnknownOutcomeError{Cause: broken}).Error()))
}

// changeAtLeader is atLeader for a change, of which it leaves one line in the log
// of the replica that was asked. A change that broke on the way has an unknown
// outcome.
func changeAtLeader[Response any, Pointer interface {
	*Response
	proto.Message
}](
	ctx context.Context, s *Service, action string, subject []any, method string, request proto.Message,
	local func(context.Context) (Pointer, error),
) (Pointer, error) {
	response, err := atLeader(ctx, s, method, request, local)
	var broken *unansweredByLeader
	if errors.As(err, &broken) {
		err = unknownAtLeader(broken)
	}
	if !fromReplica(ctx) {
		s.auditOf(ctx, action, subject, err)
	}
	return response, err
}
