package cluster

import (
	"errors"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// proposalErrors maps the errors of a proposal to the wire, one to one. The first
// match counts.
var proposalErrors = []struct {
	err  error
	code slimcppb.ProposalError
}{
	{ErrUnknownOutcome, slimcppb.ProposalError_PROPOSAL_ERROR_UNKNOWN},
	{ErrNotLeader, slimcppb.ProposalError_PROPOSAL_ERROR_NOT_LEADER},
	{ErrNoLeader, slimcppb.ProposalError_PROPOSAL_ERROR_NO_LEADER},
	{ErrOverloaded, slimcppb.ProposalError_PROPOSAL_ERROR_OVERLOADED},
	{ErrTooLarge, slimcppb.ProposalError_PROPOSAL_ERROR_TOO_LARGE},
	{ErrInvalidCommand, slimcppb.ProposalError_PROPOSAL_ERROR_INVALID},
	{ErrShutdown, slimcppb.ProposalError_PROPOSAL_ERROR_SHUTDOWN},
}

// remoteError is an error that another replica told: its text, and its kind for
// errors.Is.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

func (o outcome) proto() *slimcppb.Outcome {
	if o.err == nil {
		message := &slimcppb.Outcome{
			Index: o.result.Index, NodeId: o.result.NodeID, Epoch: o.result.Epoch, LinkId: o.result.LinkID,
			Repeated: o.result.Repeated,
		}
		if o.result.Err != nil {
			message.Refusal, message.Message = fsm.ErrorName(o.result.Err), o.result.Err.Error()
		}
		return message
	}
	for _, known := range proposalErrors {
		if errors.Is(o.err, known.err) {
			return &slimcppb.Outcome{Error: known.code, Message: o.err.Error()}
		}
	}
	return &slimcppb.Outcome{Error: slimcppb.ProposalError_PROPOSAL_ERROR_UNKNOWN, Message: o.err.Error()}
}

func outcomeFromProto(message *slimcppb.Outcome) outcome {
	if message.GetError() == slimcppb.ProposalError_PROPOSAL_ERROR_NONE {
		result := fsm.Result{
			Index: message.GetIndex(), NodeID: message.GetNodeId(), Epoch: message.GetEpoch(), LinkID: message.GetLinkId(),
			Repeated: message.GetRepeated(),
		}
		if message.GetRefusal() != "" {
			result.Err = fsm.NamedError(message.GetRefusal(), message.GetMessage())
		}
		return outcome{result: result}
	}
	for _, known := range proposalErrors {
		if known.code == message.GetError() && known.code != slimcppb.ProposalError_PROPOSAL_ERROR_UNKNOWN {
			return outcome{err: &remoteError{text: message.GetMessage(), kind: known.err}}
		}
	}
	return outcome{err: &UnknownOutcomeError{Cause: errors.New(message.GetMessage())}}
}
