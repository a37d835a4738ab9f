package postgres

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gotenure/tenure/driver"
)

// Parameters that are not libpq's but this package's.
var ownParameters = []string{"schema", "create", "bound", "poll"}

// Parameters that go to pgx as they are: those of connections, of pgx and its pool, and the server's settings that make sense for a client. Other
// settings of the server go into options=-c name=value.
var otherParameters = []string{
	"application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "database", "default_query_exec_mode", "description_cache_capacity",
	"host", "idle_in_transaction_session_timeout", "keepalives", "krbspn", "krbsrvname", "lock_timeout", "max_protocol_version", "min_protocol_version", "options", "passfile", "password",
	"pool_health_check_period", "pool_max_conn_idle_time", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter", "pool_max_conns",
	"pool_min_conns", "pool_min_idle_conns", "port", "require_auth", "search_path", "service", "servicefile", "sslcert", "sslinline", "sslkey", "sslmode", "sslnegotiation", "sslpassword",
	"sslrootcert", "sslsni", "statement_cache_capacity", "statement_timeout", "target_session_attrs", "timezone", "TimeZone", "user",
}

// parseURL splits a URL into a pool's configuration, this package's options, and the secrets in it. Its errors wrap driver.ErrInvalid and show no secret.
func parseURL(raw string) (*pgxpool.Config, Options, []string, error) {
	fail := func(format string, v ...any) (*pgxpool.Config, Options, []string, error) {
		return nil, Options{}, nil, fmt.Errorf("postgres: %w: store URL: %s", driver.ErrInvalid, fmt.Sprintf(format, v...))
	}
	scheme, _, ok := strings.Cut(raw, "://")
	if !ok || scheme != "postgres" && scheme != "postgresql" {
		return fail("want postgres://user@host:port/database?parameter=value")
	}
	u, err := url.Parse(raw)
	if err != nil {
		// What net/url says may show a part of the password.
		return fail("it cannot be parsed: percent-encode what is not a letter or a digit in user and password, and check the port")
	}
	// A password that is not encoded may end up anywhere, and must not be shown from there.
	switch {
	case u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return fail("it has a #: percent-encode what is not a letter or a digit in user and password")
	case strings.Contains(u.EscapedPath(), "@"):
		return fail("it has an @ behind the host: percent-encode what is not a letter or a digit in user and password, and write %%40 for an @ in the database's name")
	case u.Host == "" && u.Path == "" && u.RawQuery == "":
		return fail("it names no server: write postgres://user@host:port/database")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("its parameters cannot be parsed: percent-encode their values, and separate them with &")
	}
	var secrets []string
	for _, s := range []string{query.Get("password"), query.Get("sslpassword")} {
		secrets = append(secrets, s, url.QueryEscape(s))
	}
	if password, ok := u.User.Password(); ok {
		_, encoded, _ := strings.Cut(u.User.String(), ":")
		secrets = append(secrets, password, encoded)
	}
	var opts Options
	for name, values := range query {
		switch {
		case strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz_") != "":
			return fail("it has a parameter whose name has more than letters and _: percent-encode what is not a letter or a digit in user and password, and the values of parameters")
		case len(values) > 1:
			return fail("parameter %q is given %d times: give it once", name, len(values))
		case slices.Contains(ownParameters, name):
			if err := opts.set(name, values[0]); err != nil {
				return fail("parameter %s=%q: %v", name, values[0], err)
			}
			query.Del(name)
		case !slices.Contains(otherParameters, name):
			return fail("unknown parameter %q: known are %s, and of connections %s", name, strings.Join(ownParameters, ", "), strings.Join(otherParameters, ", "))
		}
	}
	u.RawQuery = query.Encode()
	if u.Path == "" {
		u.Path = "/" // else the slashes before it are left out when there is no host either
	}
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		var why string
		if inner := redact(err, secrets).Error(); !strings.Contains(inner, "xxxxx@") && !strings.Contains(inner, u.Host) {
			why = ": " + inner
		} else if _, reason, ok := strings.Cut(inner, "`: "); ok {
			why = ": " + reason
		}
		return fail("a parameter of the connection is wrong%s", why)
	}
	secrets = append(secrets, config.ConnConfig.Password)
	if !query.Has("pool_max_conns") {
		config.MaxConns = generalConns
	}
	if query.Get("application_name") == "" && config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "tenure"
	}
	return config, opts, secrets, nil
}

// set sets an option from a URL's parameter.
func (o *Options) set(name, value string) (err error) {
	switch name {
	case "schema":
		o.Schema = value
		if value == "" {
			err = fmt.Errorf("name a schema, or leave the parameter out for %q", DefaultSchema)
		}
	case "create":
		var create bool
		create, err = strconv.ParseBool(value)
		o.NoCreate = !create
	case "bound":
		o.Bound, err = strconv.ParseBool(value)
	case "poll":
		o.Poll, err = time.ParseDuration(value)
	}
	if err != nil && name != "schema" {
		what := "want true or false"
		if name == "poll" {
			what = "want a duration such as 1s"
		}
		err = fmt.Errorf("%s", what)
	}
	return err
}

// check validates the options.
func (o *Options) check() error {
	if o.Schema == "" {
		o.Schema = DefaultSchema
	}
	if err := driver.CheckName("schema", o.Schema); err != nil {
		return err
	}
	if len(o.Schema) > 63 || strings.HasPrefix(o.Schema, "pg_") {
		return fmt.Errorf("%w: schema %q: PostgreSQL takes names of at most 63 bytes that do not start with pg_: choose another", driver.ErrInvalid, o.Schema)
	}
	if o.Poll != 0 && (o.Poll < 10*time.Millisecond || o.Poll > time.Minute) {
		return fmt.Errorf("%w: poll %v: choose from 10ms to 1m, or leave it out for 1s", driver.ErrInvalid, o.Poll)
	}
	return nil
}
