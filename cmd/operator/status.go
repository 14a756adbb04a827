package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// defaultWait bounds "status --wait" where no limit is given.
	defaultWait = time.Minute
	// askAgain is how soon a wait looks again at first; each look waits longer,
	// up to askAgainMost.
	askAgain     = 100 * time.Millisecond
	askAgainMost = 2 * time.Second
	// oneLook bounds one look of a wait: a replica that hangs must not use up
	// the time in which its successor could answer.
	oneLook = 5 * time.Second
)

func (t *tree) statusCommand() *cobra.Command {
	var wait, expectAll bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Say whether every node holds what it should, or what is missing",
		Long: "Say whether every node holds what it should, or what is missing.\n\n" +
			"With --wait it returns as soon as that is so; --" + timeoutFlag + " then limits the whole wait (1m if it is not given).\n\n" +
			"Nodes that were given up are counted as gone for sessions.node_retention; with --expect-all nothing counts as converged as long as there are any.\n\n" +
			"Exit codes: 0 all is converged, 1 no answer, 2 usage, 4 not converged.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.status(command, wait, expectAll) },
	}
	command.Flags().BoolVar(&wait, "wait", false, "wait until all is converged")
	command.Flags().BoolVar(&expectAll, "expect-all", false, "nodes that are gone are missed, too")
	return command
}

func (t *tree) status(command *cobra.Command, wait, expectAll bool) error {
	limit := time.Duration(0)
	if wait {
		limit = defaultWait
	}
	converged := func(answer *slimcppb.ConvergenceResponse) bool {
		return answer.GetConverged() && (!expectAll || answer.GetDepartedNodes() == 0)
	}
	var answer *slimcppb.ConvergenceResponse
	err := t.connectServers(command, limit, "status", func(ctx context.Context, servers *servers) (err error) {
		limit = servers.limit
		look := func(ctx context.Context) (answer *slimcppb.ConvergenceResponse, err error) {
			err = servers.call(ctx, func(ctx context.Context, connection *grpc.ClientConn) (err error) {
				answer, err = slimcppb.NewClusterServiceClient(connection).Convergence(ctx, &slimcppb.ConvergenceRequest{})
				return err
			})
			return answer, err
		}
		if wait {
			look = waiting(look, converged)
		}
		answer, err = look(ctx)
		return err
	})
	if err != nil {
		return err
	}
	lines := answer.GetLines()
	for _, warning := range answer.GetWarnings() {
		lines = append(lines, "warning: "+warning)
	}
	if err := t.printMessage(command, indented(statusHeading(answer), lines), answer); err != nil {
		return err
	}
	problem := "not converged"
	switch {
	case converged(answer):
		return nil
	case answer.GetConverged():
		problem = fmt.Sprintf("not all nodes are there: %d gone", answer.GetDepartedNodes())
	}
	if wait {
		problem += fmt.Sprintf(" within %v", limit)
	}
	return &notConvergedError{problem}
}

// waiting returns a look that looks until its answer is the one waited for or the
// context ends. Then it returns the last answer, or if none ever came the last error
// from before the end. A replica may be unavailable meanwhile: leaders change.
func waiting[Answer any](once func(context.Context) (*Answer, error), good func(*Answer) bool) func(context.Context) (*Answer, error) {
	return func(ctx context.Context) (*Answer, error) {
		var last *Answer
		var problem error
		for pause := askAgain; ; pause = min(pause*3/2, askAgainMost) {
			bounded, cancel := context.WithTimeout(ctx, oneLook)
			answer, err := once(bounded)
			cancel()
			switch {
			case err == nil:
				last = answer
			case ctx.Err() == nil && !passing(err):
				return nil, err
			case ctx.Err() == nil || problem == nil:
				problem = err
			}
			switch {
			case !good(last) && sleep(ctx, pause):
			case last == nil:
				return nil, problem
			default:
				return last, nil
			}
		}
	}
}

// passing reports whether an error may be gone at the next attempt.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return true
	}
	return false
}

// sleep reports whether the context outlived the pause.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func statusHeading(answer *slimcppb.ConvergenceResponse) string {
	verdict := "Converged"
	if !answer.GetConverged() {
		verdict = "Not converged"
	}
	gone := ""
	if departed := answer.GetDepartedNodes(); departed > 0 {
		gone = fmt.Sprintf(", %d gone", departed)
	}
	heading := fmt.Sprintf("%s at index %d: %d of %d nodes connected%s, %d of %d links applied, %d of %d routes applied",
		verdict, answer.GetIndex(),
		answer.GetConnectedNodes(), answer.GetNodes(), gone,
		answer.GetAppliedLinks(), answer.GetLinks(),
		answer.GetAppliedRoutes(), answer.GetRoutes())
	switch waiting := answer.GetWaitingPairs(); waiting {
	case 0:
		return heading
	case 1:
		return heading + ", 1 pair of groups waits for a node"
	default:
		return fmt.Sprintf("%s, %d pairs of groups wait for a node", heading, waiting)
	}
}

// notConvergedError is an answer that is not the one hoped for.
type notConvergedError struct{ text string }

func (e *notConvergedError) Error() string { return e.text }
func (e *notConvergedError) ExitCode() int { return ExitNotConverged }
