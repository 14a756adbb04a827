package auth

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/slim-cp/slim-cp/config"
)

// ServerTLS makes the transport security of a listener, nil for plaintext. With
// authorities for clients it asks each one for a certificate. Key is where the
// file describes the settings; errors name it and what is wrong.
func ServerTLS(key string, settings config.ServerTLS) (*tls.Config, error) {
	if settings.Insecure {
		return nil, nil
	}
	certificate, err := certificate(key+".source", settings.Source)
	if err != nil {
		return nil, err
	}
	server := &tls.Config{MinVersion: minVersion(settings), Certificates: []tls.Certificate{certificate}}
	if settings.ClientCA.Type != config.SourceNone {
		if server.ClientCAs, err = authorities(key+".client_ca", settings.ClientCA); err != nil {
			return nil, err
		}
		server.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return server, nil
}

// PeerTLS makes both sides of the mutual TLS between replicas, nil for plaintext.
// Each replica has one certificate, good for the name at which the others reach
// it; the same authorities vouch for it whichever side dialled. The caller sets
// the name that a server has to prove for each connection.
func PeerTLS(key string, settings config.ServerTLS) (server, client *tls.Config, err error) {
	if server, err = ServerTLS(key, settings); err != nil || server == nil {
		return nil, nil, err
	}
	if server.ClientCAs == nil {
		return nil, nil, fmt.Errorf("%s.client_ca: missing: replicas prove themselves to each other", key)
	}
	client = &tls.Config{MinVersion: minVersion(settings), Certificates: server.Certificates, RootCAs: server.ClientCAs}
	return server, client, nil
}

func minVersion(settings config.ServerTLS) uint16 { return max(settings.Version, tls.VersionTLS12) }

func certificate(key string, source config.CertificateSource) (tls.Certificate, error) {
	var (
		pair tls.Certificate
		err  error
	)
	switch source.Type {
	case config.SourceFile:
		pair, err = tls.LoadX509KeyPair(source.CertFile, source.KeyFile)
		if err != nil {
			err = fmt.Errorf("%s: certificate %s with key %s: %w", key, source.CertFile, source.KeyFile, err)
		}
	case config.SourcePEM:
		pair, err = tls.X509KeyPair([]byte(source.CertPEM), []byte(source.KeyPEM.Reveal()))
		if err != nil {
			err = fmt.Errorf("%s: %w", key, err)
		}
	default:
		err = fmt.Errorf("%s.type %q: accepted: %s, %s", key, source.Type, config.SourceFile, config.SourcePEM)
	}
	return pair, err
}

func authorities(key string, source config.CASource) (*x509.CertPool, error) {
	content, err := authorityPEM(key, source)
	if err != nil {
		return nil, err
	}
	if source.Type == config.SourceFile {
		key += ": " + source.File
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%s: no PEM certificate in it", key)
	}
	return pool, nil
}

func authorityPEM(key string, source config.CASource) ([]byte, error) {
	switch source.Type {
	case config.SourceFile:
		content, err := os.ReadFile(source.File)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", key, source.File, err)
		}
		return content, nil
	case config.SourcePEM:
		return []byte(source.PEM), nil
	}
	return nil, fmt.Errorf("%s.type %q: accepted: %s, %s", key, source.Type, config.SourceFile, config.SourcePEM)
}
