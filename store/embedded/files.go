package embedded

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
)

// checkFiles reads the files of TLS once, before anything is done: etcd would say what is wrong with them only after it has begun to serve.
func (c Config) checkFiles() error {
	for _, pair := range []struct{ cert, key, certField, keyField string }{
		{c.CertFile, c.KeyFile, "CertFile", "KeyFile"}, {c.PeerCertFile, c.PeerKeyFile, "PeerCertFile", "PeerKeyFile"},
	} {
		if pair.cert == "" {
			continue
		}
		if _, err := tls.LoadX509KeyPair(pair.cert, pair.key); err != nil {
			return invalid(pair.certField, pair.cert, "with "+pair.keyField+" "+pair.key+": "+cause(err), pair.keyField)
		}
	}
	for field, file := range map[string]string{"ClientCAFile": c.ClientCAFile, "PeerCAFile": c.PeerCAFile} {
		if file == "" {
			continue
		}
		pem, err := os.ReadFile(file)
		if err != nil {
			return invalid(field, file, cause(err))
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return invalid(field, file, "it has no certificate in PEM form")
		}
	}
	return nil
}

// cause is the error without the operation and the path, when it is one of a file that is missing or must not be read.
func cause(err error) string {
	var path *os.PathError
	if errors.As(err, &path) {
		return "cannot read " + path.Path + ": " + path.Err.Error()
	}
	return err.Error()
}
