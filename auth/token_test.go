package auth_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/auth"
)

const (
	secret = "abcdefghijklmnopqrstuvwxyz012345"
	signed = 1700000000
	// vector is a token as nodes make it, with secret, at signed.
	vector = "cluster-a/node-1_AbCdEf12:1700000000:AAECAwQFBgcICQoL:eyJwdWJrZXkiOiJBQUFBIn0:" +
		"i9j50VH8gnA9Ws3DnF5m7wBb5ldAy1degyTCFJJGleg"
)

// known has a secret for one group only.
var known = auth.NewVerifier(func(group string) ([]byte, bool) { return []byte(secret), group == "cluster-a" })

func at(seconds int64) time.Time { return time.Unix(seconds, 0) }

// authentic adds the MAC to the first four parts of a token.
func authentic(text string) string {
	hash := hmac.New(sha256.New, []byte(secret))
	hash.Write([]byte(text))
	return text + ":" + base64.RawURLEncoding.EncodeToString(hash.Sum(nil))
}

func TestTokenOfANodeIsAccepted(t *testing.T) {
	proof, err := known.Verify("cluster-a", "node-1", vector, at(signed))
	if err != nil {
		t.Fatal(err)
	}
	if proof.Hash != sha256.Sum256([]byte(vector)) {
		t.Errorf("hash %x", proof.Hash)
	}
	if want := at(signed + 3600 + 300); !proof.Expires.Equal(want) {
		t.Errorf("expires %s, want %s", proof.Expires, want)
	}
}

func TestTokenIsJudgedByItsAge(t *testing.T) {
	for seconds, want := range map[int64]error{
		3600: nil, 3601: auth.ErrExpired, 1 << 40: auth.ErrExpired,
		-300: nil, -301: auth.ErrNotYetValid, -signed: auth.ErrNotYetValid, -1 << 40: auth.ErrNotYetValid,
	} {
		if _, err := known.Verify("cluster-a", "node-1", vector, at(signed+seconds)); !errors.Is(err, want) {
			t.Errorf("%d seconds old: %v, want %v", seconds, err, want)
		}
	}
}

func TestTokenIsJudgedByItsIdentity(t *testing.T) {
	for id, want := range map[string]error{
		"cluster-a/node-1":                      nil,
		"cluster-a/node-1_00000000":             nil,
		"cluster-a/node-1_zZ9aA0bB":             nil,
		"cluster-a/node-1_":                     auth.ErrIdentity,
		"cluster-a/node-1_AbCdEf1":              auth.ErrIdentity,
		"cluster-a/node-1_AbCdEf123":            auth.ErrIdentity,
		"cluster-a/node-1_AbCdEf1-":             auth.ErrIdentity,
		"cluster-a/node-1_2_AbCdEf12":           auth.ErrIdentity, // of node-1_2
		"cluster-a/node-1AbCdEf123":             auth.ErrIdentity,
		"cluster-a/node-12_AbCdEf12":            auth.ErrIdentity,
		"cluster-a/node":                        auth.ErrIdentity,
		"cluster-b/node-1_AbCdEf12":             auth.ErrIdentity,
		"node-1_AbCdEf12":                       auth.ErrIdentity,
		"cluster-a/node-1_äbcdefg":              auth.ErrIdentity,
		"":                                      auth.ErrMalformed,
		"cluster-a/node-1 ":                     auth.ErrMalformed,
		"cluster-a/node-1_AbCdEf12\u2003":       auth.ErrMalformed,
		"cluster-a/node-1_AbCdEf12\xff":         auth.ErrMalformed,
		"cluster-a/node-1:cluster-a/x_AbCdEf12": auth.ErrMalformed,
	} {
		token := authentic(fmt.Sprintf("%s:%d:AAECAwQFBgcICQoL:", id, int64(signed)))
		if _, err := known.Verify("cluster-a", "node-1", token, at(signed)); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", id, err, want)
		}
	}
}

func TestBadTokensAreRefused(t *testing.T) {
	id := "cluster-a/node-1_AbCdEf12"
	object := base64.RawURLEncoding.EncodeToString([]byte(`{"pubkey":"AAAA"}`))
	list := base64.RawURLEncoding.EncodeToString([]byte(`[]`))
	null := base64.RawURLEncoding.EncodeToString([]byte(`null`))
	for what, c := range map[string]struct {
		token string
		want  error
	}{
		"none":                {"", auth.ErrNoToken},
		"one word":            {"token", auth.ErrMalformed},
		"four parts":          {authentic(id + ":1700000000:AAAA"), auth.ErrMalformed},
		"six parts":           {authentic(id + ":1700000000:AAAA::"), auth.ErrMalformed},
		"only colons":         {"::::", auth.ErrMalformed},
		"huge":                {authentic(id + ":1700000000:" + strings.Repeat("A", 16<<10) + ":"), auth.ErrMalformed},
		"no time":             {authentic(id + "::AAAA:"), auth.ErrMalformed},
		"time with sign":      {authentic(id + ":+1700000000:AAAA:"), auth.ErrMalformed},
		"negative time":       {authentic(id + ":-1700000000:AAAA:"), auth.ErrMalformed},
		"time with fraction":  {authentic(id + ":1700000000.0:AAAA:"), auth.ErrMalformed},
		"hexadecimal time":    {authentic(id + ":0x6553f100:AAAA:"), auth.ErrMalformed},
		"time of 64 bits":     {authentic(id + ":18446744073709551615:AAAA:"), auth.ErrMalformed},
		"time of 63 bits":     {authentic(id + ":9223372036854775807:AAAA:"), auth.ErrMalformed},
		"greatest time":       {authentic(id + ":4611686018427387903:AAAA:"), auth.ErrNotYetValid},
		"time in ms":          {authentic(id + ":1700000000000:AAAA:"), auth.ErrNotYetValid},
		"no MAC":              {vector[:strings.LastIndexByte(vector, ':')+1], auth.ErrMalformed},
		"short MAC":           {vector[:len(vector)-1], auth.ErrMalformed},
		"padded MAC":          {vector + "=", auth.ErrMalformed},
		"MAC is not base64":   {vector[:len(vector)-1] + "!", auth.ErrBadMAC},
		"MAC of another":      {vector[:len(vector)-1] + "A", auth.ErrBadMAC},
		"MAC spelled anew":    {vector[:len(vector)-1] + "h", auth.ErrBadMAC}, // decodes to the same bytes
		"other node":          {strings.Replace(vector, "node-1_", "node-2_", 1), auth.ErrBadMAC},
		"other time":          {strings.Replace(vector, "1700000000", "1700000001", 1), auth.ErrBadMAC},
		"other claims":        {strings.Replace(vector, "eyJ", "", 1), auth.ErrBadMAC},
		"claims with padding": {authentic(id + ":1700000000:AAAA:e30="), auth.ErrMalformed},
		"claims are text":     {authentic(id + ":1700000000:AAAA:" + object[1:]), auth.ErrMalformed},
		"claims are a list":   {authentic(id + ":1700000000:AAAA:" + list), auth.ErrMalformed},
		"claims are null":     {authentic(id + ":1700000000:AAAA:" + null), auth.ErrMalformed},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := known.Verify("cluster-a", "node-1", c.token, at(signed))
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			quiet(t, err, c.token)
		})
	}
}

// quiet fails the test if an error shows a token's MAC, or the secret.
func quiet(t *testing.T, err error, token string) {
	t.Helper()
	mac := token[strings.LastIndexByte(token, ':')+1:]
	if strings.Contains(err.Error(), secret) || len(mac) == 43 && strings.Contains(err.Error(), mac) {
		t.Errorf("the error tells: %v", err)
	}
}

func TestWithoutAUsableSecretNothingIsAccepted(t *testing.T) {
	token, err := auth.SignToken([]byte(secret), "cluster-b", "node-1", at(signed))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := known.Verify("cluster-b", "node-1", token, at(signed)); !errors.Is(err, auth.ErrNoSecret) {
		t.Errorf("group without a secret: %v", err)
	}
	if _, err := (auth.Verifier{}).Verify("cluster-a", "node-1", vector, at(signed)); !errors.Is(err, auth.ErrNoSecret) {
		t.Errorf("no lookup: %v", err)
	}
	for _, short := range []string{"", secret[1:]} {
		verifier := auth.NewVerifier(func(string) ([]byte, bool) { return []byte(short), true })
		if _, err := verifier.Verify("cluster-a", "node-1", vector, at(signed)); !errors.Is(err, auth.ErrShortSecret) {
			t.Errorf("secret of %d bytes: %v", len(short), err)
		}
	}
}

// Nodes and control planes may read a secret from the same file, and not all drop the
// end of its last line.
func TestNewlinesAtTheEndOfASecret(t *testing.T) {
	for _, c := range []struct {
		known, node string
		want        error
	}{
		{secret + "\n", secret + "\n", nil},
		{secret + "\n", secret, nil},
		{secret + "\r\n", secret, nil},
		{secret + "\n\n", secret, nil},
		{secret, secret + "\n", nil},
		{secret + "\n", secret + " ", auth.ErrBadMAC},
		{secret + " ", secret, auth.ErrBadMAC},
		{"\n" + secret, secret, auth.ErrBadMAC},
	} {
		token, err := auth.SignToken([]byte(c.node), "a", "n", at(signed))
		if err != nil {
			t.Fatal(err)
		}
		stored := []byte(c.known)
		verifier := auth.NewVerifier(func(string) ([]byte, bool) { return stored, true })
		if _, err := verifier.Verify("a", "n", token, at(signed)); !errors.Is(err, c.want) {
			t.Errorf("known %q, the node's %q: %v", c.known, c.node, err)
		}
		if string(stored) != c.known {
			t.Errorf("the secret is %q now", stored)
		}
	}
}

func TestSignedTokensAreAcceptedAndDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SliceOfN(rapid.Byte(), 32, 100).Draw(t, "key")
		text := rapid.StringMatching(`[A-Za-z0-9._/ü-]{1,30}`)
		group, node := text.Draw(t, "group"), text.Draw(t, "node")
		made := at(rapid.Int64Range(0, 1<<40).Draw(t, "time"))
		verifier := auth.NewVerifier(func(string) ([]byte, bool) { return key, true })
		seen := map[auth.Proof]bool{}
		for range 3 {
			token, err := auth.SignToken(key, group, node, made)
			if err != nil {
				t.Fatal(err)
			}
			proof, err := verifier.Verify(group, node, token, made)
			if err != nil {
				t.Fatalf("%s: %v", token, err)
			}
			seen[proof] = true
		}
		if len(seen) != 3 {
			t.Errorf("%d different tokens of 3", len(seen))
		}
	})
}

func TestSignRefusesWhatCannotBeVerified(t *testing.T) {
	for _, c := range []struct {
		key, group, node string
		want             error
	}{
		{secret[1:], "a", "n", auth.ErrShortSecret},
		{secret, "a:b", "n", auth.ErrMalformed},
		{secret, "a", "n n", auth.ErrMalformed},
		{secret, "a", "n\xff", auth.ErrMalformed},
	} {
		if token, err := auth.SignToken([]byte(c.key), c.group, c.node, at(signed)); !errors.Is(err, c.want) {
			t.Errorf("%q/%q: %q, %v, want %v", c.group, c.node, token, err, c.want)
		}
	}
}
