package zookeeper

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// reserved is the node below which this package keeps what is not part of Curator's layout.
const reserved = "_tenure"

// A layout knows where things lie. It is the chroot: empty, or a path that begins with a slash and does not end with one.
type layout string

// root returns the path of the chroot itself.
func (l layout) root() string {
	if l == "" {
		return "/"
	}
	return string(l)
}

// election returns the path of an election's node.
func (l layout) election(name string) string {
	var path strings.Builder
	path.WriteString(string(l))
	for i, part := range strings.Split(name, "/") {
		path.WriteByte('/')
		path.WriteString(escapePart(part, i == 0))
	}
	return path.String()
}

// name is the inverse of election; ok is false for paths that election does not return.
func (l layout) name(path string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(path, string(l)+"/")
	if !ok {
		return "", false
	}
	parts := strings.Split(rest, "/")
	for i, part := range parts {
		if part == "%" {
			parts[i] = ""
			continue
		}
		plain, err := url.PathUnescape(part)
		if err != nil {
			return "", false
		}
		parts[i] = plain
	}
	name = strings.Join(parts, "/")
	return name, l.election(name) == path
}

// members returns the path of the node that has the sessions of a member.
func (l layout) members(member string) string {
	return string(l) + "/" + reserved + "/members/" + escapePart(strings.ReplaceAll(escape(member), "/", "%2F"), false, true)
}

func (l layout) session(member, session string) string { return l.members(member) + "/" + session }

// escapePart makes a part of a name the name of a node. done says that the part's characters are escaped already.
func escapePart(part string, first bool, done ...bool) string {
	if len(done) == 0 {
		part = escape(part)
	}
	switch {
	case part == "":
		return "%" // which stands for nothing else, as a percent sign is always followed by digits
	case part == ".", part == "..":
		return strings.ReplaceAll(part, ".", "%2E")
	case strings.HasPrefix(part, candidatePrefix), first && part == reserved:
		return "%5F" + part[1:]
	case first && part == "zookeeper":
		return "%7A" + part[1:]
	}
	return part
}

// escape percent-encodes the bytes of characters that a node's name may not have.
func escape(s string) string {
	var out strings.Builder
	for _, r := range s {
		if r != '%' && r >= 0x20 && (r < 0x7f || r > 0x9f) && (r < 0xd800 || r > 0xf8ff) && r < 0xfff0 {
			out.WriteRune(r)
			continue
		}
		var bytes [utf8.UTFMax]byte
		for _, b := range bytes[:utf8.EncodeRune(bytes[:], r)] {
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}

// candidatePrefix and latch are what Curator puts around a candidate's unique part.
const (
	candidatePrefix = "_c_"
	latch           = "-latch-"
)

// number returns what candidates are ordered by, as strings; ok is false for nodes that are none.
func number(node string) (number string, ok bool) {
	at := strings.LastIndex(node, latch)
	if at < 0 || !strings.HasPrefix(node, candidatePrefix) {
		return "", false
	}
	number = node[at+len(latch):]
	return number, number != "" && strings.Trim(number, "-0123456789") == ""
}

// sessionID returns the ID of a session as ZooKeeper's own tools show it.
func sessionID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }
