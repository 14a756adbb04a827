package operator

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

func (t *tree) clusterStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the replicas, who leads, and how many may fail",
		Long: "Show the replicas, who leads, and how many may fail, as the replica asked sees it. It needs no leader. " +
			"The exit code is 0 whatever the answer says, also if a quorum is lost.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := t.clusterStatus(command, "cluster status")
			if err != nil {
				return err
			}
			noteAbsentees(answer)
			if t.format != formatTable {
				return t.printMessage(command, "", answer)
			}
			return t.print(command, clusterListing(answer))
		},
	}
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
		answer.Notes = slices.Insert(answer.Notes, 0, fmt.Sprintf("quorum lost, as this replica sees it: %d of %d voters answer, %d are needed: "+
			"no change is possible (if the others are lost for good: slim-cp cluster recover)",
			answering, voters, needed))
	}
}

// answers reports whether a member said how it is doing: each knows a schema.
func answers(replica *slimcppb.ReplicaStatus) bool { return replica.GetSchema() != 0 }

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
	number := func(n uint64) string {
		if !answers(replica) {
			return absent
		}
		return strconv.FormatUint(n, 10)
	}
	return []string{
		replica.GetName(), replica.GetReplicaId(), roleText(replica.GetRole()), health,
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
