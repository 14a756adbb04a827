package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/slim-cp/slim-cp/dataplane"
)

// fleetFlags are the flags of "slim-node fleet".
type fleetFlags struct {
	groups, nodesPerGroup, names int
	groupPrefix                  string
	servers                      []string
	ca                           string
	control                      string
	topology                     string
	reconnect                    string
	logLevel                     string
}

func newFleetCommand() *cobra.Command {
	var flags fleetFlags
	command := &cobra.Command{
		Use:   "fleet",
		Short: "Run a fleet of simulated nodes until SIGTERM",
		Long: `Run a fleet of simulated nodes until SIGTERM: groups "group-1", "group-2", ... with
nodes "group-1/node-1", ... and names "org/group-1/app-1", ... spread over the
nodes of their group. Prints "fleet started" when all nodes are registered.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return runFleet(command.Context(), flags, func(line string) { fmt.Fprintln(command.OutOrStdout(), line) })
		},
	}
	set := command.Flags()
	set.IntVar(&flags.groups, "groups", 3, "number of groups")
	set.IntVar(&flags.nodesPerGroup, "nodes-per-group", 1, "nodes in each group")
	set.IntVar(&flags.names, "names", 1, "names announced in each group")
	set.StringVar(&flags.groupPrefix, "group-prefix", "group-", "start of the groups' names; a number follows")
	set.StringArrayVar(&flags.servers, "server", []string{"127.0.0.1:50052"},
		"control plane HOST:PORT[,HOST:PORT...]; addresses after a comma are tried in order; nodes register with each --server")
	set.StringVar(&flags.ca, "tls-ca", "", "PEM file with the CA of the control plane; empty: plain TCP")
	set.StringVar(&flags.control, "control", "", "unix socket for slim-node ctl")
	set.StringVar(&flags.topology, "topology", "mesh", `what the matrix allows: "mesh" or "star:HUB" (all groups reach each other), or "segments:HUB" (each group and HUB only)`)
	set.StringVar(&flags.reconnect, "reconnect", "real", `"real": give up where a real node does; "forever": try again`)
	set.StringVar(&flags.logLevel, "log-level", "warn", "trace, debug, info, warn or error")
	return command
}

// runFleet runs a fleet until the context ends. Its lines go to report.
func runFleet(ctx context.Context, flags fleetFlags, report func(line string)) error {
	options, err := flags.options()
	if err != nil {
		return err
	}
	allowed, err := parseTopology(flags.topology)
	if err != nil {
		return err
	}
	fleet, err := dataplane.NewFleet(options)
	if err != nil {
		return err
	}
	defer fleet.Close()
	if flags.control != "" {
		stop, err := serveControl(flags.control, &controlServer{fleet: fleet, allowed: allowed})
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := fleet.Start(); err != nil {
		return err
	}
	if err := fleet.WaitRegistered(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to end before all were there
		}
		return err
	}
	report("fleet started")
	<-ctx.Done()
	return nil
}

func (f fleetFlags) options() (dataplane.FleetOptions, error) {
	level := hclog.LevelFromString(f.logLevel)
	if level == hclog.NoLevel {
		return dataplane.FleetOptions{}, fmt.Errorf("--log-level %q: want trace, debug, info, warn or error", f.logLevel)
	}
	if f.reconnect != "real" && f.reconnect != "forever" {
		return dataplane.FleetOptions{}, fmt.Errorf(`--reconnect %q: want "real" or "forever"`, f.reconnect)
	}
	servers, err := parseServers(f.servers)
	if err != nil {
		return dataplane.FleetOptions{}, err
	}
	security, err := loadCA(f.ca)
	if err != nil {
		return dataplane.FleetOptions{}, err
	}
	return dataplane.FleetOptions{
		Groups:        f.groups,
		NodesPerGroup: f.nodesPerGroup,
		Names:         f.names,
		GroupPrefix:   f.groupPrefix,
		Node: dataplane.NodeOptions{
			Servers:          servers,
			TLS:              security,
			ReconnectForever: f.reconnect == "forever",
			Logger:           hclog.New(&hclog.LoggerOptions{Name: "slim-node", Level: level, Output: os.Stderr}),
		},
	}, nil
}

// parseServers reads the control planes, each a list of addresses.
func parseServers(texts []string) ([]dataplane.Server, error) {
	var servers []dataplane.Server
	for _, text := range texts {
		server := dataplane.Server(strings.Split(text, ","))
		for _, address := range server {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return nil, fmt.Errorf("--server %q: want HOST:PORT", address)
			}
		}
		servers = append(servers, server)
	}
	return servers, nil
}

func loadCA(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // no file, no TLS
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--tls-ca %s: no certificate in it: want PEM", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// parseTopology returns which groups must reach which.
func parseTopology(text string) (func(from, to string) bool, error) {
	kind, hub, _ := strings.Cut(text, ":")
	switch {
	case kind == "mesh" && hub == "", kind == "star" && hub != "":
		return dataplane.Everything, nil
	case kind == "segments" && hub != "":
		return func(from, to string) bool { return from == hub || to == hub }, nil
	}
	return nil, fmt.Errorf(`--topology %q: want "mesh", "star:HUB" or "segments:HUB"`, text)
}

// listenControl listens on a unix socket. The file of a process that is gone is
// replaced.
func listenControl(path string) (net.Listener, error) {
	listener, err := net.Listen("unix", path)
	if err == nil {
		return listener, nil
	}
	if conn, dialErr := net.DialTimeout("unix", path, time.Second); dialErr == nil {
		conn.Close() //nolint:errcheck // it only proved that somebody listens
		return nil, fmt.Errorf("--control %s: another process listens there", path)
	}
	if info, statErr := os.Stat(path); statErr != nil || info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("--control %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("--control: %w", err)
	}
	return net.Listen("unix", path)
}
