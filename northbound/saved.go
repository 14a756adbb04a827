package northbound

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// snapshotPart bounds one message of a snapshot's way to an operator, in bytes.
const snapshotPart = 256 << 10

// Snapshots are the whole state, as a file.
type Snapshots interface {
	// SaveSnapshot writes the state with everything that was answered before the
	// call.
	SaveSnapshot(ctx context.Context, w io.Writer) (fsm.SnapshotInfo, error)
	// RestoreSnapshot makes a snapshot the state of the cluster (protocol X3). It
	// is the leader's.
	RestoreSnapshot(ctx context.Context, r io.Reader, force bool) (fsm.SnapshotInfo, error)
}

// SaveSnapshot sends the state of the cluster.
func (s *Service) SaveSnapshot(_ *slimcppb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[slimcppb.SaveSnapshotResponse]) error {
	if err := s.needCluster(); err != nil {
		return err
	}
	info, err := s.cluster.SaveSnapshot(stream.Context(), snapshotWriter{stream})
	if err != nil {
		return s.membershipStatus(err)
	}
	return stream.Send(&slimcppb.SaveSnapshotResponse{Part: &slimcppb.SaveSnapshotResponse_Info{Info: snapshotInfo(info)}})
}

// snapshotWriter sends what is written.
type snapshotWriter struct {
	stream grpc.ServerStreamingServer[slimcppb.SaveSnapshotResponse]
}

func (w snapshotWriter) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		part := p[sent:min(len(p), sent+snapshotPart)]
		if err := w.stream.Send(&slimcppb.SaveSnapshotResponse{Part: &slimcppb.SaveSnapshotResponse_Data{Data: part}}); err != nil {
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
		response, err = restoreAt(conn, stream)
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
	first, err := stream.Recv()
	if err != nil {
		return nil, err
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

// snapshotReader reads what is sent.
type snapshotReader struct {
	stream restoring
	rest   []byte
}

func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		part, err := r.stream.Recv()
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
func restoreAt(conn *grpc.ClientConn, from restoring) (*slimcppb.RestoreSnapshotResponse, error) {
	ctx, cancel := context.WithCancel(onBehalf(from.Context()))
	defer cancel()
	to, err := slimcppb.NewClusterServiceClient(conn).RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	for {
		part, err := from.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
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
