package cli

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/fence"
)

const (
	storeVariable = "TENURE_STORE"

	// requestLimit bounds each request that somebody waits for at a terminal.
	requestLimit = 10 * time.Second
)

// A storeKind is what the command knows about a kind of store. Each is entered by a file of its own.
type storeKind struct {
	example string // a URL
	remedy  string // when it cannot be reached
	open    func(ctx context.Context, url string) (driver.Store, error)
	file    func(url string) (string, error)            // what open would make if it is missing; "": nothing. nil: the store is no file
	create  func(ctx context.Context, url string) error // makes the tables of elections and of the guard
	schema  func(url string) (string, error)            // the statements that create executes

	// database opens the store's database for its guard; nil: the store has none.
	database func(ctx context.Context, url string) (*sql.DB, *fence.Guard, error)
}

var storeKinds = map[string]*storeKind{}

// A location is where the store is, and who said so.
type location struct {
	kind   *storeKind
	scheme string
	url    string // may hold a password
	source string
	file   string // the default store's; empty: the caller has named the store
}

// prepare makes the directory of the default store.
func (l *location) prepare() error {
	if l.file == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.file), 0o700); err != nil {
		return fail(codeUnavailable, "make the directory of the default store: %w: set --store or %s", err, storeVariable)
	}
	return nil
}

// String is the URL without password.
func (l *location) String() string { return redact(l.url) }

// locate finds out which store is meant. It touches nothing.
func (o *options) locate() (*location, error) {
	l := &location{url: o.store, source: "--store"}
	if l.url == "" {
		l.url, l.source = os.Getenv(storeVariable), storeVariable
	}
	if l.url == "" {
		file, err := defaultFile()
		if err != nil {
			return nil, usage("there is no default store: %w: set --store or %s", err, storeVariable)
		}
		l.file, l.source = file, "the default store"
		l.url = "sqlite:" + (&url.URL{Path: file}).EscapedPath()
	}
	scheme, _, ok := strings.Cut(l.url, ":")
	if !ok || !isScheme(scheme) {
		return nil, usage("%s is %q: it has no scheme: use %s", l.source, redact(l.url), strings.Join(knownStores(), " or "))
	}
	l.scheme, l.kind = scheme, storeKinds[scheme]
	if l.kind == nil {
		return nil, usage("%s is %q: there is no store of scheme %q: use %s", l.source, redact(l.url), scheme, strings.Join(knownStores(), " or "))
	}
	if misread(l.url) {
		return nil, usage("%s is %q: it has an @ behind the host: percent-encode what is not a letter or a digit in user, password and database", l.source, redact(l.url))
	}
	return l, nil
}

// knownStores returns a URL of each kind of store.
func knownStores() []string {
	var examples []string
	for _, scheme := range slices.Sorted(maps.Keys(storeKinds)) {
		if example := storeKinds[scheme].example; !slices.Contains(examples, example) {
			examples = append(examples, example)
		}
	}
	return examples
}

// open opens the store that is meant, and makes it when it is a file that is missing.
func (o *options) open(ctx context.Context) (driver.Store, *location, error) {
	l, err := o.locate()
	if err != nil {
		return nil, nil, err
	}
	store, err := l.open(ctx)
	return store, l, err
}

func (l *location) open(ctx context.Context) (driver.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	if err := l.prepare(); err != nil {
		return nil, err
	}
	store, err := l.kind.open(ctx, l.url)
	if err != nil {
		return nil, l.failed("open", err)
	}
	return store, nil
}

// look opens the store that is meant, for a command that only looks: a missing file is an empty store, and is not made.
func (o *options) look(ctx context.Context) (driver.Store, *location, error) {
	l, err := o.locate()
	if err != nil {
		return nil, nil, err
	}
	if l.kind.file != nil {
		file, err := l.kind.file(l.url)
		if err != nil {
			return nil, nil, l.failed("open", err)
		}
		if file != "" && l.missing(file) {
			return &absent{file: file, open: l.open}, l, nil
		}
	}
	store, err := l.open(ctx)
	return store, l, err
}

// failed says which store an error is about and what to do, and keeps passwords out of it. An invalid URL is the caller's mistake.
func (l *location) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s store %s: %w", doing, l, oneLine(scrub(err, l.url)))
	classified := storeFailed(err)
	var exit *exitError
	if errors.As(classified, &exit) && exit.code == codeUnavailable && l.kind.remedy != "" && !strings.Contains(exit.err.Error(), ": check ") {
		exit.err = fmt.Errorf("%w: %s", exit.err, l.kind.remedy)
	}
	return classified
}

// oneLine joins the lines of an error that says what came of each of several attempts, and says once what came of all of them.
func oneLine(err error) error {
	head, rest, ok := strings.Cut(err.Error(), "\n\t")
	if !ok {
		return err
	}
	lines := strings.Split(rest, "\n\t")
	slices.Sort(lines)
	return &scrubbed{head + " " + strings.Join(slices.Compact(lines), "; "), err}
}

// redact returns a store's URL without password. When it is not certain what is one, little of the URL is left.
func redact(raw string) string {
	scheme, _, ok := strings.Cut(raw, ":")
	if !ok || !isScheme(scheme) {
		if strings.ContainsAny(raw, "@=: ") {
			return "xxxxx" // a connection string of another form
		}
		return raw
	}
	u, err := url.Parse(raw)
	if err != nil || misplaced(u) {
		return scheme + ":xxxxx"
	}
	if u.Opaque != "" && strings.Contains(u.Opaque, "@") {
		return scheme + ":xxxxx" // the slashes were forgotten: what looks like the scheme is the user's name
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		u.RawQuery = "xxxxx"
		return u.Redacted()
	}
	changed := false
	for key, values := range query {
		if len(values) > 0 && values[0] != "" && (secret(key) || !slices.Contains(harmless, key)) {
			query.Set(key, "xxxxx")
			changed = true
		}
	}
	if changed {
		u.RawQuery = query.Encode()
	}
	return u.Redacted()
}

// harmless are the parameters whose values are shown. Others may be a password under a name that is spelled wrong.
var harmless = []string{
	"acl", "application_name", "bound", "cacert", "cert", "channel_binding", "connect_timeout", "context", "create", "database", "datacenter", "dbname",
	"default_query_exec_mode", "host", "key", "kubeconfig", "lock-delay", "min-ttl", "network", "pod", "pod-label", "poll", "pool_max_conns", "port", "prefix", "schema",
	"search_path", "servername", "service", "sslcert", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs", "tls", "token-file", "user",
}

func isScheme(s string) bool {
	return s != "" && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// misplaced reports whether a URL has an @ behind its host: most likely the password before it has a /, ? or # that is not percent-encoded, so that parts of the password are
// taken for host, path or parameters.
func misplaced(u *url.URL) bool {
	if u.Host == "" {
		return false // the path of a file
	}
	return strings.Contains(u.EscapedPath(), "@") || strings.Contains(u.EscapedFragment(), "@") || strings.Contains(u.RawQuery, "@")
}

// misread reports whether a URL is misplaced beyond doubt: parameters may have an @.
func misread(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil || !misplaced(u) {
		return false
	}
	u.RawQuery = ""
	return misplaced(u) || strings.Contains(raw, "?") && u.User == nil && !namesUser(raw)
}

func namesUser(raw string) bool {
	_, query, _ := strings.Cut(raw, "?")
	values, err := url.ParseQuery(query)
	return err == nil && (values.Has("user") || values.Has("password"))
}

func secret(key string) bool {
	key = strings.ToLower(key)
	return strings.Contains(key, "password") || strings.Contains(key, "secret") || strings.Contains(key, "passfile")
}

// scrub removes the passwords of a URL from an error's text.
func scrub(err error, raw string) error {
	text := err.Error()
	clean := text
	for _, word := range secretsIn(raw) {
		clean = replaceSecret(clean, word)
	}
	if u, err := url.Parse(raw); err != nil || u.Host != "" || clean != text {
		clean = strings.ReplaceAll(clean, raw, redact(raw))
	}
	if clean == text {
		return err
	}
	return &scrubbed{clean, err}
}

// replaceSecret replaces a password. A short one is left where it is a part of a word, for there it tells nothing, and the error would say nothing.
func replaceSecret(text, word string) string {
	const short, mask = 4, "xxxxx"
	if len(word) > short {
		return strings.ReplaceAll(text, word, mask)
	}
	var clean strings.Builder
	for rest := text; ; {
		i := strings.Index(rest, word)
		if i < 0 {
			return clean.String() + rest
		}
		before, _ := utf8.DecodeLastRuneInString(rest[:i])
		if i == 0 {
			before, _ = utf8.DecodeLastRuneInString(clean.String())
		}
		after, _ := utf8.DecodeRuneInString(rest[i+len(word):])
		clean.WriteString(rest[:i])
		if unicode.IsLetter(before) || unicode.IsLetter(after) {
			clean.WriteString(word)
		} else {
			clean.WriteString(mask)
		}
		rest = rest[i+len(word):]
	}
}

func secretsIn(raw string) []string {
	var words []string
	u, err := url.Parse(raw)
	if err != nil {
		// What stands between the first colon after the slashes and the last @ may be one.
		_, rest, _ := strings.Cut(raw, "://")
		if at := strings.LastIndexByte(rest, '@'); at > 0 {
			if _, word, ok := strings.Cut(rest[:at], ":"); ok && word != "" {
				words = append(words, word)
			}
		}
		return words
	}
	if misplaced(u) {
		_, rest, _ := strings.Cut(raw, "://")
		_, word, _ := strings.Cut(rest[:max(0, strings.LastIndexByte(rest, '@'))], ":")
		for _, part := range strings.FieldsFunc(word, func(r rune) bool { return strings.ContainsRune("/?#&=", r) }) {
			if !slices.Contains(harmless, part) && len(part) > 2 {
				words = append(words, part)
			}
		}
	}
	if password, ok := u.User.Password(); ok && password != "" {
		words = append(words, password, url.QueryEscape(password), url.PathEscape(password))
		if _, written, ok := strings.Cut(u.User.String(), ":"); ok {
			words = append(words, written)
		}
	}
	for key, values := range u.Query() {
		for _, v := range values {
			if v != "" && (secret(key) || !slices.Contains(harmless, key) && len(v) > 3) {
				words = append(words, v, url.QueryEscape(v))
			}
		}
	}
	return words
}

type scrubbed struct {
	text string
	err  error
}

func (e *scrubbed) Error() string        { return e.text }
func (e *scrubbed) Is(target error) bool { return errors.Is(e.err, target) }

// defaultFile is the SQLite file in the user's state directory.
func defaultFile() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tenure", "tenure.db"), nil
	}
	if runtime.GOOS == "windows" {
		dir, err := os.UserCacheDir() // %LocalAppData%
		return filepath.Join(dir, "tenure", "tenure.db"), err
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state", "tenure", "tenure.db"), err
}

// warnings is the logger of a store, which has little to say.
func warnings() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// closeStore closes a store; what it could say by then is of no use to anybody.
func closeStore(s driver.Store) { _ = s.Close() }
