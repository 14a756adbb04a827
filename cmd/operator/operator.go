package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// DefaultServer is the northbound address that is asked when none is given.
const DefaultServer = "127.0.0.1:50051"

// Options says for which program the tree is built.
type Options struct {
	Dialect Dialect

	// Server is the endpoint asked when neither flag, environment nor file names
	// one. Empty means DefaultServer.
	Server string

	// Offline are further commands about the cluster, which ask no control plane.
	Offline []*cobra.Command

	// ConnectionFlags receives the flags that say which control plane to ask and
	// how (--server, --timeout, --tls.*, …). Nil means that each command carries
	// them as persistent flags of its own.
	ConnectionFlags *pflag.FlagSet
}

// NewCommands builds the tree: one command per noun, to be added below a
// program's root or below a command like "controller".
func NewCommands(options Options) []*cobra.Command {
	if options.Server == "" {
		options.Server = DefaultServer
	}
	t := &tree{
		vocabulary:    options.Dialect.vocabulary(),
		defaultServer: options.Server,
		format:        formatTable,
	}
	if options.ConnectionFlags != nil {
		t.connection.define(options.ConnectionFlags, t.vocabulary, options.Server)
	}
	commands := []*cobra.Command{
		t.nodeCommand(),
		t.connectionCommand(),
		t.routeCommand(),
		t.linkCommand(),
		t.segmentCommand(),
	}
	commands = append(commands, t.membershipCommands()...)
	if options.Dialect == SlimCP {
		commands = append(commands, t.topologyCommand(), t.explainCommand(), t.statusCommand(),
			t.clusterCommand(options.Offline...), t.snapshotCommand())
		t.addStaleFlags(commands)
	}
	for _, command := range commands {
		if options.ConnectionFlags == nil {
			t.connection.define(command.PersistentFlags(), t.vocabulary, options.Server)
		}
		command.PersistentFlags().VarP(&t.format, "output", t.vocabulary.outputShorthand, "output format: table, json or yaml")
	}
	return commands
}

// tree holds what the commands of one program share.
type tree struct {
	vocabulary    vocabulary
	defaultServer string
	connection    connectionFlags
	format        format
	stale         bool
}

// ask is connect for calls of upstream's service.
func (t *tree) ask(
	command *cobra.Command,
	action string,
	call func(context.Context, controlplanepb.ControlPlaneServiceClient) error,
) error {
	ask := func(ctx context.Context, connection *grpc.ClientConn) error {
		return call(ctx, controlplanepb.NewControlPlaneServiceClient(connection))
	}
	if !t.stale {
		return t.connect(command, action, ask)
	}
	fresh := &freshness{}
	err := t.connect(command, action, func(ctx context.Context, connection *grpc.ClientConn) error {
		return ask(staleContext(ctx), connection)
	}, grpc.WithStatsHandler(fresh))
	if err == nil {
		fresh.say(command.ErrOrStderr())
	}
	return err
}

// connect connects to the control plane, runs call against it and closes the
// connection. It blocks no longer than the timeout, which covers connecting and
// the whole answer. action says in an error what was attempted. Of several control
// planes one after the other is asked while they are not available.
func (t *tree) connect(
	command *cobra.Command,
	action string,
	call func(context.Context, *grpc.ClientConn) error,
	options ...grpc.DialOption,
) error {
	return t.connectFor(command, 0, action, call, options...)
}

// connectFor is connect for calls that take long: the limit holds where no timeout
// is given.
func (t *tree) connectFor(
	command *cobra.Command,
	limit time.Duration,
	action string,
	call func(context.Context, *grpc.ClientConn) error,
	options ...grpc.DialOption,
) error {
	return t.connectServers(command, limit, action, func(ctx context.Context, servers *servers) error {
		return servers.call(ctx, call)
	}, options...)
}

// connectServers is connectFor for what may call more than once.
func (t *tree) connectServers(
	command *cobra.Command,
	limit time.Duration,
	action string,
	ask func(context.Context, *servers) error,
	options ...grpc.DialOption,
) error {
	endpoints, err := t.connection.resolve(command.Flags(), t.vocabulary, t.defaultServer)
	if err != nil {
		return err
	}
	if err := checkOne(command, endpoints); err != nil {
		return err
	}
	servers := newServers(endpoints, options...)
	defer servers.close()

	if limit == 0 || t.connection.timeout != "" {
		limit = endpoints[0].timeout
	}
	servers.limit = limit
	ctx, cancel := context.WithTimeout(command.Context(), limit)
	defer cancel()
	if err := ask(ctx, servers); err != nil {
		return t.newCallError(action, servers, err)
	}
	return nil
}

// nounCommand makes the command of one noun, which only holds others.
func nounCommand(command *cobra.Command, children ...*cobra.Command) *cobra.Command {
	command.AddCommand(children...)
	return command
}

// listCommand makes the "list" command of a noun.
func listCommand(short string, run func(*cobra.Command) error) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   short,
		Args:    cobra.NoArgs,
		RunE:    func(command *cobra.Command, _ []string) error { return run(command) },
	}
}

// addCommand makes the "add" command of a noun; arguments says which it takes.
func addCommand(arguments, short string, run func(*cobra.Command, []string) error) *cobra.Command {
	return &cobra.Command{
		Use:   "add " + arguments,
		Short: short,
		Args:  exactly(arguments),
		RunE:  run,
	}
}

// removeCommand makes the "remove" command of a noun.
func removeCommand(arguments, short string, run func(*cobra.Command, []string) error) *cobra.Command {
	command := addCommand(arguments, short, run)
	command.Use, command.Aliases = "remove "+arguments, []string{"rm"}
	return command
}

// filterFlags are the filters that routes and links share.
type filterFlags struct {
	origin, target string
	all            bool
}

func (f *filterFlags) define(flags *pflag.FlagSet, v vocabulary) {
	flags.StringVarP(&f.origin, v.originFlag, v.originShorthand, "", "only those whose source is this node")
	flags.StringVarP(&f.target, v.targetFlag, "t", "", "only those whose destination is this node")
	flags.BoolVarP(&f.all, "all", "a", false, "show every status, not only applied")
}

// statuses says in a heading which entries are shown.
func (f *filterFlags) statuses() string {
	if f.all {
		return "all statuses"
	}
	return "applied only"
}

// counted returns a heading like "3 node(s)".
func counted(n int, noun string) string { return fmt.Sprintf("%d %s(s)", n, noun) }
