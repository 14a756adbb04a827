package config

import (
	"crypto/tls"
	"fmt"
	"io"
	"time"
)

// Secret is a value that no message shows: every way of printing or encoding it
// yields "(hidden)". Reveal returns the value.
type Secret string

const hidden = "(hidden)"

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

// Format implements fmt.Formatter.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// TLS versions: the oldest that a listener accepts.
const (
	TLS12 = tls.VersionTLS12
	TLS13 = tls.VersionTLS13
)

// ServerTLS is the transport security of a listener. It has a certificate
// source unless it is insecure.
type ServerTLS struct {
	Insecure       bool // plaintext
	Source         CertificateSource
	ClientCA       CASource      // not none: clients must present a certificate
	Version        uint16        // the oldest that is accepted
	ReloadInterval time.Duration // of certificate files; 0: not asked for
}

// SourceType says where certificates come from.
type SourceType string

// Sources of certificates. The zero value is SourceNone.
const (
	SourceNone  SourceType = ""
	SourceFile  SourceType = "file"
	SourcePEM   SourceType = "pem"
	SourceSPIRE SourceType = "spire"
)

// CertificateSource is where a server's certificate and key come from.
type CertificateSource struct {
	Type     SourceType
	CertFile string // with SourceFile
	KeyFile  string
	CertPEM  string // with SourcePEM
	KeyPEM   Secret
	SPIRE    SPIRE
}

// CASource is where the authorities come from that vouch for clients.
type CASource struct {
	Type  SourceType
	File  string
	PEM   string
	SPIRE SPIRE
}

// SPIRE is a connection to a SPIRE agent.
type SPIRE struct {
	SocketPath     string // with scheme; empty: that of SPIFFE_ENDPOINT_SOCKET
	TargetSPIFFEID string
	JWTAudiences   []string
	TrustDomains   []string // empty: the agent's own
}

// AuthType says how the callers of a listener prove who they are.
type AuthType string

// Kinds of authentication.
const (
	AuthNone  AuthType = "none"
	AuthBasic AuthType = "basic"
	AuthJWT   AuthType = "jwt"
	AuthOIDC  AuthType = "oidc"
	AuthSPIRE AuthType = "spire"
)

// Auth is the authentication of a listener's callers.
type Auth struct {
	Type     AuthType
	Username string // with AuthBasic
	Password Secret
	JWT      JWT
	OIDC     OIDC
	SPIRE    SPIRE
	Policy   Policy // with AuthJWT and AuthOIDC
}

// JWT describes the tokens that are accepted.
type JWT struct {
	Audience []string
	Issuer   string
	Subject  string
	Duration time.Duration
	Key      JWTKey
}

// JWTKey verifies tokens. Type is encoding, decoding or autoresolve (the
// issuer's published keys); the rest is unset with autoresolve.
type JWTKey struct {
	Type      string
	Algorithm string
	Format    string // pem, jwk, jwks
	Data      Secret // either Data or File
	File      string
}

// OIDC describes the provider whose tokens are accepted.
type OIDC struct {
	IssuerURL     string
	Audience      string
	JWKSTTL       time.Duration
	ClaimCacheTTL time.Duration // 0: no cache
}

// Policy decides by a token's claims; at most one field is set.
type Policy struct {
	Rego     string
	RegoFile string
	CEL      string
}

// RegistrationType says how a node proves its group.
type RegistrationType string

// Kinds of registration credentials.
const (
	RegistrationNone         RegistrationType = "none"
	RegistrationSharedSecret RegistrationType = "shared_secret"
	RegistrationSPIRE        RegistrationType = "spire"
)

// RegistrationAuth is how nodes prove their group when they register.
type RegistrationAuth struct {
	Type       RegistrationType
	Secrets    map[string]Secret // by group, with RegistrationSharedSecret
	SocketPath string            // with scheme, with RegistrationSPIRE
}

// minSecretLength is the shortest key that the nodes' HMAC accepts, in bytes.
const minSecretLength = 32
