package fsm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// MaxRequestIDBytes bounds the id of an operator's request.
	MaxRequestIDBytes = 128
	// maxRequests results of operators' requests are kept, the newest.
	maxRequests = 10_000
	// maxRequestAge is for how many log entries a result is kept.
	maxRequestAge = 1_000_000
	// maxRequestError bounds the text of an error that is kept, in bytes.
	maxRequestError = 1024
)

// request is the result of an operator's command, kept so that the command has
// one effect however often it is delivered (protocol X1).
type request struct {
	id     string
	index  uint64
	nodeID string
	linkID string
	epoch  uint64
	// errorName and errorText are those of the result's error.
	errorName string
	errorText string
}

func (r request) result() Result {
	return Result{
		Err: NamedError(r.errorName, r.errorText), Index: r.index,
		NodeID: r.nodeID, LinkID: r.linkID, Epoch: r.epoch,
	}
}

// once runs a command that carries a request id, unless it was run before: then
// the result is the first one's and nothing changes.
func (a *applier) once(id string, run func() Result) Result {
	if len(id) > MaxRequestIDBytes {
		return Result{Err: fmt.Errorf("%w: request id of %d bytes, at most %d are accepted", ErrInvalid, len(id), MaxRequestIDBytes)}
	}
	a.expireRequests()
	if known, ok := a.requests.get(request{id: id}); ok {
		return known.result()
	}
	result := run()
	if keeps(result.Err) {
		a.setRequest(request{
			id: id, index: a.index(), nodeID: result.NodeID, linkID: result.LinkID, epoch: result.Epoch,
			errorName: ErrorName(result.Err), errorText: errorText(result.Err),
		})
	}
	return result
}

// keeps tells results that are final from those after which the caller sends the
// same command again, with the same id.
func keeps(err error) bool {
	for _, passing := range []error{ErrSchema, ErrNotInitialised, ErrStaleGeneration, ErrStaleTerm} {
		if errors.Is(err, passing) {
			return false
		}
	}
	return true
}

// errorText is what is kept of an error's text: it may quote what the command said.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if len(text) > maxRequestError {
		text = text[:maxRequestError]
	}
	return strings.ToValidUTF8(text, "")
}

// setRequest keeps a result; the oldest goes if there are too many.
func (a *applier) setRequest(added request) {
	if known, ok := a.requests.get(added); ok {
		a.removeRequest(known)
	}
	if a.requests.len() >= maxRequests {
		for oldest := range a.requestOrder.all() {
			a.removeRequest(oldest)
			break
		}
	}
	a.requests.set(added)
	a.requestOrder.set(added)
}

func (a *applier) removeRequest(old request) {
	a.requests.delete(old)
	a.requestOrder.delete(old)
}

func (a *applier) expireRequests() {
	var expired []request
	for oldest := range a.requestOrder.all() {
		if oldest.index+maxRequestAge >= a.index() {
			break
		}
		expired = append(expired, oldest)
	}
	for _, old := range expired {
		a.removeRequest(old)
	}
}

func (r request) proto() *slimcppb.RequestRecord {
	return &slimcppb.RequestRecord{
		RequestId: r.id, Index: r.index, NodeId: r.nodeID, LinkId: r.linkID, Epoch: r.epoch,
		ErrorName: r.errorName, Error: r.errorText,
	}
}

func requestFromProto(record *slimcppb.RequestRecord) request {
	return request{
		id: record.GetRequestId(), index: record.GetIndex(), nodeID: record.GetNodeId(), linkID: record.GetLinkId(),
		epoch: record.GetEpoch(), errorName: record.GetErrorName(), errorText: record.GetError(),
	}
}
