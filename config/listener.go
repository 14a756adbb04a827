package config

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// listeners decodes one listener or a list of them; null keeps the default.
func listeners(to *[]Listener) decode {
	return func(v value) {
		switch {
		case v.isNull():
		case v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0:
			v.fail("an empty list: accepted: at least one listener; without the key there is one on " + (*to)[0].Endpoint.String())
		case v.node.Kind == yaml.SequenceNode:
			*to = nil
			v.list("", func(item value) { *to = append(*to, item.listener()) })
		case v.node.Kind == yaml.MappingNode:
			*to = []Listener{v.listener()}
		default:
			v.refuse("a listener {endpoint: …, tls: …}, or a list of them", false)
		}
	}
}

func (v value) listener() Listener {
	l := Listener{
		Key:       v.path,
		TLS:       ServerTLS{Version: TLS13},
		Auth:      Auth{Type: AuthNone},
		Keepalive: defaultKeepalive(),
	}
	var transport object
	table := withoutEffect()
	table["endpoint"] = endpoint(&l.Endpoint)
	table["tls"] = optional(func(v value) { transport = serverTLS(&l.TLS, v, nil) })
	table["auth"] = auth(&l.Auth)
	table["keepalive"] = optional(keepalive(&l.Keepalive))
	table["max_concurrent_streams"] = optional(integer(&l.MaxConcurrentStreams, 0, math.MaxUint32))
	table["max_header_list_size"] = optional(integer(&l.MaxHeaderListSize, 0, math.MaxUint32))
	found := v.object(table)
	found.require("endpoint", acceptedEndpoint)
	if found.valid && !found.old && !transport.old {
		found.checkTransport(l)
	}
	return l
}

// withoutEffect are keys that upstream's files may have and that change nothing
// here: they tune its HTTP library, or belong to its data plane.
func withoutEffect() fields {
	var flag bool
	var number uint64
	size := optional(integer(&number, 0, math.MaxInt64))
	return fields{
		"http2_only":                 optional(boolean(&flag)),
		"max_frame_size":             size,
		"read_buffer_size":           size,
		"write_buffer_size":          size,
		"metadata":                   ignore,
		"require_header_mac":         optional(boolean(&flag)),
		"negotiation_timeout_secs":   size,
		"link_hmac_timeout_secs":     size,
		"link_hmac_poll_interval_ms": size,
	}
}

// keepalive decodes a server's pings. Of the maximum age of a connection only
// the form is checked: ending a healthy stream would cost a node its links.
func keepalive(k *Keepalive) decode {
	return func(v value) {
		var unused time.Duration
		v.object(fields{
			"time":                     duration(&k.Time),
			"timeout":                  duration(&k.Timeout),
			"max_connection_idle":      optional(duration(&unused)),
			"max_connection_age":       optional(duration(&unused)),
			"max_connection_age_grace": optional(duration(&unused)),
		})
	}
}

// serverTLS decodes the TLS of a listener. More are keys that only this one has.
func serverTLS(t *ServerTLS, v value, more fields) object {
	var unused bool
	var unusedCA CASource
	known := fields{
		"insecure":        boolean(&t.Insecure),
		"source":          certificateSource(&t.Source),
		"client_ca":       caSource(&t.ClientCA),
		"tls_version":     choice(&t.Version, map[string]uint16{"tls1.2": TLS12, "tls1.3": TLS13}),
		"reload_interval": optional(duration(&t.ReloadInterval)),

		// Of these a server makes no use.
		"ca_source":                    caSource(&unusedCA),
		"include_system_ca_certs_pool": optional(boolean(&unused)),
		"reload_client_ca_file":        optional(boolean(&unused)),
	}
	maps.Copy(known, more)
	return v.object(known)
}

func certificateSource(s *CertificateSource) decode {
	return func(v value) {
		kind, found := v.variant(map[string]fields{
			"none":  {},
			"file":  {"cert": str(&s.CertFile, acceptedFile), "key": str(&s.KeyFile, acceptedFile)},
			"pem":   {"cert": str(&s.CertPEM, acceptedPEM), "key": secret(&s.KeyPEM)},
			"spire": spireFields(&s.SPIRE),
		})
		s.Type = sourceType(kind)
		switch s.Type {
		case SourceFile:
			found.require("cert", acceptedFile)
			found.require("key", acceptedFile)
		case SourcePEM:
			found.require("cert", acceptedPEM)
			found.require("key", acceptedPEM)
		case SourceSPIRE:
			found.completeSPIRE(&s.SPIRE)
		}
	}
}

func caSource(s *CASource) decode {
	return func(v value) {
		kind, found := v.variant(map[string]fields{
			"none":  {},
			"file":  {"path": str(&s.File, acceptedFile)},
			"pem":   {"data": str(&s.PEM, acceptedPEM)},
			"spire": spireFields(&s.SPIRE),
		})
		s.Type = sourceType(kind)
		switch s.Type {
		case SourceFile:
			found.require("path", acceptedFile)
		case SourcePEM:
			found.require("data", acceptedPEM)
		case SourceSPIRE:
			found.completeSPIRE(&s.SPIRE)
		}
	}
}

const (
	acceptedFile = "the path of a file"
	acceptedPEM  = "text in PEM form"
)

func sourceType(kind string) SourceType {
	if kind == "none" {
		return SourceNone
	}
	return SourceType(kind)
}

// checkTransport refuses a listener that could not start, and warns about one
// whose keys contradict each other.
func (o object) checkTransport(l Listener) {
	key := keyPath(o.path, "tls")
	certified := l.TLS.Source.Type != SourceNone
	switch {
	case l.TLS.Insecure:
		if certified || l.TLS.ClientCA.Type != SourceNone {
			o.keys["tls"].warn("the certificates are not used: insecure: true means plaintext")
		}
	case l.Endpoint.Network == "unix":
		o.failAt("tls", fmt.Sprintf("no TLS on a unix socket: accepted: %s.insecure: true", key))
	case certified:
		o.keys["tls"].refuseUnservedTLS(l.TLS)
	case !o.failedBelow("tls"):
		o.failAt("tls", fmt.Sprintf("no certificate: write %s.insecure: true for plaintext, "+
			"or name a certificate: %s.source: {type: file, cert: …, key: …}", key, key))
	}
}

// refuseUnservedTLS notes what this version does not serve of a listener's TLS.
func (v value) refuseUnservedTLS(t ServerTLS) {
	if t.Source.Type == SourceSPIRE || t.ClientCA.Type == SourceSPIRE {
		v.refuseToServe("TLS with certificates from SPIRE is", "sources of type file or pem")
	}
	if t.ReloadInterval > 0 {
		v.refuseToServe("reloading of certificates (reload_interval) is", "no such key; a restart reads them again")
	}
}

// failedBelow reports whether the value at a key has problems of its own.
func (o object) failedBelow(key string) bool {
	prefix := keyPath(o.path, key)
	for _, p := range o.problems {
		if p.Key == prefix || strings.HasPrefix(p.Key, prefix+".") {
			return true
		}
	}
	return false
}

// refuseToServe notes that the value asks for what this version does not serve.
func (v value) refuseToServe(what, accepted string) {
	v.unserved = append(v.unserved, v.problem(what+" not served by this version: accepted: "+accepted))
}
