package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// defaultLongWait bounds a join, a save and a restore where no limit is given.
const defaultLongWait = 10 * time.Minute

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
		Use:   "init",
		Short: "Make the replica asked the first member of a new cluster",
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
		Use:   "join HOST:PORT",
		Short: "Make the replica asked a member of a cluster",
		Long: "Make the replica asked a member of the cluster that the replica at HOST:PORT, the cluster port of any member, belongs to. " +
			"The new member has no vote at first; the command shows its progress and returns when it votes, " +
			"or when an operator keeps it from voting. --" + timeoutFlag + " limits the wait (10m if it is not given). " +
			"It may be repeated.",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error { return t.join(command, args[0]) },
	}
}

func (t *tree) join(command *cobra.Command, address string) error {
	var last *slimcppb.JoinProgress
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
				fmt.Fprintf(command.OutOrStdout(), "%s %s\n", progress.GetReplicaId(), printable(progress.GetLine()))
			}
		}
	})
	if err != nil || t.format == formatTable {
		return err
	}
	return t.printMessage(command, "", last)
}

func (t *tree) leaveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "leave",
		Short: "Remove the replica asked from its cluster, for good",
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
		Args:  cobra.ExactArgs(1),
		RunE:  func(command *cobra.Command, args []string) error { return run(command, args[0]) },
	}
}

func (t *tree) removeReplicaCommand() *cobra.Command {
	return replicaCommand("remove", "Remove a member from the cluster, for good",
		"Its id never joins again; its process ends if it runs. A leader hands over first.",
		func(command *cobra.Command, replica string) error {
			answer, err := changeCluster(t, command, "remove "+replica, &slimcppb.RemoveReplicaRequest{Replica: replica},
				slimcppb.ClusterServiceClient.RemoveReplica)
			if err != nil {
				return err
			}
			return t.printMessage(command, fmt.Sprintf("Replica '%s' is removed\n", printable(replica)), answer)
		})
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
		Args: cobra.MaximumNArgs(1),
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

func (t *tree) clusterStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the replicas, who leads, and how many may fail",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var answer *slimcppb.ClusterStatusResponse
			err := t.connect(command, "cluster status", func(ctx context.Context, connection *grpc.ClientConn) (err error) {
				answer, err = slimcppb.NewClusterServiceClient(connection).ClusterStatus(ctx, &slimcppb.ClusterStatusRequest{})
				return err
			})
			if err != nil {
				return err
			}
			if t.format != formatTable {
				return t.printMessage(command, "", answer)
			}
			return t.print(command, clusterListing(answer))
		},
	}
}

func clusterListing(answer *slimcppb.ClusterStatusResponse) listing {
	list := listing{
		columns: []string{"NAME", "REPLICA_ID", "ROLE", "HEALTH", "APPLIED", "LAG", "LAST_CONTACT", "VERSION", "SCHEMA", "SESSIONS", "ADDRESS"},
	}
	if len(answer.GetReplicas()) == 0 {
		list.heading = fmt.Sprintf("Replica %s is not a member of a cluster: \"slim-cp cluster init\" makes one of it, "+
			"\"slim-cp cluster join HOST:PORT\" has it join one", answer.GetReplicaId())
		return list
	}
	leader := "leader: " + answer.GetLeaderId()
	if answer.GetLeaderId() == "" {
		leader = "no leader"
	}
	list.heading = fmt.Sprintf("Cluster %s, %s\nterm: %d, generation: %d, index: %d, schema: %d\nfailure tolerance: %d",
		orAbsent(answer.GetClusterId()), leader, answer.GetTerm(), answer.GetGeneration(), answer.GetIndex(), answer.GetSchema(),
		answer.GetFailureTolerance())
	for _, note := range answer.GetNotes() {
		list.heading += "\n" + printable(note)
	}
	for _, replica := range answer.GetReplicas() {
		list.rows = append(list.rows, replicaRow(replica))
	}
	return list
}

func replicaRow(replica *slimcppb.ReplicaStatus) []string {
	health := "healthy"
	if !replica.GetHealthy() {
		health = orAbsent(replica.GetProblem())
	}
	contact := absent
	if replica.LastContactMs != nil {
		contact = (time.Duration(replica.GetLastContactMs()) * time.Millisecond).String()
	}
	return []string{
		replica.GetName(), replica.GetReplicaId(), roleText(replica.GetRole()), health,
		strconv.FormatUint(replica.GetAppliedIndex(), 10), strconv.FormatUint(replica.GetLag(), 10), contact,
		orAbsent(replica.GetVersion()), strconv.FormatUint(uint64(replica.GetSchema()), 10),
		strconv.FormatUint(replica.GetSessions(), 10), replica.GetAddress(),
	}
}

func roleText(role slimcppb.ReplicaRole) string {
	switch role {
	case slimcppb.ReplicaRole_REPLICA_ROLE_LEADER:
		return "leader"
	case slimcppb.ReplicaRole_REPLICA_ROLE_VOTER:
		return "voter"
	case slimcppb.ReplicaRole_REPLICA_ROLE_NON_VOTER:
		return "non-voter"
	case slimcppb.ReplicaRole_REPLICA_ROLE_HELD_BACK:
		return "held back"
	}
	return absent
}
