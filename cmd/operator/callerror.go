package operator

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callError is a call that the control plane refused or did not answer.
type callError struct {
	action string
	asked  endpoint
	// passed are the ones that were asked before.
	passed []passedOver
	// limit is how long the call was given.
	limit time.Duration
	// credentialsHint says how credentials are given.
	credentialsHint string
	cause           error
}

// newCallError says what was attempted, and with whom. What failed on this side, as
// a file, is not the control plane's.
func (t *tree) newCallError(action string, servers *servers, cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		cause = status.FromContextError(cause).Err()
	}
	if _, ok := status.FromError(cause); !ok {
		return fmt.Errorf("%s: %w", action, cause)
	}
	return &callError{
		action: action, asked: servers.asked(), passed: servers.passed, limit: servers.limit,
		credentialsHint: t.vocabulary.credentialsHint, cause: cause,
	}
}

func (e *callError) Error() string {
	text := e.action
	for _, passed := range e.passed {
		before := *e
		before.asked, before.cause = passed.asked, passed.cause
		text += before.outcome() + ","
	}
	return text + e.outcome()
}

// outcome says what came of asking one control plane.
func (e *callError) outcome() string {
	text := fmt.Sprintf(" at %s: %s", e.asked.address, e.reason())
	if hint := e.hint(); hint != "" {
		text += " (" + hint + ")"
	}
	return text
}

func (e *callError) Unwrap() error { return e.cause }

// statusPrefix is what gRPC puts before a status that became a text.
var statusPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// reason is the status, with its code as documentation and logs name it, in
// capitals. The words of gRPC's own about time and streams say nothing to people:
// the end of our time has many of them, depending on which side noticed it first.
func (e *callError) reason() string {
	answer := status.Convert(e.cause)
	text := statusPrefix.ReplaceAllString(answer.Message(), "")
	reset := strings.Contains(text, "RST_STREAM")
	if answer.Code() == codes.DeadlineExceeded && (reset || strings.Contains(text, context.DeadlineExceeded.Error())) {
		return "no answer within " + limitText(e.limit)
	}
	if reset {
		text = "the call was cut off"
	}
	return code.Code(answer.Code()).String() + ": " + text
}

// hint says what to do about it, "" if there is nothing to say.
func (e *callError) hint() string {
	answer := status.Convert(e.cause)
	switch answer.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		return e.credentialsHint
	case codes.Unimplemented:
		if strings.Contains(answer.Message(), "unknown service") {
			return "that is not the northbound port of a slim-cp"
		}
	case codes.Unavailable:
		if atTheBeginning(answer.Message()) {
			return e.asked.connectionHint(answer.Message())
		}
	}
	return ""
}

// atTheBeginning reports whether gRPC says of a connection, in one of its forms, that
// it was not made: a connection that was lost later is not about security, unless TLS
// itself says so.
func atTheBeginning(problem string) bool {
	if strings.Contains(problem, "error reading from server") && !strings.Contains(problem, "tls: ") {
		return false
	}
	return strings.Contains(problem, "connection error: ") ||
		strings.HasPrefix(problem, "write tcp ") || strings.HasPrefix(problem, "read tcp ")
}

// connectionHint says why a connection may have failed at its beginning. A server
// that wants TLS, or a certificate, tells a client so in no other way than by hanging
// up.
func (e endpoint) connectionHint(problem string) string {
	hungUp := containsAny(problem, "server preface", "EOF", "connection reset by peer", "broken pipe", "certificate required")
	switch {
	case e.tls == nil && hungUp:
		return fmt.Sprintf("the server may want TLS: see --%s, or this is not its northbound port", caFileFlag)
	case e.tls == nil:
		return ""
	case containsAny(problem, "first record does not look like a TLS handshake", "handshake failed: EOF"):
		return "the server may not speak TLS: ask http://" + e.address
	case strings.Contains(problem, "unknown authority"):
		return fmt.Sprintf("--%s names the file with the authority to trust", caFileFlag)
	case hungUp && len(e.tls.Certificates) == 0:
		return fmt.Sprintf("the server may want a client certificate: see --%s and --%s", certFileFlag, keyFileFlag)
	}
	return ""
}

func containsAny(text string, parts ...string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// limitText writes whole minutes without seconds.
func limitText(limit time.Duration) string {
	if limit >= time.Minute && limit%time.Minute == 0 {
		return fmt.Sprintf("%dm", limit/time.Minute)
	}
	return limit.String()
}
