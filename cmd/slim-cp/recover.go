package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/slim-cp/slim-cp/cluster"
)

// newRecover makes the command for a cluster that has lost its quorum. It works on
// the data directory of a replica that does not run.
func newRecover() *cobra.Command {
	var file string
	var sure bool
	command := &cobra.Command{
		Use:   "recover",
		Short: "Make a stopped replica the only member of its cluster, when a quorum is lost for good",
		Long: "Make a stopped replica the only member of its cluster, when a quorum is lost for good. " +
			"It works on the data directory that the replica's configuration file names. " +
			"Without --yes it only says what it would do. What the other members had and this replica has not is lost; " +
			"their ids never join again: set their data directories aside and let them join anew. " +
			"The data directory is copied first.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			options, err := recoverOptions(file)
			if err != nil {
				return err
			}
			options.DryRun = !sure
			recovery, err := cluster.Recover(command.Context(), options)
			if err != nil {
				return withExitCode(err)
			}
			sayRecovery(command.OutOrStdout(), recovery, options)
			return nil
		},
	}
	command.Flags().StringVarP(&file, "config", "c", "", "configuration `file` of the replica")
	command.Flags().BoolVar(&sure, "yes", false, "do it")
	// The flag was defined just above; the only error is that it does not exist.
	_ = command.MarkFlagRequired("config")
	return command
}

func recoverOptions(file string) (cluster.RecoverOptions, error) {
	settings, err := load(file)
	if err != nil {
		return cluster.RecoverOptions{}, err
	}
	if settings.Cluster == nil {
		return cluster.RecoverOptions{}, errors.New(file + ": no cluster section: a lone replica has no quorum to lose")
	}
	return cluster.RecoverOptions{
		DataDir: settings.Cluster.DataDir, Advertise: settings.Cluster.Advertise, Logger: hclog.NewNullLogger(),
	}, nil
}

func sayRecovery(to io.Writer, recovery cluster.Recovery, options cluster.RecoverOptions) {
	fmt.Fprintf(to, "Replica %s of cluster %s, log up to index %d\n", recovery.ReplicaID, recovery.ClusterID, recovery.LastIndex)
	for _, member := range recovery.Members {
		role := "voter"
		if !member.Voter {
			role = "non-voter"
		}
		fate := "its id never joins again"
		if member.ReplicaID == recovery.ReplicaID {
			fate = "the only member from now on, at " + options.Advertise
		}
		fmt.Fprintf(to, "  %s at %s (%s): %s\n", member.ReplicaID, member.Address, role, fate)
	}
	if recovery.Cut > 0 {
		what, verb := "are", "cut off"
		if recovery.Cut == 1 {
			what = "is"
		}
		fmt.Fprintf(to, "%s: the last %d of the log %s %s\n", recovery.CutReason, recovery.Cut, what, verb)
	}
	if options.DryRun {
		fmt.Fprintln(to, "Nothing was changed. Make sure that the other members do not run, then give --yes")
		return
	}
	fmt.Fprintf(to, "Recovered: generation %d at index %d. The data directory as it was is in %s\n",
		recovery.State.Generation, recovery.State.Index, recovery.Backup)
}
