package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
)

const defaultPort = "2379"

// parseURL returns a client's configuration and the options in a URL. Its errors wrap driver.ErrInvalid and show no secret.
func parseURL(raw string) (clientv3.Config, Options, error) {
	fail := func(format string, v ...any) (clientv3.Config, Options, error) {
		return clientv3.Config{}, Options{}, fmt.Errorf("etcd: %w: store URL: %s", driver.ErrInvalid, fmt.Sprintf(format, v...))
	}
	rest, ok := strings.CutPrefix(raw, "etcd://")
	if !ok {
		return fail("want etcd://HOST:2379,HOST:2379?parameter=value")
	}
	rest, rawQuery, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if path != "" || strings.Contains(rawQuery, "#") {
		return fail("there is something after the hosts: put what shall stand before all keys into the parameter prefix, and percent-encode what is not a letter or a digit in user and password")
	}
	config := clientv3.Config{DialKeepAliveTime: probeAfter, DialKeepAliveTimeout: probeTimeout, Logger: quiet()}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, password, ok := strings.Cut(authority[:at], ":")
		var errUser, errPassword error
		config.Username, errUser = url.PathUnescape(user)
		config.Password, errPassword = url.PathUnescape(password)
		if errUser != nil || errPassword != nil {
			return fail("user or password cannot be parsed: percent-encode what is not a letter or a digit")
		}
		if !ok || config.Username == "" || config.Password == "" {
			return fail("user or password is missing: give both as etcd://USER:PASSWORD@HOST, or neither")
		}
		authority = authority[at+1:]
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return fail("its parameters cannot be parsed: percent-encode their values, and separate them with &")
	}
	var opts Options
	var files tlsFiles
	for name, values := range query {
		if len(values) > 1 {
			return fail("parameter %q is given %d times: give it once", name, len(values))
		}
		value := values[0]
		switch name {
		case "prefix":
			opts.Prefix = value
		case "tls":
			if files.on, err = strconv.ParseBool(value); err != nil {
				return fail("parameter tls=%q: want true or false", value)
			}
			files.off = !files.on
		case "cacert":
			files.ca = value
		case "cert":
			files.cert = value
		case "key":
			files.key = value
		default:
			return fail("unknown parameter %q: known are cacert, cert, key, prefix, tls", name)
		}
	}
	scheme := "http"
	if config.TLS, err = files.config(); err != nil {
		return fail("%v", err)
	}
	if config.TLS != nil {
		scheme = "https"
	}
	for _, host := range strings.Split(authority, ",") {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.Trim(host, "[]"), defaultPort
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || name == "" || strings.ContainsAny(name, "@[]/ ") || strings.Contains(name, ":") && net.ParseIP(name) == nil {
			return fail("host %q: want HOST or HOST:PORT, several separated by commas", host)
		}
		config.Endpoints = append(config.Endpoints, scheme+"://"+net.JoinHostPort(name, port))
	}
	return config, opts, nil
}

// tlsFiles are what a URL says about TLS.
type tlsFiles struct {
	on, off       bool
	ca, cert, key string
}

// config returns nil when the connection is not to be encrypted.
func (f tlsFiles) config() (*tls.Config, error) {
	named := f.ca != "" || f.cert != "" || f.key != ""
	switch {
	case f.off && named:
		return nil, fmt.Errorf("tls=false beside cacert, cert or key: leave one out")
	case !f.on && !named:
		return nil, nil
	case (f.cert == "") != (f.key == ""):
		return nil, fmt.Errorf("cert and key belong together: give both, or neither")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("cacert: %s has no certificate in PEM form", f.ca)
		}
	}
	if f.cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(f.cert, f.key)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return c, nil
}
