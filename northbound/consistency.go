package northbound

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
)

// Metadata keys of the API.
const (
	// ConsistencyKey is set by a caller that chooses how a list is read.
	ConsistencyKey = "slimcp-consistency"
	// IndexKey tells the log index of the view that a list shows.
	IndexKey = "slimcp-index"
	// AgeKey tells of a stale list by how many milliseconds it may be behind:
	// the time since the last command that it shows was stamped. In a quiet
	// cluster that is more than it really is.
	AgeKey = "slimcp-age-ms"
)

// Values of ConsistencyKey. Without one a read is linearizable.
const (
	Linearizable = "linearizable"
	Stale        = "stale"
)

// readTimeout bounds the wait for the leader's confirmation. With listTimeout it
// stays below the 15 s after which slimctl gives up.
const readTimeout = 4 * time.Second

// consistency returns what the caller asked for.
func consistency(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, ConsistencyKey)
	if len(values) == 0 {
		return Linearizable, nil
	}
	switch last := values[len(values)-1]; last {
	case Linearizable, Stale:
		return last, nil
	default:
		return "", status.Errorf(codes.InvalidArgument, "%s %q: accepted are %q and %q", ConsistencyKey, shown(last), Linearizable, Stale)
	}
}

// view returns the state in the consistency that the caller asked for and tells
// its index in the response headers. Errors carry a gRPC status.
func (s *Service) view(ctx context.Context) (*fsm.View, error) {
	wanted, err := consistency(ctx)
	if err != nil {
		return nil, err
	}
	if wanted == Stale {
		view := s.reader.View()
		return view, grpc.SetHeader(ctx, s.staleHeaders(view))
	}
	view, err := s.read(ctx)
	if err != nil {
		return nil, s.statusOf(err)
	}
	return view, grpc.SetHeader(ctx, indexHeader(view))
}

func (s *Service) read(ctx context.Context) (*fsm.View, error) {
	limit := patience(ctx, readTimeout)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	bounded, stop := s.whileQuorum(bounded)
	defer stop()
	view, err := s.reader.Read(bounded)
	err = quorumLost(bounded, err)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("%w within %v", errUnconfirmed, limit)
	}
	return view, err
}

// quorumLost returns why no leader can be elected in the place of an error of a call
// that did not wait for one any longer.
func quorumLost(ctx context.Context, err error) error {
	var lost *cluster.QuorumLostError
	if err == nil || errors.Is(err, cluster.ErrUnknownOutcome) || !errors.As(context.Cause(ctx), &lost) {
		return err
	}
	return lost
}

// patience is how long a call waits for the cluster: the limit, or less if the
// caller waits less. A caller whose time runs out learns nothing but that; told
// before, it learns why.
func patience(ctx context.Context, limit time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		limit = min(limit, (left - left/5).Round(10*time.Millisecond))
	}
	return limit
}

func indexHeader(view *fsm.View) metadata.MD {
	return metadata.Pairs(IndexKey, strconv.FormatUint(view.Index(), 10))
}

func (s *Service) staleHeaders(view *fsm.View) metadata.MD {
	headers := indexHeader(view)
	if stamped := view.Clock(); !stamped.IsZero() {
		age := max(s.now().Sub(stamped), 0)
		headers.Set(AgeKey, strconv.FormatInt(age.Milliseconds(), 10))
	}
	return headers
}
