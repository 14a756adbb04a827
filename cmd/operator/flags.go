package operator

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// defaultTimeout is used where neither flag, environment nor file gives one.
const defaultTimeout = 15 * time.Second

// The flags that say which control plane to ask and how.
const (
	configFlag     = "config"
	basicAuthFlag  = "basic-auth-creds"
	serverFlag     = "server"
	timeoutFlag    = "timeout"
	skipVerifyFlag = "tls.insecure_skip_verify"
	caFileFlag     = "tls.ca_file"
	certFileFlag   = "tls.cert_file"
	keyFileFlag    = "tls.key_file"
)

// connectionFlags holds the values of the flags above.
type connectionFlags struct {
	config, basicAuth, server, timeout string
	skipVerify                         bool
	caFile, certFile, keyFile          string

	// variables holds, by flag, the environment variable that set it.
	variables map[string]string
}

func (c *connectionFlags) define(flags *pflag.FlagSet, v vocabulary, defaultServer string) {
	if v.configVariable != "" {
		flags.StringVar(&c.config, configFlag, "", "client configuration file (environment "+v.configVariable+"; else $HOME/.slimctl/config.yaml, else ./config.yaml, if it exists)")
	}
	usage := func(flag, text string) string { return text + " (environment " + variable(v, flag) + ")" }
	withDefault := func(flag, text, value string) string {
		return text + " (default " + value + "; environment " + variable(v, flag) + ")"
	}
	flags.StringVarP(&c.basicAuth, basicAuthFlag, "b", "", usage(basicAuthFlag, "credentials as `USERNAME:PASSWORD`"))
	flags.StringVar(&c.server, serverFlag, "", withDefault(serverFlag, "control plane to ask: `HOST:PORT`, http://HOST:PORT, https://HOST:PORT or unix:///PATH; of several, with commas between them, the first that is available", defaultServer))
	flags.StringVar(&c.timeout, timeoutFlag, "", withDefault(timeoutFlag, "`limit` for connecting and the whole answer, like 30s or 1m",
		limitText(defaultTimeout)+" if the command names no other"))
	flags.BoolVar(&c.skipVerify, skipVerifyFlag, false, usage(skipVerifyFlag, "use TLS without verifying the server"))
	flags.StringVar(&c.caFile, caFileFlag, "", usage(caFileFlag, "use TLS and trust the certificate authorities in this `file`"))
	flags.StringVar(&c.certFile, certFileFlag, "", usage(certFileFlag, "use TLS with the client certificate in this `file`"))
	flags.StringVar(&c.keyFile, keyFileFlag, "", usage(keyFileFlag, "`file` with the client certificate's key"))
}

// variable names the environment variable of a flag.
func variable(v vocabulary, flag string) string {
	if flag == configFlag {
		return v.configVariable
	}
	return v.environmentPrefix + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(flag))
}

// applyEnvironment sets the flags that were not given on the command line and
// have a variable. An empty variable counts as none.
func (c *connectionFlags) applyEnvironment(flags *pflag.FlagSet, v vocabulary) error {
	c.variables = make(map[string]string)
	for _, name := range []string{
		configFlag, basicAuthFlag, serverFlag, timeoutFlag,
		skipVerifyFlag, caFileFlag, certFileFlag, keyFileFlag,
	} {
		flag := flags.Lookup(name)
		if flag == nil || flag.Changed {
			continue
		}
		value := os.Getenv(variable(v, name))
		if value == "" {
			continue
		}
		// Only the switch can fail, and its value is no secret.
		if err := flags.Set(name, value); err != nil {
			return usageErrorf("environment %s=%q: accepted are true and false", variable(v, name), value)
		}
		c.variables[name] = variable(v, name)
	}
	return nil
}

// place says where a value came from, for errors.
func (c *connectionFlags) place(flag string) string {
	if name, found := c.variables[flag]; found {
		return "environment " + name
	}
	return "--" + flag
}

// resolve makes endpoints out of command line, environment, client file and
// defaults, in this order of precedence. There is one at least.
func (c *connectionFlags) resolve(flags *pflag.FlagSet, v vocabulary, defaultServer string) ([]endpoint, error) {
	if err := c.applyEnvironment(flags, v); err != nil {
		return nil, err
	}
	var file clientFile
	var err error
	if v.configVariable != "" {
		if file, err = findClientFile(c.config); err != nil {
			return nil, err
		}
	}
	common := endpoint{userAgent: v.userAgent}
	if common.timeout, err = c.resolveTimeout(file); err != nil {
		return nil, err
	}
	if common.authorization, err = c.resolveAuthorization(file, v); err != nil {
		return nil, err
	}
	return c.resolveServers(common, file, defaultServer)
}

// resolveServers adds the addresses and the TLS settings. A scheme decides whether it
// is TLS. Without one, a TLS flag means TLS, and so does an endpoint in the file
// unless the file says insecure; an endpoint from elsewhere is plain text unless the
// file has TLS settings.
func (c *connectionFlags) resolveServers(common endpoint, file clientFile, defaultServer string) ([]endpoint, error) {
	text, source, fromFile := defaultServer, "default server", false
	switch {
	case c.server != "":
		text, source = c.server, c.place(serverFlag)
	case file.Endpoint != "":
		text, source, fromFile = file.Endpoint, file.path+": endpoint", true
	}
	security, err := c.overlayTLS(file.TLS)
	if err != nil {
		return nil, err
	}
	given := c.skipVerify || c.caFile != "" || c.certFile != ""
	byDefault := given || !file.TLS.Insecure && (fromFile || file.TLS != tlsSettings{})
	var resolved []endpoint
	for each := range strings.SplitSeq(text, ",") {
		server := common
		var s scheme
		if server.address, s, err = parseEndpoint(strings.TrimSpace(each)); err != nil {
			return nil, usageErrorf("%s %q: %w", source, text, err)
		}
		if s == schemeTLS || s == schemeNone && byDefault {
			if server.tls, err = security.clientConfig(); err != nil {
				return nil, err
			}
		}
		resolved = append(resolved, server)
	}
	return resolved, nil
}

// overlayTLS puts the flags over the file's settings.
func (c *connectionFlags) overlayTLS(security tlsSettings) (tlsSettings, error) {
	if (c.certFile == "") != (c.keyFile == "") {
		return security, usageErrorf("--%s and --%s: give both or none", certFileFlag, keyFileFlag)
	}
	if c.skipVerify {
		security.InsecureSkipVerify = true
	}
	if c.caFile != "" {
		security.CAFile, security.CASource = c.caFile, caSource{}
	}
	if c.certFile != "" {
		security.CertFile, security.KeyFile, security.Source = c.certFile, c.keyFile, keyPairSource{}
	}
	return security, nil
}

func (c *connectionFlags) resolveTimeout(file clientFile) (time.Duration, error) {
	if c.timeout != "" {
		limit, err := parseDuration(c.timeout)
		if err != nil || limit <= 0 {
			return 0, usageErrorf("%s %q: accepted are positive durations like 15s, 1m or 1m30s", c.place(timeoutFlag), c.timeout)
		}
		return limit, nil
	}
	if file.requestTimeout > 0 {
		return file.requestTimeout, nil
	}
	return defaultTimeout, nil
}

// resolveAuthorization returns the header's value: from the flag, else from the
// file, else the token that a login left behind.
func (c *connectionFlags) resolveAuthorization(file clientFile, v vocabulary) (string, error) {
	if c.basicAuth != "" {
		username, password, found := strings.Cut(c.basicAuth, ":")
		if !found {
			// The value may be a password: it is not repeated.
			return "", usageErrorf("%s: accepted is USERNAME:PASSWORD", c.place(basicAuthFlag))
		}
		return basicAuthorization(username, password), nil
	}
	if v.configVariable == "" {
		return "", nil
	}
	return file.authorization()
}

func basicAuthorization(username, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
}

func bearerAuthorization(path string) (string, error) {
	token, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return "Bearer " + strings.TrimSpace(string(token)), nil
}
