package sqlite

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gotenure/tenure/driver"
)

// parameters of a URL, with their values.
var parameters = map[string][]string{
	"create":  {"yes", "no"},
	"network": {"allow", "refuse"},
}

// Open opens the store that a URL names:
//
//	sqlite:///var/lib/app/tenure.db    an absolute path
//	sqlite:tenure.db                   a path relative to the working directory
//
// Parameters: create=no (Options.NoCreate) and network=allow (Options.AllowNetwork). What is special in URLs is written with percent signs in a path: %3F for a
// question mark.
func Open(ctx context.Context, rawURL string) (*Store, error) { return OpenWith(ctx, rawURL, nil) }

// OpenWith is Open with a logger. Nil: silent.
func OpenWith(ctx context.Context, rawURL string, logger *slog.Logger) (*Store, error) {
	path, opts, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	opts.Logger = logger
	return New(ctx, path, opts)
}

// ParseURL returns what a URL as of Open says.
func ParseURL(rawURL string) (path string, opts Options, err error) {
	wrong := func(format string, args ...any) (string, Options, error) {
		return "", Options{}, fmt.Errorf("%w: store URL %q: %s", driver.ErrInvalid, rawURL, fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return wrong("%v: write it as sqlite:///absolute/path.db or sqlite:relative/path.db", err)
	}
	path = u.Path
	if u.Opaque != "" {
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return wrong("%v: write %%25 for a percent sign", err)
		}
	}
	switch {
	case u.Scheme != Name:
		return wrong("scheme %q is not %s", u.Scheme, Name)
	case u.Host != "" || u.User != nil:
		return wrong("%q is taken for the name of a machine: write three slashes before an absolute path, sqlite:///%s, or none before a relative one, sqlite:%s",
			u.Host, strings.TrimPrefix(u.Host+u.Path, "/"), u.Host+u.Path)
	case u.Fragment != "":
		return wrong("it has a fragment, %q: write %%23 for a # in the path", u.Fragment)
	case path == "" || path == "/":
		return wrong("it names no file: write it as sqlite:///absolute/path.db or sqlite:relative/path.db")
	case strings.HasSuffix(path, "/"):
		return wrong("%q is a directory: name a file", path)
	case strings.ContainsRune(path, 0):
		return wrong("the path has a zero byte: remove it")
	}
	if runtime.GOOS == "windows" && len(path) > 2 && path[0] == '/' && path[2] == ':' {
		path = path[1:] // /C:/dir/file
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return wrong("%v: write parameters as name=value, with & between them", err)
	}
	for name, values := range query {
		known, ok := parameters[name]
		if !ok {
			return wrong("parameter %q is unknown: the known ones are create and network", name)
		}
		if len(values) != 1 || !slices.Contains(known, values[0]) {
			return wrong("parameter %s is %s: write %s", name, strings.Join(values, ", "), strings.Join(known, " or "))
		}
	}
	opts.NoCreate = query.Get("create") == "no"
	opts.AllowNetwork = query.Get("network") == "allow"
	return filepath.FromSlash(path), opts, nil
}
