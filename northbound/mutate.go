package northbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cluster"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// mutationTimeout bounds the wait for the log. With readTimeout it stays below
// the 15 s after which slimctl gives up.
const mutationTimeout = 8 * time.Second

// Proposer puts commands into the log. cluster.Replica is one.
type Proposer interface {
	// ProposeNow returns what the command was answered with once it is committed
	// and applied. It blocks until then or until the context ends, and returns
	// cluster.ErrOverloaded at once if too much is in flight. After an error that
	// is cluster.ErrUnknownOutcome the command may take effect, after any other
	// it does not.
	ProposeNow(ctx context.Context, command *slimcppb.Command) (fsm.Result, error)
}

// mutation is a change that an operator asks for.
type mutation struct {
	action string
	// subject are keys and values for the audit line. No secret may be among them.
	subject []any
	// refused says what is wrong with the arguments, nil if nothing is.
	refused error
	// judge, if there is one, looks at the state before the command is proposed.
	// The command is judged again when it is applied. errUnchanged means that the
	// state is as asked already: nothing is proposed, and that is no error.
	judge func(*fsm.View) error
	// fresh: judge is only good by the newest state.
	fresh   bool
	command *slimcppb.Command
	// texts replace those of errors, which do not know the arguments.
	texts map[error]string
}

// mutate makes a change and returns when it is committed, or with an error that
// carries a gRPC status. Either way it leaves one line in the log: who, from
// where, and what.
func (s *Service) mutate(ctx context.Context, m mutation) (fsm.Result, error) {
	m.command.Caller = callerOf(ctx)
	id, err := requestID(ctx)
	m.command.RequestId = id
	m.refused = cmp.Or(err, m.refused)
	result, err := s.attempt(ctx, m)
	// A command with an id of ours is repeated by nobody but the cluster itself.
	result.Repeated = result.Repeated && lastValue(ctx, RequestIDKey) != ""
	err = m.reword(err)
	s.auditLine(m, result, err)
	if err != nil && !errors.Is(err, errUnchanged) {
		return result, s.statusOf(err)
	}
	// The state is as asked, whether or not the header can tell its index.
	_ = grpc.SetHeader(ctx, metadata.Pairs(IndexKey, strconv.FormatUint(result.Index, 10)))
	return result, nil
}

func (s *Service) attempt(ctx context.Context, m mutation) (fsm.Result, error) {
	if m.refused != nil {
		return fsm.Result{}, m.refused
	}
	// Most changes are good by this replica's own copy, and Apply judges them
	// again. Only a refusal has to be by the newest state.
	if m.judge != nil && (m.fresh || m.judge(s.reader.View()) != nil) {
		view, err := s.read(ctx)
		if err != nil {
			return fsm.Result{}, err
		}
		if err := m.judge(view); err != nil {
			return fsm.Result{Index: view.Index()}, err
		}
	}
	limit := patience(ctx, mutationTimeout)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	bounded, stop := s.whileQuorum(bounded)
	defer stop()
	result, err := s.proposer.ProposeNow(bounded, m.command)
	err = quorumLost(bounded, err)
	switch {
	case err == nil:
		return result, result.Err
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !errors.Is(err, cluster.ErrUnknownOutcome):
		return result, fmt.Errorf("%w within %v", errNotProposed, limit)
	}
	return result, err
}

// auditLine writes the one line about a mutation.
func (s *Service) auditLine(m mutation, result fsm.Result, err error) {
	values := []any{"request", m.command.GetRequestId()}
	switch {
	case err == nil && result.Repeated: // made at that index, not now
		values = append(values, "outcome", "repeated", "index", result.Index)
	case err == nil:
		values = append(values, "outcome", "committed", "index", result.Index)
	case errors.Is(err, errUnchanged):
		values = append(values, "outcome", "unchanged", "index", result.Index)
	case errors.Is(err, cluster.ErrUnknownOutcome):
		values = append(values, "outcome", "unknown", "error", hclog.Quote(statusText(err.Error())))
	default:
		values = append(values, "outcome", "refused", "error", hclog.Quote(statusText(err.Error())))
	}
	s.writeAudit(m.command.GetCaller(), m.action, m.subject, values)
}

// auditOf writes the one line about a change that is no command of an operator. Its
// error carries a gRPC status.
func (s *Service) auditOf(ctx context.Context, action string, subject []any, err error) {
	values := []any{"outcome", "done"}
	switch code := status.Code(err); code {
	case codes.OK:
	case codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		values = []any{"outcome", "unknown", "error", hclog.Quote(statusText(status.Convert(err).Message()))}
	default:
		values = []any{"outcome", "refused", "error", hclog.Quote(statusText(status.Convert(err).Message()))}
	}
	s.writeAudit(callerOf(ctx), action, subject, values)
}

// writeAudit says who changed what, from where, and what became of it. Values are
// quoted and of bounded length: a name with a line break in it must not forge another
// line, nor one of many megabytes fill the disk.
func (s *Service) writeAudit(caller *slimcppb.Caller, action string, subject, outcome []any) {
	values := []any{"action", action}
	for _, part := range subject {
		if text, ok := part.(string); ok && len(values)%2 == 1 {
			part = hclog.Quote(shown(text))
		}
		values = append(values, part)
	}
	values = append(values, "identity", hclog.Quote(shown(caller.GetIdentity())), "address", shown(caller.GetAddress()))
	s.audit.Info("operator's change", append(values, outcome...)...)
}

// reword gives an error the text that the mutation has for it.
func (m mutation) reword(err error) error {
	for known, text := range m.texts {
		if errors.Is(err, known) {
			return &refusal{text: text, cause: err}
		}
	}
	return err
}
