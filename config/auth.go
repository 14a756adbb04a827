package config

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"
)

// auth decodes how the callers of a listener prove who they are.
func auth(a *Auth) decode {
	return func(v value) {
		kind, found := v.variant(map[string]fields{
			"none":  {},
			"basic": {"username": str(&a.Username, "a string"), "password": secret(&a.Password)},
			"jwt":   jwtFields(a),
			"oidc":  oidcFields(a),
			"spire": spireFields(&a.SPIRE),
		})
		if kind == "" {
			return
		}
		a.Type = AuthType(kind)
		switch a.Type {
		case AuthBasic:
			found.require("username", "a string")
			found.require("password", "a string")
		case AuthJWT:
			if !found.has("duration") {
				a.JWT.Duration = time.Hour
			}
			found.require("key", "a map with the key type: autoresolve, decoding, encoding")
		case AuthOIDC:
			if !found.has("jwks_ttl") {
				a.OIDC.JWKSTTL = time.Hour
			}
			found.require("issuer_url", "a URL")
			found.require("audience", "a string")
		case AuthSPIRE:
			found.completeSPIRE(&a.SPIRE)
		}
		if a.Type != AuthNone {
			v.refuseToServe("authentication of callers is", "{type: none}, or no such key")
		}
	}
}

func jwtFields(a *Auth) fields {
	return fields{
		"claims":   optional(claims(&a.JWT)),
		"duration": duration(&a.JWT.Duration),
		"key":      jwtKey(&a.JWT.Key),
		"policy":   optional(policy(&a.Policy)),
	}
}

func claims(j *JWT) decode {
	return func(v value) {
		audience := optional(strs(&j.Audience))
		v.object(fields{
			"audience":      audience,
			"audiences":     audience,
			"aud":           audience,
			"issuer":        optional(anyStr(&j.Issuer)),
			"iss":           optional(anyStr(&j.Issuer)),
			"subject":       optional(anyStr(&j.Subject)),
			"sub":           optional(anyStr(&j.Subject)),
			"custom_claims": ignore, // for those who make tokens
		})
	}
}

func jwtKey(k *JWTKey) decode {
	return func(v value) {
		material := func(v value) {
			v.object(fields{"data": secret(&k.Data), "file": str(&k.File, acceptedFile)})
			if (k.Data == "") == (k.File == "") {
				v.fail("accepted: one of data, file")
			}
		}
		given := fields{
			"algorithm": str(&k.Algorithm, "the name of an algorithm"),
			"format":    choice(&k.Format, map[string]string{"pem": "pem", "jwk": "jwk", "jwks": "jwks"}),
			"key":       material,
		}
		kind, found := v.variant(map[string]fields{"encoding": given, "decoding": given, "autoresolve": {}})
		k.Type = kind
		if kind == "encoding" || kind == "decoding" {
			found.require("algorithm", "the name of an algorithm")
			found.require("key", "a map with one of data, file")
		}
	}
}

func oidcFields(a *Auth) fields {
	table := fields{
		"issuer_url":      str(&a.OIDC.IssuerURL, "a URL"),
		"audience":        str(&a.OIDC.Audience, "a string"),
		"jwks_ttl":        duration(&a.OIDC.JWKSTTL),
		"claim_cache_ttl": optional(duration(&a.OIDC.ClaimCacheTTL)),
		"policy":          optional(policy(&a.Policy)),
	}
	for _, ofClients := range []string{
		"client_id", "client_secret", "refresh_token", "refresh_token_file", "access_token_file", "scope", "timeout",
	} {
		table[ofClients] = ignore
	}
	return table
}

func policy(p *Policy) decode {
	return func(v value) {
		found := v.object(fields{
			"rego":      str(&p.Rego, "the text of a policy"),
			"rego_file": str(&p.RegoFile, acceptedFile),
			"cel":       str(&p.CEL, "an expression"),
		})
		if found.valid && len(found.keys) != 1 {
			v.fail("accepted: one of rego, rego_file, cel")
		}
	}
}

func spireFields(s *SPIRE) fields {
	return fields{
		"socket_path":      optional(socketPath(&s.SocketPath)),
		"target_spiffe_id": optional(str(&s.TargetSPIFFEID, "a SPIFFE id")),
		"jwt_audiences":    strs(&s.JWTAudiences),
		"trust_domains":    strs(&s.TrustDomains),
	}
}

// socketPath decodes the address of a SPIRE agent's socket.
func socketPath(to *string) decode {
	return func(v value) {
		str(to, "the path of a socket")(v)
		if strings.HasPrefix(*to, "/") {
			*to = "unix://" + *to
		}
	}
}

// agentSocket is the environment variable that names the socket of a SPIRE
// agent where the file does not.
const agentSocket = "SPIFFE_ENDPOINT_SOCKET"

// completeSPIRE fills in the audience of SLIM's tokens, and warns if the agent's
// socket comes from the environment.
func (o object) completeSPIRE(s *SPIRE) {
	if !o.has("jwt_audiences") {
		s.JWTAudiences = []string{"slim"}
	}
	if o.given("socket_path") {
		return
	}
	socket := "is not set"
	if path := os.Getenv(agentSocket); path != "" {
		socket = fmt.Sprintf("is %q", path)
	}
	o.warn(fmt.Sprintf("no socket_path: the SPIRE agent's socket is that of %s, which %s", agentSocket, socket))
}

// registrationAuth decodes how nodes prove their group.
func registrationAuth(r *RegistrationAuth) decode {
	return func(v value) {
		kind, found := v.variant(map[string]fields{
			"none":          {},
			"shared_secret": {"secrets": optional(groupSecrets(&r.Secrets))},
			"spire":         {"socket_path": socketPath(&r.SocketPath)},
		})
		if kind == "" {
			return
		}
		r.Type = RegistrationType(kind)
		if r.Type == RegistrationSPIRE {
			found.require("socket_path", "the path of a socket")
			v.refuseToServe("registration with SPIRE is", "{type: none}, {type: shared_secret, secrets: {GROUP: …}}, or no such key")
		}
	}
}

func groupSecrets(to *map[string]Secret) decode {
	return func(v value) {
		o := v.readObject()
		v.problems = append(v.problems, o.faults...)
		secrets := make(map[string]Secret, len(o.keys))
		for _, group := range o.order {
			item := o.keys[group]
			text, ok := item.text()
			switch {
			case !validGroup(group) || strings.Contains(group, ":") || strings.ContainsFunc(group, unicode.IsSpace):
				item.fail("no token can name this group: accepted: " + acceptedSecretGroup)
			case !ok || len(text) < minSecretLength:
				item.fail(fmt.Sprintf("value %s: accepted: a string of at least %d bytes", hidden, minSecretLength))
			default:
				secrets[group] = Secret(text)
				if bare := strings.TrimRight(text, "\r\n"); len(bare) < len(text) && len(bare) >= minSecretLength {
					item.warn("the secret ends in a newline: tokens made with it and without it are accepted")
				}
			}
		}
		*to = secrets
	}
}

// isGroupSecret reports whether a value is a secret of a group. Nodes that read the
// same file may take the newline at its end for a part of the secret.
func isGroupSecret(path string) bool {
	return strings.HasPrefix(path, "topology.registration_auth.secrets.")
}

const (
	acceptedGroup = `1 to 253 bytes, no "/", no control characters, not "*"`
	// acceptedSecretGroup also leaves out what separates the parts of a token.
	acceptedSecretGroup = `1 to 253 bytes, no "/" or ":", no white space or control characters, not "*"`
	maxGroupLength      = 253
)

// validGroup reports whether nodes of a group with this name can register
// (protocol A8).
func validGroup(name string) bool {
	return name != "" && name != "*" && len(name) <= maxGroupLength && !strings.Contains(name, "/") &&
		!strings.ContainsFunc(name, unicode.IsControl)
}
