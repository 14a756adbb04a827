package southbound

import (
	"errors"
	"fmt"
	"time"

	"github.com/slim-cp/slim-cp/auth"
	"github.com/slim-cp/slim-cp/fsm"
)

// Credentials are what a node says of itself when it registers, and its proof.
type Credentials struct {
	Group string // empty: a node without a group
	Node  string // the node's own id, without the group
	Token string
	// ReceivedAt is what a token's age is judged by, whenever it is judged.
	ReceivedAt time.Time
}

// Authenticator judges the credentials of registrations.
type Authenticator interface {
	// Authenticate returns nil if the credentials prove what they say, by the
	// rules of the view, or else why not: that is logged and the node never told.
	// The proof is zero if any number of sessions may use the credentials; under
	// fsm.SharedSecret the state takes no registration without one. It must not
	// block; it may be asked again with a newer view.
	Authenticate(view *fsm.View, credentials Credentials) (auth.Proof, error)
}

// errNoGroup: without a group there is no secret.
var errNoGroup = errors.New("a node without a group cannot prove who it is")

// fleetAuthenticator goes by the kind of authentication in the state.
type fleetAuthenticator struct{}

func (fleetAuthenticator) Authenticate(view *fsm.View, c Credentials) (auth.Proof, error) {
	switch kind := view.Fleet().GetRegistrationAuth(); kind {
	case "", "none":
		return auth.Proof{}, nil
	case fsm.SharedSecret:
		if c.Group == "" {
			return auth.Proof{}, errNoGroup
		}
		verifier := auth.NewVerifier(func(group string) ([]byte, bool) {
			secret, ok := view.Secret(group)
			return secret.Value, ok && secret.KeyID == "" // with one it is sealed
		})
		return verifier.Verify(c.Group, c.Node, c.Token, c.ReceivedAt)
	default:
		return auth.Proof{}, fmt.Errorf("registration with %q is not served by this version", kind)
	}
}

// judge says why the registration is to be refused by a view, nil if it is not. It
// is called by the handler until propose runs, and by propose from then on.
func (st *stream) judge(view *fsm.View) error {
	r := st.registration
	if r.fault != nil {
		return r.fault
	}
	proof, err := st.service.authenticator.Authenticate(view, r.credentials)
	if err != nil {
		return fmt.Errorf("%w: %w", errDenied, err)
	}
	if proof != (auth.Proof{}) {
		r.command.TokenHash = proof.Hash[:]
		r.command.TokenExpiresUnixNanos = proof.Expires.UnixNano()
		secret, _ := view.Secret(r.credentials.Group)
		r.command.SecretIndex = secret.Index
	}
	return nil
}
