package northbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// snapshotPart bounds one message of a snapshot's way to an operator, in bytes.
	snapshotPart = 64 << 10
	// maxSaves bounds the snapshots that are on their way at a time. Each holds a
	// view, and what its stream has not taken yet.
	maxSaves = 4
	// stallTimeout is how long one part of a snapshot may take, either way.
	stallTimeout = 30 * time.Second
	// saveTimeout bounds the whole way of a snapshot to an operator.
	saveTimeout = 10 * time.Minute
)

// Snapshots are the whole state, as a file.
type Snapshots interface {
	// SaveSnapshot writes the state with everything that was answered before the
	// call.
	SaveSnapshot(ctx context.Context, w io.Writer) (fsm.SnapshotInfo, error)
	// SaveStaleSnapshot writes what this replica has, which needs no leader.
	SaveStaleSnapshot(w io.Writer) (fsm.SnapshotInfo, error)
	// RestoreSnapshot makes a snapshot the state of the cluster (protocol X3). It
	// is the leader's.
	RestoreSnapshot(ctx context.Context, r io.Reader, force bool) (fsm.SnapshotInfo, error)
}

// SaveSnapshot sends the state of the cluster. It waits for a slow reader, within
// bounds.
func (s *Service) SaveSnapshot(request *slimcppb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[slimcppb.SaveSnapshotResponse]) error {
	if err := s.needCluster(); err != nil {
		return err
	}
	select {
	case s.saves <- struct{}{}:
		defer func() { <-s.saves }()
	default:
		return s.statusOf(fmt.Errorf("%w: this replica sends at most %d at a time", errManySaves, maxSaves))
	}
	ctx, cancel := context.WithTimeoutCause(stream.Context(), saveTimeout,
		fmt.Errorf("%w: not sent within %v", errStalled, saveTimeout))
	defer cancel()
	writer := snapshotWriter{ctx: ctx, stream: stream}
	save := func() (fsm.SnapshotInfo, error) { return s.saveNewest(ctx, writer) }
	if request.GetStale() {
		save = func() (fsm.SnapshotInfo, error) { return s.cluster.SaveStaleSnapshot(writer) }
	}
	info, err := save()
	if err == nil {
		err = writer.send(&slimcppb.SaveSnapshotResponse{Part: &slimcppb.SaveSnapshotResponse_Info{Info: snapshotInfo(info)}})
	}
	return s.membershipStatus(err)
}

// saveNewest writes the newest state, if there is a quorum to say which it is.
func (s *Service) saveNewest(ctx context.Context, w io.Writer) (fsm.SnapshotInfo, error) {
	ctx, stop := s.whileQuorum(ctx)
	defer stop()
	info, err := s.cluster.SaveSnapshot(ctx, w)
	return info, quorumLost(ctx, err)
}

// snapshotWriter sends what is written.
type snapshotWriter struct {
	ctx    context.Context
	stream grpc.ServerStreamingServer[slimcppb.SaveSnapshotResponse]
}

// send returns when the stream has taken a part. Nothing but the end of the call ends
// a Send, so one that takes too long is left to it.
func (w snapshotWriter) send(part *slimcppb.SaveSnapshotResponse) error {
	sent := make(chan error, 1)
	go func() { sent <- w.stream.Send(part) }()
	timer := time.NewTimer(stallTimeout)
	defer timer.Stop()
	select {
	case err := <-sent:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: the caller took nothing for %v", errStalled, stallTimeout)
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
}

func (w snapshotWriter) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		part := p[sent:min(len(p), sent+snapshotPart)]
		if err := w.send(&slimcppb.SaveSnapshotResponse{Part: &slimcppb.SaveSnapshotResponse_Data{Data: part}}); err != nil {
			return sent, err
		}
		sent += len(part)
	}
	return sent, nil
}

func snapshotInfo(info fsm.SnapshotInfo) *slimcppb.SnapshotInfo {
	shown := &slimcppb.SnapshotInfo{
		ClusterId: info.ClusterID, Generation: info.Generation, Index: info.Index, Term: info.Term, Schema: info.Schema,
	}
	if !info.Clock.IsZero() {
		shown.TimeUnixNanos = info.Clock.UnixNano()
	}
	for _, kind := range info.Records {
		shown.Records = append(shown.Records, &slimcppb.SnapshotRecords{Kind: kind.Kind, Count: uint64(kind.Count)})
	}
	return shown
}

// restoring is the stream of a restore.
type restoring = grpc.ClientStreamingServer[slimcppb.RestoreSnapshotRequest, slimcppb.RestoreSnapshotResponse]

// RestoreSnapshot makes a snapshot the state of the cluster. A file that is damaged
// or another cluster's changes nothing.
func (s *Service) RestoreSnapshot(stream restoring) error {
	if err := s.needCluster(); err != nil {
		return err
	}
	ctx := stream.Context()
	conn, err := s.leaderConn(ctx, true)
	var response *slimcppb.RestoreSnapshotResponse
	switch {
	case err != nil:
		err = s.statusOf(err)
	case conn == nil:
		response, err = s.restoreHere(stream)
	default:
		response, err = s.restoreAt(conn, stream)
	}
	if !fromReplica(ctx) {
		s.auditOf(ctx, "restore snapshot", nil, err)
	}
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

func (s *Service) restoreHere(stream restoring) (*slimcppb.RestoreSnapshotResponse, error) {
	s.sayWhoAnswers(stream.Context())
	first, err := receivePart(stream)
	if err != nil {
		return nil, s.transferStatus(err)
	}
	if first.GetOptions() == nil {
		return nil, s.statusOf(argumentError("the first message of a restore must carry its options"))
	}
	info, err := s.cluster.RestoreSnapshot(stream.Context(), &snapshotReader{stream: stream}, first.GetOptions().GetForce())
	if err != nil {
		return nil, s.membershipStatus(err)
	}
	return &slimcppb.RestoreSnapshotResponse{Info: snapshotInfo(info)}, nil
}

// receivePart returns the next part of a restore, once it is there. Nothing but the
// end of the call ends a Recv, so one that takes too long is left to it, and there
// must be no other.
func receivePart(stream restoring) (*slimcppb.RestoreSnapshotRequest, error) {
	type received struct {
		part *slimcppb.RestoreSnapshotRequest
		err  error
	}
	arrived := make(chan received, 1)
	go func() {
		part, err := stream.Recv()
		arrived <- received{part, err}
	}()
	timer := time.NewTimer(stallTimeout)
	defer timer.Stop()
	select {
	case next := <-arrived:
		return next.part, next.err
	case <-timer.C:
		return nil, fmt.Errorf("%w: no part of it came for %v, nothing was restored", errStalled, stallTimeout)
	}
}

// transferStatus leaves the stream's own errors as they are.
func (s *Service) transferStatus(err error) error {
	if errors.Is(err, errStalled) {
		return s.statusOf(err)
	}
	return err
}

// snapshotReader reads what is sent.
type snapshotReader struct {
	stream restoring
	rest   []byte
}

func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		part, err := receivePart(r.stream)
		if err != nil {
			return 0, err
		}
		r.rest = part.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// restoreAt passes a restore on to the leader.
func (s *Service) restoreAt(conn *grpc.ClientConn, from restoring) (*slimcppb.RestoreSnapshotResponse, error) {
	ctx, cancel := context.WithCancel(onBehalf(from.Context()))
	defer cancel()
	to, err := slimcppb.NewClusterServiceClient(conn).RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	for {
		part, err := receivePart(from)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, s.transferStatus(err)
		}
		if err := to.Send(part); err != nil {
			break // the leader has answered, or is gone: CloseAndRecv tells
		}
	}
	response, err := to.CloseAndRecv()
	if err != nil {
		headers, _ := to.Header()
		return nil, restoreError(err, headers)
	}
	return response, nil
}

// restoreError tells a leader's answer from one that got lost.
func restoreError(err error, headers metadata.MD) error {
	if err = fromLeader(err, headers); errors.As(err, new(*unansweredByLeader)) {
		return unknownAtLeader(err)
	}
	return err
}
