package fsm

import (
	"errors"
	"time"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// maxTokens bounds the used tokens that are remembered. Each is kept until it
// could not be used any more, an hour at most.
const maxTokens = 200_000

// Errors that refuse a registration.
var (
	ErrNoSecret = errors.New("no registration secret is configured for the group")
	ErrReplayed = errors.New("registration token was used before")
	// ErrUnjudged: nodes began to prove their group after the replica had judged the
	// registration, or the group has another secret since. It is to be judged again,
	// with a state that holds the change, and proposed with the token that it proves
	// (protocol A6).
	ErrUnjudged = errors.New("registration was judged by what nodes had to prove before")
)

// admit decides what of a registration's credentials only the log can: that the
// group may still register, and that a token opens one session only. A
// registration of a stream that goes on was admitted before (protocol S5); one that
// was answered provisionally was not.
func (a *applier) admit(name SessionName, command *slimcppb.RegisterNode) error {
	if a.fleet.GetRegistrationAuth() != SharedSecret ||
		command.GetResumed() && command.GetProvisionalEpoch() == 0 {
		return nil
	}
	secret, ok := a.Secret(command.GetGroup())
	if !ok || command.GetGroup() == "" {
		return ErrNoSecret
	}
	judgedBy := command.GetSecretIndex()
	if len(command.GetTokenHash()) == 0 || judgedBy != 0 && judgedBy != secret.Index {
		return ErrUnjudged
	}
	a.expireTokens()
	token := usedToken{
		hash:    string(command.GetTokenHash()),
		session: name,
		expires: timeFromProto(command.GetTokenExpiresUnixNanos()),
	}
	if used, ok := a.tokens.get(token); ok && used.session != name {
		return ErrReplayed
	}
	a.setToken(token)
	return nil
}

func (a *applier) setToken(token usedToken) {
	a.tokens.set(token)
	a.tokenExpires.set(token)
}

func (a *applier) expireTokens() {
	var expired []usedToken
	excess := a.tokens.len() - maxTokens + 1
	for token := range a.tokenExpires.all() {
		if len(expired) >= excess && token.expires.After(a.now()) {
			break
		}
		expired = append(expired, token)
	}
	for _, token := range expired {
		a.tokens.delete(token)
		a.tokenExpires.delete(token)
	}
}

// TokenUsed reports whether a token opened a session other than the given one.
func (t *tables) TokenUsed(hash string, session SessionName, now time.Time) bool {
	used, ok := t.tokens.get(usedToken{hash: hash})
	return ok && used.session != session && used.expires.After(now)
}
