// Package tlsfiles makes of what a store URL says about TLS a client's configuration.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Files are what a URL says about TLS, in its parameters tls, cacert, cert, key and servername.
type Files struct {
	On, Off                   bool   // tls=true, tls=false; neither: the parameter is not there
	CA, Cert, Key, ServerName string // empty when not given
	Known                     string // the parameters beside tls, for errors: "cacert, cert or key"
}

// Config returns nil when the connection is not to be encrypted. The certificate and its key are read anew for each connection, so they may be replaced;
// they are read once here, so that an error comes early. Errors name the parameter.
func (f Files) Config() (*tls.Config, error) {
	named := f.CA != "" || f.Cert != "" || f.Key != "" || f.ServerName != ""
	switch {
	case f.Off && named:
		return nil, fmt.Errorf("tls=false beside %s: leave one out", f.Known)
	case !f.On && !named:
		return nil, nil
	case (f.Cert == "") != (f.Key == ""):
		return nil, errors.New("cert and key belong together: give both, or neither")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cacert: %s has no certificate in PEM form", f.CA)
		}
	}
	if f.Cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return c, nil
}
