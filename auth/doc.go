// Package auth checks what proves that somebody is who they say, and makes the
// transport security of listeners out of configuration.
//
// Nodes prove by tokens that they belong to a group: nodes and control plane share
// a secret, one per group.
//
// A token has five parts with ":" between them,
//
//	GROUP/NODE_SUFFIX : UNIX SECONDS : NONCE : CLAIMS : MAC
//
// of which SUFFIX is eight random letters and digits, NONCE and CLAIMS are
// base64url without padding, and MAC is the HMAC-SHA-256, in the same encoding,
// of all that stands before the last ":". CLAIMS are a JSON object or empty.
// Nodes make a new token for each registration.
//
// Errors say what is wrong with a token; neither a token nor a secret ever
// stands in one.
package auth
