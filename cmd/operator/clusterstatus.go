package operator

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func (t *tree) clusterStatusCommand() *cobra.Command {
	var wait, exitCode bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Show the replicas, who leads, and how many may fail",
		Long: "Show the replicas, who leads, and how many may fail, as the replica asked sees it. It needs no leader.\n\n" +
			"With --wait it returns as soon as somebody leads and every replica is healthy and ready, which is when the next one " +
			"may be restarted; --" + timeoutFlag + " then limits the whole wait (1m if it is not given).\n\n" +
			"Exit codes: 0 whatever the answer says; with --wait or --exit-code 4 if nobody leads, or a replica is not healthy or not ready.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return t.showClusterStatus(command, wait, exitCode || wait)
		},
	}
	command.Flags().BoolVar(&wait, "wait", false, "wait until somebody leads and every replica is healthy and ready")
	command.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 4 unless that is so")
	return command
}

func (t *tree) showClusterStatus(command *cobra.Command, wait, judged bool) error {
	limit := time.Duration(0)
	if wait {
		limit = defaultWait
	}
	var answer *slimcppb.ClusterStatusResponse
	err := t.connectServers(command, limit, "cluster status", func(ctx context.Context, servers *servers) (err error) {
		look := func(ctx context.Context) (answer *slimcppb.ClusterStatusResponse, err error) {
			err = servers.call(ctx, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
				answer, err = slimcppb.NewClusterServiceClient(connection).ClusterStatus(ctx, &slimcppb.ClusterStatusRequest{})
				return err
			})
			return answer, err
		}
		if wait {
			look = waiting(look, func(answer *slimcppb.ClusterStatusResponse) bool { return clusterProblem(answer) == "" })
		}
		answer, err = look(ctx)
		return err
	})
	if err != nil {
		return err
	}
	noteAbsentees(answer)
	if t.format == formatTable {
		err = t.print(command, clusterListing(answer))
	} else {
		err = t.printMessage(command, "", answer)
	}
	if problem := clusterProblem(answer); err == nil && judged && problem != "" {
		return &notConvergedError{problem}
	}
	return err
}

// clusterProblem says why the cluster is not as well as it can be, "" if it is.
func clusterProblem(answer *slimcppb.ClusterStatusResponse) string {
	switch {
	case len(answer.GetReplicas()) == 0:
		return "the replica asked is not a member of a cluster"
	case answer.GetQuorumLost():
		return "the quorum is lost"
	case answer.GetLeaderId() == "":
		return "nobody leads"
	}
	for _, replica := range answer.GetReplicas() {
		switch {
		case !replica.GetHealthy():
			return fmt.Sprintf("replica %s is not healthy: %s", replica.GetReplicaId(), orAbsent(printable(replica.GetProblem())))
		case !isReady(replica):
			return fmt.Sprintf("replica %s is not ready", replica.GetReplicaId())
		}
	}
	return ""
}

// isReady reports whether a replica has caught up and serves nodes. One of an older
// version does not say so.
func isReady(replica *slimcppb.ReplicaStatus) bool {
	if replica.Ready == nil {
		return replica.GetHealthy()
	}
	return replica.GetReady()
}

// noteAbsentees puts into an answer what follows from the members that did not
// answer: none of them leads any more for the replica asked, and without a majority
// of the voters there is no quorum.
func noteAbsentees(answer *slimcppb.ClusterStatusResponse) {
	voters, answering := 0, 0
	for _, replica := range answer.GetReplicas() {
		if replica.GetRole() == slimcppb.ReplicaRole_REPLICA_ROLE_LEADER && !answers(replica) {
			replica.Role = slimcppb.ReplicaRole_REPLICA_ROLE_VOTER
		}
		switch replica.GetRole() {
		case slimcppb.ReplicaRole_REPLICA_ROLE_LEADER, slimcppb.ReplicaRole_REPLICA_ROLE_VOTER:
			voters++
			if answers(replica) {
				answering++
			}
		}
	}
	if needed := voters/2 + 1; voters > 0 && answering < needed {
		answer.QuorumLost = true
		answer.Notes = slices.Insert(answer.Notes, 0, fmt.Sprintf("quorum lost, as this replica sees it: %d of %d voters answer, %d are needed: "+
			"no change is possible until the others are started again "+
			"(if they are lost for good: save what this one has with slim-cp snapshot save --stale, stop it, and run slim-cp cluster recover)",
			answering, voters, needed))
	}
}

// answers reports whether a member said how it is doing: each knows a schema.
func answers(replica *slimcppb.ReplicaStatus) bool { return replica.GetSchema() != 0 }

func clusterListing(answer *slimcppb.ClusterStatusResponse) listing {
	list := listing{
		columns: []string{"NAME", "REPLICA_ID", "ROLE", "HEALTH", "READY", "APPLIED", "LAG", "LAST_CONTACT", "VERSION", "SCHEMA", "SESSIONS", "ADDRESS"},
	}
	if len(answer.GetReplicas()) == 0 {
		list.heading = fmt.Sprintf("Replica %s is not a member of a cluster: \"slim-cp cluster init\" makes one of it, "+
			"\"slim-cp cluster join HOST:PORT\" has it join one", answer.GetReplicaId())
		return list
	}
	leader := "leader: " + answer.GetLeaderId()
	switch at := slices.IndexFunc(answer.GetReplicas(), func(r *slimcppb.ReplicaStatus) bool { return r.GetReplicaId() == answer.GetLeaderId() }); {
	case answer.GetLeaderId() == "":
		leader = "no leader"
	case at >= 0 && !answers(answer.GetReplicas()[at]):
		leader += ", which does not answer"
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
	ready := "no"
	if isReady(replica) {
		ready = "yes"
	}
	number := func(n uint64) string {
		if !answers(replica) {
			return absent
		}
		return strconv.FormatUint(n, 10)
	}
	return []string{
		replica.GetName(), replica.GetReplicaId(), roleText(replica.GetRole()), health, ready,
		number(replica.GetAppliedIndex()), number(replica.GetLag()), contact,
		orAbsent(replica.GetVersion()), number(uint64(replica.GetSchema())),
		number(replica.GetSessions()), replica.GetAddress(),
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
