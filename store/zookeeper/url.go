package zookeeper

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/gotenure/tenure/driver"
)

const defaultPort = "2181"

// check returns an error that names what is wrong with a configuration.
func (c Config) check() error {
	fail := func(format string, v ...any) error {
		return fmt.Errorf("zookeeper: %w: %s", driver.ErrInvalid, fmt.Sprintf(format, v...))
	}
	if len(c.Servers) == 0 {
		return fail("there are no servers: give at least one as HOST:PORT")
	}
	for _, server := range c.Servers {
		host, port, err := net.SplitHostPort(server)
		if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || n == 0 || host == "" || strings.ContainsAny(host, "@[]/ ") {
			return fail("server %q: want HOST:PORT", server)
		}
	}
	if (c.User == "") != (c.Password == "") || strings.Contains(c.User, ":") {
		return fail("user or password is missing, or the user has a colon: give both, or neither")
	}
	if c.Chroot != "" {
		for _, part := range strings.Split(c.Chroot, "/")[1:] {
			if part == "" || part == "." || part == ".." || escape(strings.ReplaceAll(part, "%", "")) != strings.ReplaceAll(part, "%", "") {
				return fail("chroot %q: want /NAME/NAME, of names that ZooKeeper allows", c.Chroot)
			}
		}
		if c.Chroot[0] != '/' || c.Chroot == "/zookeeper" || strings.HasPrefix(c.Chroot, "/zookeeper/") {
			return fail("chroot %q: want /NAME/NAME, outside of /zookeeper, which is ZooKeeper's own", c.Chroot)
		}
	}
	return nil
}

// parseURL returns the configuration in a URL. Its errors wrap driver.ErrInvalid and show no secret.
func parseURL(raw string) (Config, error) {
	fail := func(format string, v ...any) (Config, error) {
		return Config{}, fmt.Errorf("zookeeper: %w: store URL: %s", driver.ErrInvalid, fmt.Sprintf(format, v...))
	}
	rest, ok := strings.CutPrefix(raw, "zookeeper://")
	if !ok {
		return fail("want zookeeper://HOST:2181,HOST:2181/CHROOT")
	}
	rest, rawQuery, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(path, "@#") || strings.Contains(rawQuery, "#") {
		return fail("there is an @ or # behind the hosts: percent-encode what is not a letter or a digit in user and password")
	}
	var c Config
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, password, ok := strings.Cut(authority[:at], ":")
		var errUser, errPassword error
		c.User, errUser = url.PathUnescape(user)
		c.Password, errPassword = url.PathUnescape(password)
		if errUser != nil || errPassword != nil {
			return fail("user or password cannot be parsed: percent-encode what is not a letter or a digit")
		}
		if !ok || c.User == "" || c.Password == "" || strings.Contains(c.User, ":") {
			return fail("user or password is missing: give both as zookeeper://USER:PASSWORD@HOST, or neither")
		}
		authority = authority[at+1:]
	}
	for _, host := range strings.Split(authority, ",") {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.Trim(host, "[]"), defaultPort
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || name == "" || strings.ContainsAny(name, "@[]/ ") || strings.Contains(name, ":") && net.ParseIP(name) == nil {
			return fail("host %q: want HOST or HOST:PORT, several separated by commas", host)
		}
		c.Servers = append(c.Servers, net.JoinHostPort(name, port))
	}
	chroot, err := url.PathUnescape(path)
	if err != nil {
		return fail("chroot %q cannot be parsed: percent-encode what is not a letter or a digit", path)
	}
	if chroot = strings.TrimSuffix(chroot, "/"); chroot != "" {
		c.Chroot = "/" + chroot
	}
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return fail("its parameters cannot be parsed: percent-encode their values, and separate them with &")
	}
	var files tlsFiles
	for name, values := range query {
		if len(values) > 1 {
			return fail("parameter %q is given %d times: give it once", name, len(values))
		}
		value := values[0]
		switch name {
		case "acl":
			if value != "open" && value != "creator" || value == "creator" && c.User == "" {
				return fail("parameter acl=%q: want open, or creator, which needs USER:PASSWORD before the hosts", value)
			}
			c.OpenACL = value == "open"
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
			return fail("unknown parameter %q: known are acl, cacert, cert, key, servername, tls", name)
		}
	}
	if c.TLS, err = files.config(); err != nil {
		return fail("%v", err)
	}
	return c, c.check()
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
		return nil, fmt.Errorf("tls=false beside cacert, cert, key or servername: leave one out")
	case !f.on && !named:
		return nil, nil
	case (f.cert == "") != (f.key == ""):
		return nil, fmt.Errorf("cert and key belong together: give both, or neither")
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
