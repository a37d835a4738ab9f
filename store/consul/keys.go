package consul

import (
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"github.com/gotenure/tenure/driver"
)

// reserved begins the keys that are no elections. Elections may not be called so.
const reserved = "_tenure/"

// A layout knows where things lie. It is what stands before all keys.
type layout string

// key returns the key of an election. It is the name as given but for what a path of a URL does not keep, or Consul does not take: segments that are
// empty, "." or "..", and characters that cannot be printed.
func (l layout) key(election string) string { return string(l) + escape(election) }

// election returns the name of the election that a key is of; ok is false for other keys.
func (l layout) election(key string) (name string, ok bool) {
	text, ok := strings.CutPrefix(key, string(l))
	if !ok || strings.HasPrefix(text, reserved) {
		return "", false
	}
	name, err := url.PathUnescape(text)
	return name, err == nil && escape(name) == text && driver.CheckName("election", name) == nil
}

// members returns the prefix of the keys of a member's sessions.
func (l layout) members(member string) string {
	return string(l) + reserved + "members/" + url.PathEscape(member) + "/"
}

// member returns the key of a session.
func (l layout) member(member, session string) string { return l.members(member) + session }

// below returns a prefix that all keys of elections have whose names start with prefix. Others may have it too.
func (l layout) below(prefix string) string {
	slash := strings.LastIndexByte(prefix, '/')
	if strings.Trim(prefix[slash+1:], ".") == "" { // how the end is written depends on what follows
		prefix = strings.TrimRight(prefix[:max(slash, 0)], "/")
	}
	return l.key(prefix)
}

// escape writes a name so that it is the path of a URL: a slash at an end or beside another one, a segment of one or two dots, % and what
// cannot be printed as %XX.
func escape(name string) string {
	var printable strings.Builder
	for _, r := range name {
		if r == '%' || !unicode.IsPrint(r) {
			printable.WriteString(url.PathEscape(string(r)))
		} else {
			printable.WriteRune(r)
		}
	}
	name = printable.String()
	segments := strings.Split(name, "/")
	if len(segments) == 1 {
		return dots(name)
	}
	var text strings.Builder
	for i, s := range segments {
		if i > 0 {
			if s == "" || segments[i-1] == "" {
				text.WriteString("%2F")
			} else {
				text.WriteByte('/')
			}
		}
		text.WriteString(dots(s))
	}
	return text.String()
}

func dots(segment string) string {
	if segment == "." || segment == ".." {
		return strings.ReplaceAll(segment, ".", "%2E")
	}
	return segment
}

func checkElection(name string) error {
	if err := driver.CheckName("election", name); err != nil {
		return err
	}
	if strings.HasPrefix(name, reserved) {
		return fmt.Errorf("consul: %w: election %q: names that begin with %q are taken: choose another", driver.ErrInvalid, name, reserved)
	}
	return nil
}
