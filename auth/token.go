package auth

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxAge is how old a token may be (protocol A6).
	MaxAge = time.Hour
	// MaxAhead is how far in the future a token may have been made: clocks of
	// nodes differ (protocol A6).
	MaxAhead = 5 * time.Minute
	// MinSecretBytes is the shortest secret that nodes can use.
	MinSecretBytes = 32

	// maxTokenBytes is many times what nodes send: ids of 253 bytes and a key.
	maxTokenBytes = 16 << 10
	parts         = 5
	macBytes      = 43 // of 32 bytes in base64url
	suffixBytes   = 8
)

// Why a token is refused. Errors of this package wrap one of them.
var (
	ErrNoToken     = errors.New("credentials are required and were not given")
	ErrNoSecret    = errors.New("no registration secret is known for the group")
	ErrShortSecret = fmt.Errorf("secret is shorter than %d bytes", MinSecretBytes)
	ErrMalformed   = errors.New("token is malformed")
	ErrExpired     = errors.New("token is too old")
	ErrNotYetValid = errors.New("token is from the future")
	ErrBadMAC      = errors.New("token was not made with the group's secret")
	ErrIdentity    = errors.New("token is of another node")
)

// encoding takes one spelling only for the same bytes.
var encoding = base64.RawURLEncoding.Strict()

// Proof is what is left of a token that was accepted.
type Proof struct {
	// Hash tells the token from others. A token cannot be spelled in two ways.
	Hash [sha256.Size]byte
	// Expires is when no replica accepts the token any more, whose clocks may
	// differ by MaxAhead.
	Expires time.Time
}

// Verifier checks tokens with the secrets of a lookup, which is called once a
// token. The zero value knows no secret.
type Verifier struct {
	secret func(group string) ([]byte, bool)
}

// NewVerifier returns a verifier for the secrets of groups.
func NewVerifier(secret func(group string) ([]byte, bool)) Verifier {
	return Verifier{secret: secret}
}

// Verify checks that a token proves that its bearer is this node of this group,
// at a time which is when the token was received. The error wraps one of the
// errors above and says more.
func (v Verifier) Verify(group, node, token string, at time.Time) (Proof, error) {
	if token == "" {
		return Proof{}, ErrNoToken
	}
	if v.secret == nil {
		return Proof{}, ErrNoSecret
	}
	secret, ok := v.secret(group)
	switch {
	case !ok:
		return Proof{}, ErrNoSecret
	case len(secret) < MinSecretBytes:
		return Proof{}, ErrShortSecret
	}
	parsed, err := parse(token)
	if err != nil {
		return Proof{}, err
	}
	if err := parsed.check(secret, at); err != nil {
		return Proof{}, err
	}
	if !isOf(parsed.id, group, node) {
		return Proof{}, fmt.Errorf("%w: it is for %q, the node is %q of group %q", ErrIdentity, parsed.id, node, group)
	}
	return Proof{
		Hash:    sha256.Sum256([]byte(token)),
		Expires: time.Unix(parsed.signed, 0).Add(MaxAge + MaxAhead),
	}, nil
}

// token is one that has been taken apart.
type token struct {
	id     string
	signed int64 // Unix seconds
	claims string
	mac    string
	// authentic is what the MAC is of.
	authentic string
}

func parse(text string) (token, error) {
	if len(text) > maxTokenBytes {
		return token{}, fmt.Errorf("%w: %d bytes, at most %d are accepted", ErrMalformed, len(text), maxTokenBytes)
	}
	fields := strings.Split(text, ":")
	if len(fields) != parts {
		return token{}, fmt.Errorf("%w: expected %d parts, got %d", ErrMalformed, parts, len(fields))
	}
	t := token{id: fields[0], claims: fields[3], mac: fields[4]}
	if !validID(t.id) {
		return token{}, fmt.Errorf("%w: the id is empty, has white space in it or is not UTF-8", ErrMalformed)
	}
	// Two bits short of an int64, so that differences of times do not overflow.
	signed, err := strconv.ParseUint(fields[1], 10, 62)
	if err != nil {
		return token{}, fmt.Errorf("%w: the time is not a number of seconds", ErrMalformed)
	}
	t.signed = int64(signed)
	t.authentic = text[:len(text)-len(t.mac)-1]
	return t, nil
}

func validID(id string) bool {
	return id != "" && utf8.ValidString(id) && !strings.ContainsFunc(id, unicode.IsSpace)
}

func (t token) check(secret []byte, at time.Time) error {
	now := at.Unix()
	switch {
	case t.signed < now && now-t.signed > int64(MaxAge/time.Second):
		return fmt.Errorf("%w: %d seconds, at most %d are accepted", ErrExpired, now-t.signed, int64(MaxAge/time.Second))
	case t.signed > now && t.signed-now > int64(MaxAhead/time.Second):
		return fmt.Errorf("%w: %d seconds ahead, at most %d are accepted", ErrNotYetValid, t.signed-now, int64(MaxAhead/time.Second))
	case len(t.mac) != macBytes:
		return fmt.Errorf("%w: the MAC has %d characters, expected %d", ErrMalformed, len(t.mac), macBytes)
	}
	// The encoded MACs are compared: of those that decode to the same bytes only
	// one is right, or a used token could come again in another spelling.
	if !slices.ContainsFunc(spellings(secret), func(secret []byte) bool {
		return hmac.Equal([]byte(t.mac), []byte(mac(secret, t.authentic)))
	}) {
		return ErrBadMAC
	}
	return checkClaims(t.claims)
}

// spellings returns a secret as it stands, without the newlines at its end, and with
// one: nodes and control planes read secrets from files, and some drop the end of the
// last line.
func spellings(secret []byte) [][]byte {
	list := [][]byte{secret}
	bare := bytes.TrimRight(secret, "\r\n")
	if len(bare) < MinSecretBytes { // no node takes it
		return list
	}
	if len(bare) < len(secret) {
		list = append(list, bare)
	}
	return append(list, append(slices.Clip(bare), '\n'))
}

// checkClaims refuses what no node sends; the claims themselves are not used.
func checkClaims(text string) error {
	if text == "" {
		return nil
	}
	decoded, err := encoding.DecodeString(text)
	if err != nil {
		return fmt.Errorf("%w: the claims are not base64url", ErrMalformed)
	}
	var claims map[string]json.RawMessage
	if err := json.Unmarshal(decoded, &claims); err != nil || claims == nil {
		return fmt.Errorf("%w: the claims are not a JSON object", ErrMalformed)
	}
	return nil
}

// isOf reports whether an id is of a node. Any text behind "_" would let the
// holder of "node_1" pass for "node".
func isOf(id, group, node string) bool {
	suffix, ok := strings.CutPrefix(id, group+"/"+node)
	if !ok {
		return false
	}
	if suffix == "" {
		return true
	}
	random, ok := strings.CutPrefix(suffix, "_")
	return ok && len(random) == suffixBytes && strings.Trim(random, alphanumeric) == ""
}

const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// mac returns the encoded MAC of a text.
func mac(secret []byte, text string) string {
	hash := hmac.New(sha256.New, secret)
	hash.Write([]byte(text))
	return encoding.EncodeToString(hash.Sum(nil))
}
