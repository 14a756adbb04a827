package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// maxMessageBytes bounds one answer. The lists of a node's connections and
// routes arrive as one message each; gRPC's default of 4 MiB is too small for a
// large node.
const maxMessageBytes = 64 << 20

// endpoint is a control plane and how to talk to it.
type endpoint struct {
	// address is HOST:PORT or unix:///PATH.
	address string
	// tls is nil for plain text.
	tls *tls.Config
	// authorization is the value of the header, or empty.
	authorization string
	// userAgent is that of the tool.
	userAgent string
	// timeout covers connecting and the whole answer.
	timeout time.Duration
}

// dial prepares a connection; it does not block, the first call connects.
// Nothing is retried: a person or a script decides about a second attempt.
func (e endpoint) dial(more ...grpc.DialOption) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if e.tls != nil {
		transport = credentials.NewTLS(e.tls)
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithUserAgent(e.userAgent),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		// Replicas are reached directly: a proxy of the environment is for other things.
		grpc.WithNoProxy(),
	}, more...)
	if e.authorization != "" {
		options = append(options, grpc.WithPerRPCCredentials(authorization(e.authorization)))
	}
	target := e.address
	if !strings.HasPrefix(target, unixScheme) {
		target = "dns:///" + target
	}
	connection, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", e.address, err)
	}
	return connection, nil
}

// authorization is sent with every call, also in plain text: whether the network
// between is trusted is for whoever chose the endpoint to say.
type authorization string

func (a authorization) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": string(a)}, nil
}

func (a authorization) RequireTransportSecurity() bool { return false }

// scheme is what an endpoint's text says about TLS.
type scheme int

const (
	schemeNone scheme = iota
	schemePlain
	schemeTLS
)

// unixScheme begins the endpoint of a Unix socket; the path follows.
const unixScheme = "unix://"

var errEndpoint = errors.New("accepted are HOST:PORT, http://HOST:PORT, https://HOST:PORT and unix:///PATH, or several with commas between them")

// parseEndpoint splits an endpoint into address and scheme. With a scheme the
// port may be left out and is then the scheme's.
func parseEndpoint(text string) (string, scheme, error) {
	if path, unix := strings.CutPrefix(text, unixScheme); unix {
		if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "?#") {
			return "", schemeNone, errEndpoint
		}
		return text, schemeNone, nil
	}
	if !strings.Contains(text, "://") {
		return checkAddress(text, schemeNone)
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" || strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.User != nil {
		return "", schemeNone, errEndpoint
	}
	port := parsed.Port()
	switch parsed.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
		return checkAddress(net.JoinHostPort(parsed.Hostname(), port), schemePlain)
	case "https":
		if port == "" {
			port = "443"
		}
		return checkAddress(net.JoinHostPort(parsed.Hostname(), port), schemeTLS)
	default:
		return "", schemeNone, errEndpoint
	}
}

func checkAddress(address string, s scheme) (string, scheme, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return "", schemeNone, errEndpoint
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "", schemeNone, errEndpoint
	}
	return address, s, nil
}
