package etcd

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/tlsfiles"
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
	files := tlsfiles.Files{Known: "cacert, cert or key"}
	for name, values := range query {
		if len(values) > 1 {
			return fail("parameter %q is given %d times: give it once", name, len(values))
		}
		value := values[0]
		switch name {
		case "prefix":
			opts.Prefix = value
		case "tls":
			if files.On, err = strconv.ParseBool(value); err != nil {
				return fail("parameter tls=%q: want true or false", value)
			}
			files.Off = !files.On
		case "cacert":
			files.CA = value
		case "cert":
			files.Cert = value
		case "key":
			files.Key = value
		default:
			return fail("unknown parameter %q: known are cacert, cert, key, prefix, tls", name)
		}
	}
	scheme := "http"
	if config.TLS, err = files.Config(); err != nil {
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
