package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// defaultLongWait bounds a join, a save and a restore where no limit is given.
const defaultLongWait = 10 * time.Minute

// longLimit says so in the help of a command.
const longLimit = "--" + timeoutFlag + " limits the wait (10m if it is not given)."

// clusterCommand holds what makes replicas a cluster. The words of the program that
// need no server come on top.
func (t *tree) clusterCommand(offline ...*cobra.Command) *cobra.Command {
	return nounCommand(&cobra.Command{Use: "cluster", Short: "The replicas of the control plane"},
		append([]*cobra.Command{
			t.initCommand(), t.joinCommand(), t.leaveCommand(),
			t.removeReplicaCommand(), t.promoteCommand(), t.demoteCommand(),
			t.transferCommand(), t.finalizeCommand(), t.clusterStatusCommand(),
		}, offline...)...)
}

func (t *tree) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "init",
		Annotations: map[string]string{aboutTheReplica: ""},
		Short:       "Make the replica asked the first member of a new cluster",
		Long: "Make the replica asked the first member of a new cluster. It is done once, on one replica; the others join it. " +
			"On a member it changes nothing.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := changeCluster(t, command, "init", &slimcppb.InitRequest{}, slimcppb.ClusterServiceClient.Init)
			if err != nil {
				return err
			}
			return t.printMessage(command, fmt.Sprintf("Replica %s is a member of cluster %s\n", answer.GetReplicaId(), answer.GetClusterId()), answer)
		},
	}
}

// clusterMethod is a method of the cluster service.
type clusterMethod[Request, Response any] func(
	slimcppb.ClusterServiceClient, context.Context, *Request, ...grpc.CallOption,
) (*Response, error)

// changeCluster calls a method that changes the cluster.
func changeCluster[Request, Response any](
	t *tree, command *cobra.Command, action string, request *Request, method clusterMethod[Request, Response],
) (answer *Response, err error) {
	err = t.changeOn(command, action, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
		answer, err = method(slimcppb.NewClusterServiceClient(connection), ctx, request)
		return err
	})
	return answer, err
}

func (t *tree) joinCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "join HOST:PORT",
		Annotations: map[string]string{aboutTheReplica: ""},
		Short:       "Make the replica asked a member of a cluster",
		Long: "Make the replica asked a member of the cluster that the replica at HOST:PORT, the cluster port of any member, belongs to. " +
			"The new member has no vote at first; the command shows its progress and returns when it votes, " +
			"or when an operator keeps it from voting. " + longLimit + " If that ends before, the exit code is 3, " +
			"and the replica may vote later all the same. It may be repeated.",
		Args: exactly("HOST:PORT"),
		RunE: func(command *cobra.Command, args []string) error { return t.join(command, args[0]) },
	}
}

func (t *tree) join(command *cobra.Command, address string) error {
	var last *slimcppb.JoinProgress
	reached := &callProgress{}
	err := t.connectFor(command, defaultLongWait, "join "+address, func(ctx context.Context, connection *grpc.ClientConn) error {
		stream, err := slimcppb.NewClusterServiceClient(connection).Join(ctx, &slimcppb.JoinClusterRequest{Address: address})
		if err != nil {
			return err
		}
		for {
			progress, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if last = progress; t.format == formatTable {
				fmt.Fprintf(command.OutOrStdout(), "%s %s\n", printable(progress.GetReplicaId()), printable(progress.GetLine()))
			}
		}
	}, grpc.WithStatsHandler(reached))
	switch {
	case err != nil && last != nil && !last.GetDone():
		return &incompleteJoinError{last.GetReplicaId(), err}
	case err != nil && reached.unknown(err):
		return &unknownOutcomeError{err}
	case err != nil || t.format == formatTable:
		return err
	}
	return t.printMessage(command, "", last)
}

// incompleteJoinError is a join whose wait for the vote ended. Progress comes only
// from a replica that was taken in.
type incompleteJoinError struct {
	replica string
	cause   error
}

func (e *incompleteJoinError) Error() string {
	return fmt.Sprintf("%s joined, does not vote yet; repeat the command to wait for it: %v", e.replica, e.cause)
}

func (e *incompleteJoinError) Unwrap() error { return e.cause }
func (e *incompleteJoinError) ExitCode() int { return ExitUnknownOutcome }

func (t *tree) leaveCommand() *cobra.Command {
	return &cobra.Command{
		Use:         "leave",
		Annotations: map[string]string{aboutTheReplica: ""},
		Short:       "Remove the replica asked from its cluster, for good",
		Long: "Remove the replica asked from its cluster, for good: its process ends, and it joins again only with a new data directory. " +
			"A leader hands over first.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := changeCluster(t, command, "leave", &slimcppb.LeaveRequest{}, slimcppb.ClusterServiceClient.Leave)
			if err != nil {
				return err
			}
			return t.printMessage(command, fmt.Sprintf("Replica %s has left the cluster\n", answer.GetReplicaId()), answer)
		},
	}
}

// replicaCommand makes a command that does something to one member.
func replicaCommand(verb, short, long string, run func(*cobra.Command, string) error) *cobra.Command {
	return &cobra.Command{
		Use:   verb + " REPLICA",
		Short: short,
		Long:  short + ". REPLICA is a name, or an id if several members have that name. " + long,
		Args:  exactly("REPLICA"),
		RunE:  func(command *cobra.Command, args []string) error { return run(command, args[0]) },
	}
}

func (t *tree) removeReplicaCommand() *cobra.Command {
	return replicaCommand("remove", "Remove a member from the cluster, for good",
		"Its id never joins again; its process ends if it runs. A leader hands over first. "+
			"It may be repeated: with the id where a replica of the same name may have joined since.",
		t.removeReplica)
}

// removeReplica asks for the member by its id: by its name a repetition could remove
// another one that has joined under it since.
func (t *tree) removeReplica(command *cobra.Command, replica string) error {
	id, err := t.replicaID(command, replica)
	if err != nil {
		return err
	}
	answer, err := changeCluster(t, command, "remove "+id, &slimcppb.RemoveReplicaRequest{Replica: id},
		slimcppb.ClusterServiceClient.RemoveReplica)
	if err != nil {
		return err
	}
	return t.printMessage(command, fmt.Sprintf("Replica '%s' is removed\n", printable(replica)), answer)
}

// replicaID returns the id of the one member that has a name. Whatever else is given
// it returns as it is: the leader judges that.
func (t *tree) replicaID(command *cobra.Command, nameOrID string) (string, error) {
	answer, err := t.clusterStatus(command, "remove "+nameOrID)
	if err != nil {
		return "", err
	}
	var named []string
	for _, replica := range answer.GetReplicas() {
		if replica.GetReplicaId() == nameOrID {
			return nameOrID, nil
		}
		if replica.GetName() == nameOrID {
			named = append(named, replica.GetReplicaId())
		}
	}
	if len(named) != 1 {
		return nameOrID, nil
	}
	return named[0], nil
}

func (t *tree) clusterStatus(command *cobra.Command, action string) (answer *slimcppb.ClusterStatusResponse, err error) {
	err = t.connect(command, action, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
		answer, err = slimcppb.NewClusterServiceClient(connection).ClusterStatus(ctx, &slimcppb.ClusterStatusRequest{})
		return err
	})
	return answer, err
}

func (t *tree) promoteCommand() *cobra.Command {
	return replicaCommand("promote", "Give a member a vote", "It must be healthy. It may be repeated.",
		func(command *cobra.Command, replica string) error {
			answer, err := changeCluster(t, command, "promote "+replica, &slimcppb.PromoteReplicaRequest{Replica: replica},
				slimcppb.ClusterServiceClient.PromoteReplica)
			if err != nil {
				return err
			}
			return t.printMessage(command, fmt.Sprintf("Replica '%s' votes\n", printable(replica)), answer)
		})
}

func (t *tree) demoteCommand() *cobra.Command {
	return replicaCommand("demote", "Take the vote of a member", "It keeps following, without a vote until it is promoted. A leader hands over first.",
		func(command *cobra.Command, replica string) error {
			answer, err := changeCluster(t, command, "demote "+replica, &slimcppb.DemoteReplicaRequest{Replica: replica},
				slimcppb.ClusterServiceClient.DemoteReplica)
			if err != nil {
				return err
			}
			return t.printMessage(command, fmt.Sprintf("Replica '%s' has no vote\n", printable(replica)), answer)
		})
}

func (t *tree) transferCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "transfer-leader [REPLICA]",
		Short: "Have another member lead",
		Long: "Have another member lead: the one named, by name or id, or the one that is most up to date. " +
			"It must vote, be healthy and be up to date.",
		Args: exactly("[REPLICA]"),
		RunE: func(command *cobra.Command, args []string) error {
			request := &slimcppb.TransferLeadershipRequest{}
			if len(args) > 0 {
				request.To = args[0]
			}
			answer, err := changeCluster(t, command, "transfer-leader", request, slimcppb.ClusterServiceClient.TransferLeadership)
			if err != nil {
				return err
			}
			return t.printMessage(command, fmt.Sprintf("Replica %s leads\n", answer.GetLeaderId()), answer)
		},
	}
}

func (t *tree) finalizeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "finalize-upgrade",
		Short: "Let the cluster use what the versions of all members know",
		Long: "Let the cluster use the newest schema that the versions of all members know. " +
			"Until then the version before can come back; afterwards it cannot.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := changeCluster(t, command, "finalize-upgrade", &slimcppb.FinalizeUpgradeRequest{}, slimcppb.ClusterServiceClient.FinalizeUpgrade)
			if err != nil {
				return err
			}
			return t.printMessage(command, fmt.Sprintf("Schema %d is active\n", answer.GetSchema()), answer)
		},
	}
}
