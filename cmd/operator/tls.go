package operator

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// tlsSettings is the tls block of the client file. Certificates can be named in
// upstream's older form (ca_file, cert_file, key_file) or in its newer one
// (ca_source, source).
type tlsSettings struct {
	Insecure            bool          `yaml:"insecure"`
	InsecureSkipVerify  bool          `yaml:"insecure_skip_verify"`
	CAFile              string        `yaml:"ca_file"`
	CertFile            string        `yaml:"cert_file"`
	KeyFile             string        `yaml:"key_file"`
	CASource            caSource      `yaml:"ca_source"`
	Source              keyPairSource `yaml:"source"`
	IncludeSystemCAPool *bool         `yaml:"include_system_ca_certs_pool"`
}

type caSource struct {
	Type string `yaml:"type"`
	Path string `yaml:"path"`
	Data string `yaml:"data"`
}

type keyPairSource struct {
	Type string `yaml:"type"`
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// clientConfig reads the certificates. Errors name the setting and the file.
func (s tlsSettings) clientConfig() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Only where the operator asked for it by name.
		InsecureSkipVerify: s.InsecureSkipVerify,
	}
	var err error
	if config.RootCAs, err = s.roots(); err != nil {
		return nil, err
	}
	certificate, err := s.certificate()
	if err != nil {
		return nil, err
	}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	return config, nil
}

// roots returns nil for the system's certificate authorities alone.
func (s tlsSettings) roots() (*x509.CertPool, error) {
	source, where := s.CASource, "tls.ca_source"
	if s.CAFile != "" {
		source, where = caSource{Type: "file", Path: s.CAFile}, "tls.ca_file"
	}
	var authorities []byte
	switch source.Type {
	case "", "none":
		return nil, nil
	case "file":
		content, err := os.ReadFile(source.Path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		authorities, where = content, where+" "+source.Path
	case "pem":
		authorities = []byte(source.Data)
	default:
		return nil, fmt.Errorf("tls.ca_source.type %q: accepted are none, file and pem", source.Type)
	}
	pool := x509.NewCertPool()
	if s.IncludeSystemCAPool == nil || *s.IncludeSystemCAPool {
		// A machine without a pool of its own still has the given authorities.
		if system, err := x509.SystemCertPool(); err == nil {
			pool = system
		}
	}
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s: no PEM certificate in it", where)
	}
	return pool, nil
}

// certificate returns nil if there is no client certificate.
func (s tlsSettings) certificate() (*tls.Certificate, error) {
	source := s.Source
	if s.CertFile != "" || s.KeyFile != "" {
		source = keyPairSource{Type: "file", Cert: s.CertFile, Key: s.KeyFile}
	}
	var (
		pair tls.Certificate
		err  error
	)
	switch source.Type {
	case "", "none":
		return nil, nil
	case "file":
		pair, err = tls.LoadX509KeyPair(source.Cert, source.Key)
	case "pem":
		pair, err = tls.X509KeyPair([]byte(source.Cert), []byte(source.Key))
	default:
		return nil, fmt.Errorf("tls.source.type %q: accepted are none, file and pem", source.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("tls client certificate: %w", err)
	}
	return &pair, nil
}
