package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

const (
	// pollInterval is the pause between two looks of "ctl matrix --wait".
	pollInterval = 200 * time.Millisecond
	// requestTimeout bounds one request; the matrix of a thousand nodes takes a
	// while.
	requestTimeout = 2 * time.Minute
)

// errIncomplete is the outcome of a matrix with defects.
var errIncomplete = errors.New("the delivery matrix is not complete")

func newCtlCommand() *cobra.Command {
	client := &controlClient{}
	command := &cobra.Command{
		Use:   "ctl",
		Short: "Drive and check a running fleet",
	}
	command.PersistentFlags().StringVar(&client.socket, "control", "", "unix socket of the fleet")
	command.AddCommand(
		client.actCommand("kill NODE", "End a node's process as SIGKILL does", cobra.ExactArgs(1)),
		client.actCommand("start NODE", "Start a killed node", cobra.ExactArgs(1)),
		client.actCommand("announce NODE NAME", "Add an application with a name, a/b/c or a/b/c/UUID", cobra.ExactArgs(2)),
		client.actCommand("withdraw NODE NAME", "End an application with a name", cobra.ExactArgs(2)),
		client.nodesCommand(),
		client.matrixCommand(),
	)
	return command
}

// controlClient talks to a controlServer.
type controlClient struct {
	socket string
}

// call makes one request and decodes the answer.
func (c *controlClient) call(ctx context.Context, method, path string, form url.Values, into any) error {
	if c.socket == "" {
		return errors.New("--control is empty: want the unix socket of a fleet")
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, method, "http://fleet"+path+"?"+form.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner
		}
		return fmt.Errorf("--control %s: %w", c.socket, err)
	}
	defer response.Body.Close() //nolint:errcheck // all of it was read
	if response.StatusCode != http.StatusOK {
		var failure errorReport
		if err := json.NewDecoder(response.Body).Decode(&failure); err != nil || failure.Error == "" {
			return fmt.Errorf("--control %s: %s", c.socket, response.Status)
		}
		return errors.New(failure.Error)
	}
	return json.NewDecoder(response.Body).Decode(into)
}

func (c *controlClient) actCommand(use, short string, args cobra.PositionalArgs) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  args,
		RunE: func(command *cobra.Command, args []string) error {
			form := url.Values{"node": {args[0]}}
			if len(args) > 1 {
				form.Set("name", args[1])
			}
			return c.call(command.Context(), http.MethodPost, "/"+command.Name(), form, new(struct{}))
		},
	}
}

func (c *controlClient) nodesCommand() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "nodes",
		Short: "List the fleet's nodes; fails if one gave up on the control plane",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			show, err := chooseOutput(output, printNodes)
			if err != nil {
				return err
			}
			var nodes []nodeReport
			if err := c.call(command.Context(), http.MethodGet, "/nodes", nil, &nodes); err != nil {
				return err
			}
			if err := show(command.OutOrStdout(), nodes); err != nil {
				return err
			}
			for _, node := range nodes {
				if node.GaveUp != "" {
					return fmt.Errorf("node %s gave up: %s", node.Node, node.GaveUp)
				}
			}
			return nil
		},
	}
	addOutputFlag(command, &output)
	return command
}

func (c *controlClient) matrixCommand() *cobra.Command {
	var output, senders string
	var wait time.Duration
	command := &cobra.Command{
		Use:   "matrix",
		Short: "Show which groups reach which names; fails unless all is as it must be",
		Long: `Show, for each sending group (rows) and target group (columns), how many of the
target's names a message reaches exactly once, of how many. Fails unless every
name is reached exactly once from everywhere it must be, and from nowhere else.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			show, err := chooseOutput(output, printMatrix)
			if err != nil {
				return err
			}
			if senders != "every" && senders != "one" {
				return fmt.Errorf(`--senders %q: want "every" or "one"`, senders)
			}
			report, err := c.waitMatrix(command.Context(), senders, wait)
			if err != nil {
				return err
			}
			if err := show(command.OutOrStdout(), report); err != nil {
				return err
			}
			return outcome(report)
		},
	}
	addOutputFlag(command, &output)
	command.Flags().StringVar(&senders, "senders", "every", `which nodes of a group send: "every" or "one"`)
	command.Flags().DurationVar(&wait, "wait", 0, "wait this long for the matrix to be complete")
	return command
}

// waitMatrix asks until the matrix is complete, a node gave up, or the time is
// over. It returns the last answer.
func (c *controlClient) waitMatrix(ctx context.Context, senders string, wait time.Duration) (matrixReport, error) {
	deadline := time.Now().Add(wait)
	for {
		var report matrixReport
		if err := c.call(ctx, http.MethodGet, "/matrix", url.Values{"senders": {senders}}, &report); err != nil {
			return report, err
		}
		if report.Complete || len(report.GaveUp) > 0 || !time.Now().Add(pollInterval).Before(deadline) {
			return report, nil
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return report, ctx.Err()
		}
	}
}

func outcome(report matrixReport) error {
	switch {
	case len(report.GaveUp) > 0:
		return fmt.Errorf("%d nodes gave up: %s", len(report.GaveUp), report.GaveUp[0])
	case !report.Complete:
		return fmt.Errorf("%w: %d defects", errIncomplete, report.Defects)
	}
	return nil
}

func addOutputFlag(command *cobra.Command, output *string) {
	command.Flags().StringVarP(output, "output", "o", "table", "table or json")
}

// chooseOutput returns how to print a report.
func chooseOutput[T any](output string, table func(io.Writer, T) error) (func(io.Writer, T) error, error) {
	switch output {
	case "table":
		return table, nil
	case "json":
		return func(w io.Writer, report T) error {
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			return encoder.Encode(report)
		}, nil
	}
	return nil, fmt.Errorf("--output %q: want table or json", output)
}

func printNodes(w io.Writer, nodes []nodeReport) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tPHASE\tNAMES\tLINKS\tROUTES")
	for _, node := range nodes {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\n", node.Node, node.Phase, node.Names, node.Links, node.Routes)
	}
	return table.Flush()
}

func printMatrix(w io.Writer, report matrixReport) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "FROM")
	for _, group := range report.Groups {
		fmt.Fprintf(table, "\t%s", group)
	}
	from := ""
	for _, pair := range report.Pairs {
		if pair.From != from {
			from = pair.From
			fmt.Fprintf(table, "\n%s", from)
		}
		if pair.Delivered == 0 && pair.Expected == 0 {
			fmt.Fprint(table, "\t-")
			continue
		}
		fmt.Fprintf(table, "\t%d/%d", pair.Delivered, pair.Expected)
	}
	fmt.Fprintln(table)
	if err := table.Flush(); err != nil {
		return err
	}
	for _, defect := range report.Examples {
		fmt.Fprintln(w, defect)
	}
	if more := report.Defects - len(report.Examples); more > 0 {
		fmt.Fprintf(w, "... and %d more\n", more)
	}
	for _, lost := range report.GaveUp {
		fmt.Fprintf(w, "gave up: %s\n", lost)
	}
	return nil
}
