package consul

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/gotenure/tenure/driver"
)

const (
	defaultPort    = "8500"
	defaultTLSPort = "8501"
)

// parseURL returns a client's configuration, its transport and the options in a URL. Its errors wrap driver.ErrInvalid and show no secret.
func parseURL(raw string) (*api.Config, *http.Transport, Options, error) {
	fail := func(format string, v ...any) (*api.Config, *http.Transport, Options, error) {
		return nil, nil, Options{}, fmt.Errorf("consul: %w: store URL: %s", driver.ErrInvalid, fmt.Sprintf(format, v...))
	}
	const form = "consul://:TOKEN@HOST:8500?parameter=value"
	if !strings.HasPrefix(raw, "consul://") {
		return fail("want %s", form)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return fail("it cannot be parsed: want %s, and percent-encode what is not a letter or a digit in the token", form)
	}
	switch {
	case u.Path != "" && u.Path != "/" || u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return fail("there is something after the host: put what shall stand before all keys into the parameter prefix, and percent-encode what is not a letter or a digit in the token")
	case u.User.Username() != "":
		return fail("it has a user: Consul knows tokens only; write consul://:TOKEN@HOST, with a colon before the token")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("its parameters cannot be parsed: percent-encode their values, and separate them with &")
	}
	config, err := fromEnvironment()
	if err != nil {
		return fail("%v", err)
	}
	var opts Options
	var files tlsFiles
	var tokenFile string
	for name, values := range query {
		if len(values) > 1 {
			return fail("parameter %q is given %d times: give it once", name, len(values))
		}
		value := values[0]
		switch name {
		case "prefix":
			opts.Prefix = value
		case "lock-delay", "min-ttl":
			d, err := time.ParseDuration(value)
			if err != nil {
				return fail("parameter %s=%q: want a duration such as 15s", name, value)
			}
			if name == "lock-delay" {
				opts.LockDelay = d
			} else {
				opts.MinTTL = d
			}
		case "token-file":
			tokenFile = value
		case "datacenter":
			config.Datacenter = value
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
		case "servername":
			files.server = value
		default:
			return fail("unknown parameter %q: known are cacert, cert, datacenter, key, lock-delay, min-ttl, prefix, servername, tls, token-file", name)
		}
	}
	if err := opts.complete(); err != nil {
		return nil, nil, Options{}, err
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 2}}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 16,
	}
	if transport.TLSClientConfig, err = files.config(); err != nil {
		return fail("%v", err)
	}
	switch {
	case u.Host == "" && config.Scheme == "https" && transport.TLSClientConfig == nil && !files.off:
		if transport.TLSClientConfig, err = api.SetupTLSConfig(&config.TLSConfig); err != nil {
			return fail("TLS as the environment says: %v", err)
		}
	case u.Host != "":
		config.Scheme = "http"
		if transport.TLSClientConfig != nil {
			config.Scheme = "https"
		}
		port := u.Port()
		if port == "" {
			if port = defaultPort; config.Scheme == "https" {
				port = defaultTLSPort
			}
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || u.Hostname() == "" {
			return fail("host %q: want HOST or HOST:PORT", u.Host)
		}
		config.Address = net.JoinHostPort(u.Hostname(), port)
	case transport.TLSClientConfig != nil:
		config.Scheme = "https"
	}
	token, given := u.User.Password()
	if given && tokenFile != "" {
		return fail("it has a token and a token-file: leave one out")
	}
	switch {
	case given:
		config.Token, config.TokenFile = token, ""
	case tokenFile != "":
		config.Token, config.TokenFile = "", tokenFile
	}
	client := &http.Client{Transport: transport}
	if config.TokenFile != "" {
		if _, err := readToken(config.TokenFile); err != nil {
			return fail("token-file: %v", err)
		}
		client.Transport = &fileToken{transport, config.TokenFile}
		config.Token, config.TokenFile = "", ""
	}
	config.HttpClient, config.Transport = client, transport
	return config, transport, opts, nil
}

// fromEnvironment returns the configuration that the environment asks for. Consul's own client ignores values that it cannot read.
func fromEnvironment() (*api.Config, error) {
	if os.Getenv(api.HTTPSSLEnvName) != "" {
		if _, err := strconv.ParseBool(os.Getenv(api.HTTPSSLEnvName)); err != nil {
			return nil, fmt.Errorf("%s=%q: want true or false", api.HTTPSSLEnvName, os.Getenv(api.HTTPSSLEnvName))
		}
	}
	return api.DefaultConfig(), nil
}

// fileToken puts the token that a file has at that moment into each request.
type fileToken struct {
	next http.RoundTripper
	file string
}

func (f *fileToken) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := readToken(f.file)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("X-Consul-Token", token)
	return f.next.RoundTrip(r)
}

func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", errors.New(file + " has not exactly one line with a token")
	}
	return token, nil
}

// tlsFiles are what a URL says about TLS.
type tlsFiles struct {
	on, off               bool
	ca, cert, key, server string
}

// config returns nil when the connection is not to be encrypted.
func (f tlsFiles) config() (*tls.Config, error) {
	named := f.ca != "" || f.cert != "" || f.key != "" || f.server != ""
	switch {
	case f.off && named:
		return nil, errors.New("tls=false beside cacert, cert, key or servername: leave one out")
	case !f.on && !named:
		return nil, nil
	case (f.cert == "") != (f.key == ""):
		return nil, errors.New("cert and key belong together: give both, or neither")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.server}
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
