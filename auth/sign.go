package auth

import (
	"crypto/rand"
	"fmt"
	"strings"
	"time"
)

const nonceBytes = 12

// SignToken makes a token as a node does, a different one with each call. The
// error wraps ErrShortSecret, or ErrMalformed if a token cannot name the node.
func SignToken(secret []byte, group, node string, at time.Time) (string, error) {
	if len(secret) < MinSecretBytes {
		return "", ErrShortSecret
	}
	id := group + "/" + node + "_" + rand.Text()[:suffixBytes]
	if !validID(id) || strings.Contains(id, ":") {
		return "", fmt.Errorf("%w: no token can name node %q of group %q", ErrMalformed, node, group)
	}
	nonce := make([]byte, nonceBytes)
	_, _ = rand.Read(nonce) // never fails
	return sign(secret, id, at.Unix(), nonce, nil), nil
}

func sign(secret []byte, id string, seconds int64, nonce, claims []byte) string {
	text := fmt.Sprintf("%s:%d:%s:%s", id, seconds, encoding.EncodeToString(nonce), encoding.EncodeToString(claims))
	return text + ":" + mac(secret, text)
}
