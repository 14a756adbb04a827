package fsm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// MaxRequestIDBytes bounds the id of an operator's request.
	MaxRequestIDBytes = 128
	// MaxRequests results of operators' requests are kept; what would be one more is
	// refused with ErrManyRequests.
	MaxRequests = 100_000
	// maxForgotten results are forgotten by one command: entries must stay short.
	maxForgotten = 10_000
	// Under schema 1 the newest maxRequests1 results are kept, each for maxRequestAge1
	// log entries.
	maxRequests1   = 10_000
	maxRequestAge1 = 1_000_000
	// maxRequestError bounds the text of an error that is kept, in bytes.
	maxRequestError = 1024
)

// ErrManyRequests refuses a command whose result could not be remembered, so that it
// could take effect twice. It has no effect; later there is room again.
var ErrManyRequests = errors.New("too many requests in the last minute")

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
	// payload is the hash of what was asked for; 0: it is not known.
	payload uint64
}

// requestByID and requestByAge are a request in the tables. What most comparisons
// need is in the tables' own memory: ids are random, and to follow a pointer for
// each of them was most of what a command of an operator cost.
type requestByID struct {
	hash uint64 // of the id
	*request
}

type requestByAge struct {
	index uint64
	*request
}

func (r *request) byID() requestByID   { return requestByID{hash: xxhash.Sum64String(r.id), request: r} }
func (r *request) byAge() requestByAge { return requestByAge{index: r.index, request: r} }

func lessRequestByID(a, b requestByID) bool {
	if a.hash != b.hash {
		return a.hash < b.hash
	}
	return a.id < b.id
}

func lessRequestByAge(a, b requestByAge) bool {
	if a.index != b.index {
		return a.index < b.index
	}
	return a.id < b.id
}

func (r *request) result() Result {
	return Result{
		Err: NamedError(r.errorName, r.errorText), Index: r.index,
		NodeID: r.nodeID, LinkID: r.linkID, Epoch: r.epoch, Repeated: true,
	}
}

// payloadHash tells what commands ask for apart, whoever sent them and when. It is
// never 0. The kind of the payload is in it: many kinds hold one name and no more.
// Replicas of different builds must agree on it, and with it on how protobuf writes a
// message: a release that does it otherwise shows in the golden files.
func payloadHash(command *slimcppb.Command) uint64 {
	payload := &slimcppb.Command{Payload: command.GetPayload()}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(payload)
	if err != nil { // text that is not UTF-8, which no log entry can hold
		return 1
	}
	return max(1, xxhash.Sum64(encoded))
}

// once runs a command that carries a request id, unless it was run before: then
// the result is the first one's and nothing changes. An id that came with another
// payload is refused: that result would answer something else.
func (a *applier) once(id string, run func() Result) Result {
	if len(id) > MaxRequestIDBytes {
		return Result{Err: fmt.Errorf("%w: request id of %d bytes, at most %d are accepted", ErrInvalid, len(id), MaxRequestIDBytes)}
	}
	a.expireRequests()
	payload := payloadHash(a.command)
	if known, ok := a.requests.get((&request{id: id}).byID()); ok {
		if known.payload != 0 && known.payload != payload {
			return Result{Err: fmt.Errorf("%w: request id %q was used for another change", ErrInvalid, id)}
		}
		return known.result()
	}
	if a.keepsRequests() && a.requests.len() >= MaxRequests {
		return Result{Err: fmt.Errorf("%w: %d results are remembered", ErrManyRequests, MaxRequests)}
	}
	result := run()
	if keeps(result.Err) {
		a.setRequest(&request{
			id: id, index: a.index(), nodeID: result.NodeID, linkID: result.LinkID, epoch: result.Epoch,
			errorName: ErrorName(result.Err), errorText: errorText(result.Err), payload: payload,
		})
	}
	return result
}

// keeps tells results that are final from those after which the caller sends the
// same command again, with the same id.
func keeps(err error) bool {
	for _, passing := range []error{ErrSchema, ErrNotInitialised, ErrStaleGeneration, ErrStaleTerm, ErrGroupsChanged} {
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

// keepsRequests reports whether results are kept until a leader has them forgotten
// (Probe), and not only until others take their place.
func (a *applier) keepsRequests() bool { return a.meta.ActiveSchema >= 2 }

// setRequest keeps a result. Under schema 1 the oldest goes if there are too many.
func (a *applier) setRequest(added *request) {
	if known, ok := a.requests.get(added.byID()); ok {
		a.removeRequest(known.request)
	}
	if !a.keepsRequests() && a.requests.len() >= maxRequests1 {
		if oldest, ok := a.requestOrder.first(); ok {
			a.removeRequest(oldest.request)
		}
	}
	a.requests.set(added.byID())
	a.requestOrder.set(added.byAge())
}

// probe notes how far logs reach, and forgets the results of requests that the leader
// found old enough.
func (a *applier) probe(command *slimcppb.Probe) Result {
	if a.meta.ActiveSchema >= 2 {
		a.confirmLogs(command.GetConfirmed())
	}
	for range maxForgotten {
		oldest, ok := a.requestOrder.first()
		if !ok || oldest.index > command.GetForgetRequests() {
			break
		}
		a.removeRequest(oldest.request)
	}
	return Result{}
}

// OldestRequest returns the log index of the oldest result of a request that is still
// remembered; false if there is none.
func (t *tables) OldestRequest() (index uint64, ok bool) {
	oldest, ok := t.requestOrder.first()
	return oldest.index, ok
}

func (a *applier) removeRequest(old *request) {
	a.requests.delete(old.byID())
	a.requestOrder.delete(old.byAge())
}

// expireRequests forgets results by their distance in the log, under schema 1.
func (a *applier) expireRequests() {
	for !a.keepsRequests() {
		oldest, ok := a.requestOrder.first()
		if !ok || oldest.index+maxRequestAge1 >= a.index() {
			return
		}
		a.removeRequest(oldest.request)
	}
}

func (r *request) proto() *slimcppb.RequestRecord {
	return &slimcppb.RequestRecord{
		RequestId: r.id, Index: r.index, NodeId: r.nodeID, LinkId: r.linkID, Epoch: r.epoch,
		ErrorName: r.errorName, Error: r.errorText, PayloadHash: r.payload,
	}
}

func requestFromProto(record *slimcppb.RequestRecord) *request {
	return &request{
		id: record.GetRequestId(), index: record.GetIndex(), nodeID: record.GetNodeId(), linkID: record.GetLinkId(),
		epoch: record.GetEpoch(), errorName: record.GetErrorName(), errorText: record.GetError(),
		payload: record.GetPayloadHash(),
	}
}
