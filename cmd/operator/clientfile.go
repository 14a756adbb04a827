package operator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// clientFile is slimctl's configuration file: upstream's client settings, of
// which the keys for reaching a control plane are read and the others ignored.
type clientFile struct {
	Endpoint       string       `yaml:"endpoint"`
	Server         string       `yaml:"server"`
	RequestTimeout string       `yaml:"request_timeout"`
	TLS            tlsSettings  `yaml:"tls"`
	Auth           authSettings `yaml:"auth"`

	path           string
	requestTimeout time.Duration
}

// authSettings says how calls are authorized; Type selects which fields count.
type authSettings struct {
	Type      string `yaml:"type"`
	Username  string `yaml:"username"`
	Password  string `yaml:"password"`
	File      string `yaml:"file"`
	TokenFile string `yaml:"token_file"`
}

// usualClientFiles are the places where a client file is looked for, the first first.
func usualClientFiles() []string {
	places := []string{"config.yaml"}
	if home, err := os.UserHomeDir(); err == nil {
		places = []string{filepath.Join(home, ".slimctl", "config.yaml"), "config.yaml"}
	}
	return places
}

// findClientFile reads the named file or, if none is named, the first of the
// usual places that exists. Without any the result is empty.
func findClientFile(named string) (clientFile, error) {
	places := []string{named}
	if named == "" {
		places = usualClientFiles()
	}
	for _, place := range places {
		text, err := os.ReadFile(place)
		switch {
		case err == nil:
			return parseClientFile(place, text)
		case named != "" || !errors.Is(err, fs.ErrNotExist):
			return clientFile{}, fmt.Errorf("configuration file: %w", err)
		}
	}
	return clientFile{}, nil
}

func parseClientFile(path string, text []byte) (clientFile, error) {
	file := clientFile{path: path}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return file, fmt.Errorf("%s: %w", path, err)
	}
	if document.IsZero() {
		return file, nil
	}
	if err := substitute(&document); err != nil {
		return file, fmt.Errorf("%s: %w", path, err)
	}
	if err := document.Decode(&file); err != nil {
		return file, fmt.Errorf("%s: %w", path, err)
	}
	if file.Endpoint == "" {
		file.Endpoint = file.Server
	}
	if file.RequestTimeout != "" {
		var err error
		if file.requestTimeout, err = parseDuration(file.RequestTimeout); err != nil {
			return file, fmt.Errorf("%s: request_timeout: %w", path, err)
		}
	}
	return file, nil
}

// authorization returns the header's value that the file asks for. Without an
// auth block it is the token that a login left in ~/.slimctl/token, if any.
func (f clientFile) authorization() (string, error) {
	switch f.Auth.Type {
	case "basic":
		return basicAuthorization(f.Auth.Username, f.Auth.Password), nil
	case "static_jwt":
		path := f.Auth.File
		if path == "" {
			path = f.Auth.TokenFile
		}
		if path == "" {
			return "", fmt.Errorf("%s: auth: type static_jwt needs the key file", f.path)
		}
		return bearerAuthorization(path)
	case "", "none":
		home, err := os.UserHomeDir()
		if err != nil {
			return "", nil
		}
		value, err := bearerAuthorization(filepath.Join(home, ".slimctl", "token"))
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return value, err
	default:
		return "", fmt.Errorf("%s: auth.type %q: accepted are none, basic and static_jwt", f.path, f.Auth.Type)
	}
}

// substitute replaces every value that as a whole is ${env:NAME} or
// ${file:PATH}. Keys, and references inside a longer text, stay as they are.
func substitute(node *yaml.Node) error {
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 {
			continue
		}
		if err := substitute(child); err != nil {
			return err
		}
	}
	if node.Kind != yaml.ScalarNode || !strings.HasPrefix(node.Value, "${") || !strings.HasSuffix(node.Value, "}") {
		return nil
	}
	value, err := lookUp(node.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	node.SetString(value)
	return nil
}

func lookUp(reference string) (string, error) {
	provider, argument, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(reference, "${"), "}"), ":")
	switch provider {
	case "env":
		value, found := os.LookupEnv(argument)
		if !found {
			return "", fmt.Errorf("%s: the variable is not set", reference)
		}
		return strings.TrimRight(value, "\r\n"), nil
	case "file":
		content, err := os.ReadFile(argument)
		if err != nil {
			return "", fmt.Errorf("%s: %w", reference, err)
		}
		return strings.TrimRight(string(content), "\r\n"), nil
	default:
		return "", fmt.Errorf("%s: accepted are ${env:NAME} and ${file:PATH}", reference)
	}
}
