package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/cmd/operator/snapshotfile"
	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// standardOutput is the FILE of a snapshot that is written to standard output.
const standardOutput = "-"

// snapshotPart is how much of a file goes into one message, in bytes.
const snapshotPart = 256 << 10

func (t *tree) snapshotCommand() *cobra.Command {
	var force, stale bool
	save := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the state of the cluster to a file",
		Long: "Save the state of the cluster, with everything that was answered before, to a file. " +
			"The file is written beside its place, checked and moved there, so it is complete or not there. " +
			"FILE may be a pipe, or \"-\" for standard output: what went through is checked, too, so look at the exit code. " +
			"With --stale it is what the replica asked has, which may be old: that needs no leader, so it is the way to keep the state " +
			"of a replica that is left alone. " + longLimit,
		Args: exactly("FILE"),
		RunE: func(command *cobra.Command, args []string) error { return t.saveSnapshot(command, args[0], stale) },
	}
	save.Flags().BoolVar(&stale, "stale", false, "save what the replica asked has, which may be old and needs no leader")
	inspect := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a saved state and say what it holds",
		Long: "Check a saved state as a restore does, and say what it holds, or all that is wrong with it. " +
			"It asks no control plane; what a restore also compares with the cluster is not known here.",
		Args: exactly("FILE"),
		RunE: func(command *cobra.Command, args []string) error {
			info, err := snapshotfile.Inspect(args[0])
			if wrong := (*fsm.StateError)(nil); errors.As(err, &wrong) {
				for _, problem := range wrong.Problems {
					fmt.Fprintln(command.ErrOrStderr(), printable(problem))
				}
				return fmt.Errorf("%s: %w: %d problems", args[0], fsm.ErrSnapshot, len(wrong.Problems))
			}
			if err != nil {
				return err
			}
			return t.printSnapshot(command, "Snapshot "+args[0], messageOf(info))
		},
	}
	restore := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a saved state the state of the cluster",
		Long: "Make a saved state the state of the cluster, while it runs. Nodes stay connected and are brought to the restored state. " +
			"Changes that are under way have an unknown outcome. A damaged file changes nothing; " +
			"one of another cluster is taken only with --force. " + longLimit,
		Args: exactly("FILE"),
		RunE: func(command *cobra.Command, args []string) error { return t.restoreSnapshot(command, args[0], force) },
	}
	restore.Flags().BoolVar(&force, "force", false, "take the saved state of another cluster")
	return nounCommand(&cobra.Command{Use: "snapshot", Short: "The state of the cluster as a file"}, save, inspect, restore)
}

func (t *tree) saveSnapshot(command *cobra.Command, path string, stale bool) error {
	var info fsm.SnapshotInfo
	err := t.connectFor(command, defaultLongWait, "save snapshot", func(ctx context.Context, connection *grpc.ClientConn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := slimcppb.NewClusterServiceClient(connection).SaveSnapshot(ctx, &slimcppb.SaveSnapshotRequest{Stale: stale})
		if err != nil {
			return err
		}
		receive := func(w io.Writer) error { return receiveSnapshot(w, stream) }
		if path == standardOutput {
			info, err = snapshotfile.WriteTo(command.OutOrStdout(), receive)
		} else {
			info, err = snapshotfile.Write(path, receive)
		}
		return err
	})
	if err != nil || path == standardOutput {
		return err // what it holds is no part of it
	}
	return t.printSnapshot(command, "Saved "+path, messageOf(info))
}

var errCutSnapshot = errors.New("the snapshot was cut off on its way")

// receiveSnapshot writes what a stream brings, to its last part.
func receiveSnapshot(w io.Writer, stream grpc.ServerStreamingClient[slimcppb.SaveSnapshotResponse]) error {
	complete := false
	for parts := 0; ; parts++ {
		part, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && complete:
			return nil
		case errors.Is(err, io.EOF):
			return errCutSnapshot
		case err != nil && parts > 0: // it must not begin once more behind them
			return &finalError{err}
		case err != nil:
			return err
		}
		complete = part.GetInfo() != nil
		if _, err := w.Write(part.GetData()); err != nil {
			return err
		}
	}
}

func (t *tree) restoreSnapshot(command *cobra.Command, path string, force bool) error {
	if _, err := snapshotfile.Inspect(path); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() // nothing was written
	var answer *slimcppb.RestoreSnapshotResponse
	progress := &callProgress{}
	err = t.connectFor(command, defaultLongWait, "restore "+path, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if answer, err = sendSnapshot(ctx, connection, file, force); err != nil && progress.sent.Load() {
			return &finalError{err}
		}
		return err
	}, grpc.WithStatsHandler(progress))
	if err != nil {
		// A file that cannot be read to its end was not restored.
		if _, answered := status.FromError(err); answered && progress.unknown(err) {
			return &unknownOutcomeError{err}
		}
		return err
	}
	return t.printSnapshot(command, "Restored "+path+", the state is now", answer.GetInfo())
}

func sendSnapshot(ctx context.Context, connection *grpc.ClientConn, file io.Reader, force bool) (*slimcppb.RestoreSnapshotResponse, error) {
	stream, err := slimcppb.NewClusterServiceClient(connection).RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	part := &slimcppb.RestoreSnapshotRequest{Part: &slimcppb.RestoreSnapshotRequest_Options{Options: &slimcppb.RestoreOptions{Force: force}}}
	buffer := make([]byte, snapshotPart)
	for {
		if err := stream.Send(part); err != nil {
			break // CloseAndRecv says why
		}
		n, err := io.ReadFull(file, buffer)
		if n == 0 && errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		part = &slimcppb.RestoreSnapshotRequest{Part: &slimcppb.RestoreSnapshotRequest_Data{Data: buffer[:n]}}
	}
	return stream.CloseAndRecv()
}

func messageOf(info fsm.SnapshotInfo) *slimcppb.SnapshotInfo {
	message := &slimcppb.SnapshotInfo{
		ClusterId: info.ClusterID, Generation: info.Generation, Index: info.Index, Term: info.Term, Schema: info.Schema,
	}
	if !info.Clock.IsZero() {
		message.TimeUnixNanos = info.Clock.UnixNano()
	}
	for _, kind := range info.Records {
		message.Records = append(message.Records, &slimcppb.SnapshotRecords{Kind: kind.Kind, Count: uint64(kind.Count)})
	}
	return message
}

func (t *tree) printSnapshot(command *cobra.Command, heading string, info *slimcppb.SnapshotInfo) error {
	at := absent
	if info.GetTimeUnixNanos() != 0 {
		at = time.Unix(0, info.GetTimeUnixNanos()).UTC().Format(time.RFC3339)
	}
	var records []string
	for _, kind := range info.GetRecords() {
		records = append(records, fmt.Sprintf("%s: %d", kind.GetKind(), kind.GetCount()))
	}
	return t.printMessage(command, indented(heading, []string{
		"cluster: " + orAbsent(info.GetClusterId()),
		fmt.Sprintf("generation: %d, index: %d, term: %d, schema: %d", info.GetGeneration(), info.GetIndex(), info.GetTerm(), info.GetSchema()),
		"last change: " + at,
		strings.Join(records, ", "),
	}), info)
}
