package operator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// redacted is shown in place of a secret.
const redacted = "(redacted)"

// NewConfigCommand builds slimctl's command about its own configuration file.
func NewConfigCommand() *cobra.Command {
	command := &cobra.Command{Use: "config", Short: "Show and change the client configuration file"}
	command.AddCommand(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "Show the file, without its secrets",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, document, err := readSettings(command)
			if err != nil {
				return err
			}
			redact(document, "")
			text, err := yaml.Marshal(document)
			if err != nil {
				return err
			}
			_, err = command.OutOrStdout().Write(text)
			return err
		},
	})
	set := &cobra.Command{Use: "set", Short: "Change a setting of the file, and leave the others as they are"}
	for _, s := range clientSettings() {
		set.AddCommand(&cobra.Command{
			Use:   s.use,
			Short: s.short,
			Args:  cobra.ExactArgs(strings.Count(s.use, " ")),
			RunE:  func(command *cobra.Command, values []string) error { return change(command, s.set, values) },
		})
	}
	command.AddCommand(set)
	return command
}

// clientSetting is a command that changes the file.
type clientSetting struct {
	use, short string
	set        func(document *yaml.Node, values []string) error
}

func clientSettings() []clientSetting {
	return []clientSetting{
		{"basic-auth-creds USERNAME:PASSWORD", "Set the credentials", func(document *yaml.Node, values []string) error {
			user, password, ok := strings.Cut(values[0], ":")
			if !ok {
				return usageErrorf("basic-auth-creds: accepted is USERNAME:PASSWORD")
			}
			return put(document, "auth", map[string]string{"type": "basic", "username": user, "password": password})
		}},
		{"server HOST:PORT", "Set the control plane to ask", func(document *yaml.Node, values []string) error {
			return put(document, "endpoint", values[0])
		}},
		{"timeout LIMIT", "Set the limit for connecting and for an answer, like 15s or 1m", func(document *yaml.Node, values []string) error {
			if _, err := parseDuration(values[0]); err != nil {
				return usageErrorf("timeout: %w", err)
			}
			return errors.Join(put(document, "connect_timeout", values[0]), put(document, "request_timeout", values[0]))
		}},
		{"tls-ca-file FILE", "Set the certificate authorities to trust", func(document *yaml.Node, values []string) error {
			return putTLS(document, "ca_source", map[string]string{"type": "file", "path": values[0]}, "ca_file")
		}},
		{"tls-cert CERT_FILE KEY_FILE", "Set the client certificate and its key", func(document *yaml.Node, values []string) error {
			return putTLS(document, "source", map[string]string{"type": "file", "cert": values[0], "key": values[1]}, "cert_file", "key_file")
		}},
		{"tls-insecure-skip-verify BOOLEAN", "Set whether the server is not verified: true or false", func(document *yaml.Node, values []string) error {
			skip, err := strconv.ParseBool(values[0])
			if err != nil {
				return usageErrorf("tls-insecure-skip-verify %q: accepted are true and false", values[0])
			}
			return putTLS(document, "insecure_skip_verify", skip)
		}},
	}
}

// settingsPath is where the file is, or would be.
func settingsPath(command *cobra.Command) (path string, named bool) {
	if flag := command.Flags().Lookup(configFlag); flag != nil && flag.Value.String() != "" {
		return flag.Value.String(), true
	}
	if path := os.Getenv(Slimctl.vocabulary().configVariable); path != "" {
		return path, true
	}
	places := usualClientFiles()
	for _, place := range places {
		if _, err := os.Stat(place); err == nil {
			return place, false
		}
	}
	return places[0], false
}

// readSettings reads the file as a YAML mapping, so that comments and references stay.
// Without a file it is empty.
func readSettings(command *cobra.Command) (path string, document *yaml.Node, err error) {
	path, named := settingsPath(command)
	text, err := os.ReadFile(path)
	if err != nil && (!errors.Is(err, fs.ErrNotExist) || named && command.Name() == "list") {
		return "", nil, fmt.Errorf("configuration file: %w", err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	if root.IsZero() || root.Content[0].ShortTag() == "!!null" {
		return path, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}, nil
	}
	if root.Content[0].Kind != yaml.MappingNode {
		return "", nil, fmt.Errorf("%s: expected a map of settings", path)
	}
	return path, root.Content[0], nil
}

func change(command *cobra.Command, set func(*yaml.Node, []string) error, values []string) error {
	path, document, err := readSettings(command)
	if err != nil {
		return err
	}
	if err := set(document, values); err != nil {
		return err
	}
	text, err := yaml.Marshal(document)
	if err != nil {
		return err
	}
	if err := writePrivate(path, text); err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	return nil
}

// writePrivate replaces a file by one that only its owner can read, whole or not at all.
func writePrivate(path string, text []byte) (err error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, ".config-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// lookUpKey returns the place of a key's value in a mapping, -1 if it is not there.
func lookUpKey(mapping *yaml.Node, key string) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return i + 1
		}
	}
	return -1
}

// put sets a key of a mapping.
func put(mapping *yaml.Node, key string, value any) error {
	var node yaml.Node
	if err := node.Encode(value); err != nil {
		return err
	}
	if at := lookUpKey(mapping, key); at >= 0 {
		mapping.Content[at] = &node
		return nil
	}
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, &node)
	return nil
}

// putTLS sets a key of the TLS settings, in place of older ones that mean the same.
func putTLS(document *yaml.Node, key string, value any, replaced ...string) error {
	at := lookUpKey(document, "tls")
	if at < 0 || document.Content[at].Kind != yaml.MappingNode {
		if err := put(document, "tls", map[string]string{}); err != nil {
			return err
		}
		at = lookUpKey(document, "tls")
	}
	tls := document.Content[at]
	for _, old := range replaced {
		if i := lookUpKey(tls, old); i >= 0 {
			tls.Content = slices.Delete(tls.Content, i-1, i+1)
		}
	}
	tls.Style = 0
	return put(tls, key, value)
}

// redact replaces the secrets of a file: passwords, client secrets, tokens, the values of
// headers, and keys that stand in the file itself. parent is the key of node.
func redact(node *yaml.Node, parent string) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	if node.Kind == yaml.AliasNode {
		*node = yaml.Node{Kind: yaml.ScalarNode, Value: redacted} // shown where it is defined
		return
	}
	if node.Kind != yaml.MappingNode {
		for _, item := range node.Content {
			redact(item, parent)
		}
		return
	}
	inline := lookUpKey(node, "type")
	pem := inline >= 0 && node.Content[inline].Value == "pem"
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		key.HeadComment, key.LineComment, key.FootComment = "", "", ""
		switch key.Value {
		case "password", "client_secret", "refresh_token", "headers":
			hide(value)
		case "key":
			if pem {
				hide(value)
			} else {
				redact(value, key.Value)
			}
		case "data":
			if parent == "key" {
				hide(value)
			}
		default:
			redact(value, key.Value)
		}
	}
}

// hide replaces a secret, or each value of a map of them. One that is not set is shown so.
func hide(value *yaml.Node) {
	switch {
	case value.Kind == yaml.MappingNode:
		for i := 1; i < len(value.Content); i += 2 {
			hide(value.Content[i])
		}
	case value.ShortTag() != "!!null" && (value.Kind != yaml.ScalarNode || value.Value != ""):
		*value = yaml.Node{Kind: yaml.ScalarNode, Value: redacted}
	}
}
