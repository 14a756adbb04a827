package operator

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
)

// membershipMethods are the methods about the sets that nodes belong to, in one
// generation of upstream's names.
type membershipMethods struct {
	list   method[controlplanepb.ListDomainsRequest, controlplanepb.ListDomainsResponse]
	add    method[controlplanepb.AddDomainRequest, controlplanepb.AddDomainResponse]
	remove method[controlplanepb.RemoveDomainRequest, controlplanepb.RemoveDomainResponse]
}

type method[Request, Response any] func(
	controlplanepb.ControlPlaneServiceClient, context.Context, *Request, ...grpc.CallOption,
) (*Response, error)

func groupMethods() membershipMethods {
	return membershipMethods{
		list:   controlplanepb.ControlPlaneServiceClient.ListGroups,
		add:    controlplanepb.ControlPlaneServiceClient.AddGroup,
		remove: controlplanepb.ControlPlaneServiceClient.RemoveGroup,
	}
}

func domainMethods() membershipMethods {
	return membershipMethods{
		list:   controlplanepb.ControlPlaneServiceClient.ListDomains,
		add:    controlplanepb.ControlPlaneServiceClient.AddDomain,
		remove: controlplanepb.ControlPlaneServiceClient.RemoveDomain,
	}
}

// membershipCommands returns the commands about the sets that nodes belong to.
// slimctl has two of them, for each generation of upstream's method names: a
// server from before the rename knows only the older ones.
func (t *tree) membershipCommands() []*cobra.Command {
	group := t.membershipCommand(groupNoun(), groupMethods())
	if t.vocabulary.membership == groupNoun() {
		return []*cobra.Command{group}
	}
	return []*cobra.Command{t.membershipCommand(domainNoun(), domainMethods()), group}
}

func (t *tree) membershipCommand(word noun, methods membershipMethods) *cobra.Command {
	list := listCommand("List the "+word.singular+"s and their nodes", func(command *cobra.Command) error {
		return t.listMembers(command, word, methods)
	})
	remove := removeCommand("NAME", "Drop a "+word.singular+"'s registration secret and disconnect its nodes",
		func(command *cobra.Command, args []string) error {
			return t.removeMembership(command, word, methods, args[0])
		})
	return nounCommand(&cobra.Command{
		Use:   word.singular,
		Short: "The " + word.singular + "s that nodes belong to",
	}, list, t.addMembershipCommand(word, methods), remove)
}

// secretFileFlag names a file with a secret: arguments are seen by everybody on
// the machine.
const secretFileFlag = "secret-file"

func (t *tree) addMembershipCommand(word noun, methods membershipMethods) *cobra.Command {
	var file string
	add := addCommand("NAME [SECRET]", "Set the registration secret of a "+word.singular, func(command *cobra.Command, args []string) error {
		secret, err := readSecret(command, args[1:], file)
		if err != nil {
			return err
		}
		return t.addMembership(command, word, methods, args[0], secret)
	})
	add.Flags().StringVar(&file, secretFileFlag, "", "read the secret from this `file` instead (\"-\": standard input), without the end of its last line")
	return add
}

// maxSecretFile bounds a secret's file, in bytes.
const maxSecretFile = 64 << 10

// readSecret returns the secret of the argument or the file. No error shows it.
func readSecret(command *cobra.Command, args []string, path string) (string, error) {
	switch {
	case len(args) > 0 && path == "":
		return args[0], nil
	case (len(args) > 0) == (path != ""):
		return "", usageErrorf("give either SECRET or --%s", secretFileFlag)
	}
	source := command.InOrStdin()
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("read secret: %w", err)
		}
		defer file.Close() // nothing was written
		source = file
	}
	content, err := io.ReadAll(io.LimitReader(source, maxSecretFile+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read secret: %w", err)
	case len(content) > maxSecretFile:
		return "", fmt.Errorf("read secret: %s has more than %d bytes", path, maxSecretFile)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r"), nil
}

func (t *tree) addMembership(command *cobra.Command, word noun, methods membershipMethods, name, secret string) error {
	var answer *controlplanepb.AddDomainResponse
	err := t.change(command, "add "+word.singular+" "+name, func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = methods.add(client, ctx, &controlplanepb.AddDomainRequest{DomainName: name, Secret: secret})
		return err
	})
	if err != nil {
		return err
	}
	return t.printMessage(command, fmt.Sprintf("%s '%s' added\n", word.title, name), answer)
}

func (t *tree) removeMembership(command *cobra.Command, word noun, methods membershipMethods, name string) error {
	known, err := t.isMembership(command, word, methods, name)
	if err != nil {
		return err
	}
	var answer *controlplanepb.RemoveDomainResponse
	err = t.change(command, "remove "+word.singular+" "+name, func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = methods.remove(client, ctx, &controlplanepb.RemoveDomainRequest{DomainName: name})
		return err
	})
	if err != nil {
		return err
	}
	if !known {
		fmt.Fprintf(command.ErrOrStderr(), "Warning: %s '%s' was not there\n", word.singular, printable(name))
	}
	return t.printMessage(command, fmt.Sprintf("%s '%s' removed (all nodes disconnected)\n", word.title, name), answer)
}

// isMembership reports whether a set with that name has a node or a secret.
func (t *tree) isMembership(command *cobra.Command, word noun, methods membershipMethods, name string) (bool, error) {
	var answer *controlplanepb.ListDomainsResponse
	err := t.ask(command, "remove "+word.singular+" "+name, func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = methods.list(client, ctx, &controlplanepb.ListDomainsRequest{})
		return err
	})
	return slices.ContainsFunc(answer.GetDomains(), func(entry *controlplanepb.DomainEntry) bool { return entry.GetDomainName() == name }), err
}

func (t *tree) listMembers(command *cobra.Command, word noun, methods membershipMethods) error {
	var answer *controlplanepb.ListDomainsResponse
	err := t.ask(command, "list "+word.singular+"s", func(ctx context.Context, client controlplanepb.ControlPlaneServiceClient) (err error) {
		answer, err = methods.list(client, ctx, &controlplanepb.ListDomainsRequest{})
		return err
	})
	if err != nil {
		return err
	}
	entries := answer.GetDomains()
	rows := make([][]string, len(entries))
	for i, entry := range entries {
		members := strings.Join(entry.GetNodes(), ", ")
		if len(entry.GetNodes()) == 0 {
			members = "(no nodes connected)"
		}
		rows[i] = []string{entry.GetDomainName(), members}
	}
	return t.print(command, listing{
		heading: counted(len(entries), word.singular),
		columns: []string{word.heading, "NODES"},
		rows:    rows,
		key:     word.singular + "s",
		entries: messages(entries),
	})
}
