package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
)

// An entry is one election in JSON.
type entry struct {
	Election   string     `json:"election"`
	Leader     string     `json:"leader"` // "" when vacant
	Session    string     `json:"session"`
	Token      uint64     `json:"token"`
	AcquiredAt *time.Time `json:"acquired_at"` // null when vacant or not known
	ExpiresAt  *time.Time `json:"expires_at"`
	Value      string     `json:"value"` // see valueString
}

func entryOf(l tenure.Leadership) entry {
	return entry{
		Election: l.Election, Leader: l.Leader, Session: l.Session, Token: l.Token, Value: valueString(l.Value),
		AcquiredAt: timeOrNull(l.AcquiredAt), ExpiresAt: timeOrNull(l.ExpiresAt),
	}
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

const base64Mark = "base64:"

// valueString is the value itself when it is UTF-8, else "base64:" and its standard base64. A value that itself starts with that mark is encoded too, so
// that every value can be told from every other.
func valueString(v []byte) string {
	if utf8.Valid(v) && !strings.HasPrefix(string(v), base64Mark) {
		return string(v)
	}
	return base64Mark + base64.StdEncoding.EncodeToString(v)
}

// printable makes a string safe for a terminal and short.
func printable(s string) string {
	clean := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
	if !clean {
		s = strconv.Quote(s)
	}
	const most = 48
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return s
}

func localTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func printStatus(w io.Writer, output string, list []tenure.Leadership) error {
	if output == "json" {
		entries := make([]entry, 0, len(list))
		for _, l := range list {
			entries = append(entries, entryOf(l))
		}
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(entries)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ELECTION\tLEADER\tTOKEN\tSINCE\tEXPIRES\tVALUE")
	for _, l := range list {
		leader, token := l.Leader, strconv.FormatUint(l.Token, 10)
		if l.Vacant() {
			leader = "(vacant)"
		}
		if l.Token == 0 {
			token = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", printable(l.Election), printable(leader), token, localTime(l.AcquiredAt), localTime(l.ExpiresAt), printable(valueString(l.Value)))
	}
	return tw.Flush()
}

func leadershipOf(r driver.Record) tenure.Leadership {
	return tenure.Leadership{
		Election: r.Election, Leader: r.Leader, Session: r.Session, Token: r.Token, Value: r.Value,
		AcquiredAt: r.AcquiredAt, ExpiresAt: r.ExpiresAt,
	}
}
