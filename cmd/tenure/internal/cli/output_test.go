package cli

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestValueString(t *testing.T) {
	for value, want := range map[string]string{
		"":           "",
		"http://a":   "http://a",
		"a\xffb":     "base64:Yf9i",
		"base64:Yf9": "base64:YmFzZTY0OllmOQ==",
	} {
		if got := valueString([]byte(value)); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[2Jb"); strings.ContainsRune(got, '\x1b') {
		t.Errorf("%q", got)
	}
	if got := []rune(printable(strings.Repeat("ä", 300))); len(got) != 49 {
		t.Errorf("%d runes", len(got))
	}
}

// Whatever is wrong with a URL, its password is not shown.
func TestSecretsStaySecret(t *testing.T) {
	for _, raw := range []string{
		"postgres://me:s3cret@host/db",
		"postgres://me:s3cret@host:port/db",
		"postgres://me:s3cret@ho st/db",
		"postgres://me:s3cret@host/%zz",
		"postgres://host/db?password=s3cret",
		"postgres://host/db?sslpassword=s3cret&password=s3cret",
		"postgres://me:s3cret@host/db?password=%zzs3cret",
		"host=h password=s3cret",
		"me:s3cret@host",
		"postgres://me:12?s3cret@host/db",
		"postgres://me:12/s3cret@host/db",
		"postgres://me:12#s3cret@host/db",
		"postgres://me:12?schema=s3cret@host/db",
		"postgres://me:s3cret@host/db?passwrd=s3cret",
		"postgres//me:s3cret@host/db",
		"user=me password=s3cret dbname=a:b",
	} {
		if got := redact(raw); strings.Contains(got, "s3cret") {
			t.Errorf("redact(%q) = %q", raw, got)
		}
		cause := errors.New("cause")
		err := scrub(fmt.Errorf("cannot use %s with s3cret: %w", raw, cause), raw)
		if strings.Contains(raw, "://") && strings.Contains(err.Error(), "s3cret") || !errors.Is(err, cause) {
			t.Errorf("scrub for %q: %v", raw, err)
		}
	}
}

// A short password is not looked for within words, of which little would be left.
func TestShortSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"etcd: denied by d":             "etcd: denied by xxxxx",
		"d=d, d":                        "xxxxx=xxxxx, xxxxx",
		"etcd://u:d@h: user d: dd addd": "etcd://u:xxxxx@h: user xxxxx: dd addd",
	} {
		cause := errors.New(text)
		if got := scrub(cause, "etcd://u:d@h"); got.Error() != want || !errors.Is(got, cause) {
			t.Errorf("scrub(%q) = %q, want %q", text, got, want)
		}
	}
}

// An error that says itself what to check gets no other remedy, and what a store cannot do is not taken for a store that cannot be reached.
func TestRemedies(t *testing.T) {
	at := &location{kind: &storeKind{remedy: "check the server"}, url: "etcd://h"}
	for text, want := range map[string]string{"refused": ": refused: check the server", "refused: check the certificate": ": refused: check the certificate"} {
		if got := at.failed("open", errors.New(text)); !strings.HasSuffix(got.Error(), want) {
			t.Errorf("%q, want %q at its end", got, want)
		}
	}
	err := at.failed("write", fmt.Errorf("the leader cannot be asked: %w", errors.ErrUnsupported))
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != codeConfig || strings.Contains(err.Error(), "check") {
		t.Errorf("%#v: want exit code %d and no remedy", err, codeConfig)
	}
}

// The commands refuse a URL of which they cannot tell the password, and show none of it.
func TestMisreadURLs(t *testing.T) {
	for raw, refused := range map[string]bool{
		"postgres://me:12?s3cret@host/db":                 true,
		"postgres://me:12/s3cret@host/db":                 true,
		"postgres://me:12#s3cret@host/db":                 true,
		"postgres//me:s3cret@host/db":                     true,
		"user=me password=s3cret dbname=a:b":              true,
		"postgres://me:s3cr%40et@host/db":                 false,
		"postgres://me:s3@cret@host/db":                   false,
		"postgres://host/db?user=me@tenant&password=p@ss": false,
		"sqlite:/var/lib/me@work/tenure.db":               false,
	} {
		_, err := (&options{store: raw}).locate()
		if (err != nil) != refused {
			t.Errorf("%s: %v", raw, err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "--store")) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, raw := range []string{"sqlite:/var/lib/me@work/tenure.db", "tenure.db", "postgres://me@host/db?schema=a&sslmode=disable"} {
		if got := redact(raw); got != raw {
			t.Errorf("%s is shown as %s", raw, got)
		}
	}
}

// A driver that has tried several addresses says so on several lines.
func TestOneLine(t *testing.T) {
	cause := errors.New("failed:\n\tone: refused\n\ttwo: refused\n\tone: refused")
	if got, want := oneLine(cause), "failed: one: refused; two: refused"; got.Error() != want || !errors.Is(got, cause) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The help and the page name every kind of store.
func TestStoresAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	var help strings.Builder
	root := newRoot()
	root.SetOut(&help)
	root.SetArgs([]string{"status", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, example := range knownStores() {
		if !strings.Contains(help.String(), "  "+example+"\n") {
			t.Errorf("tenure status --help does not name %s:\n%s", example, &help)
		}
		if scheme, _, _ := strings.Cut(example, ":"); !strings.Contains(string(page), "\n| `"+scheme+":") {
			t.Errorf("docs/command.md does not name %s", example)
		}
	}
}

// The page and the help topic name the same codes.
func TestExitCodesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/command.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`(?m)^ +([0-9]+)  `).FindAllStringSubmatch(exitCodesText, -1) {
		if !strings.Contains(string(page), "\n| "+match[1]+" | ") {
			t.Errorf("docs/command.md does not name exit code %s", match[1])
		}
	}
}
