package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// Names of Leases are lower-case DNS names of at most 253 bytes. An election whose name is one has the Lease of that name, which is where
// other clients look for it. Any other name is hashed; what looks like the result of that is hashed too, so that no two elections share a Lease.
var (
	dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	hashed  = regexp.MustCompile(`\.t-[0-9a-f]{40}$`)
)

const (
	maxLeaseName = 253
	slugLen      = 40
)

// isPlain reports whether an election has the Lease of its own name.
func isPlain(election string) bool {
	return len(election) <= maxLeaseName && dnsName.MatchString(election) && !hashed.MatchString(election)
}

// LeaseName returns the name of an election's Lease: the election's own where that is fit for one, else a part of it and a hash.
func LeaseName(election string) string {
	if isPlain(election) {
		return election
	}
	sum := sha256.Sum256([]byte(election))
	return slug(election) + ".t-" + hex.EncodeToString(sum[:20])
}

// slug makes of a name what can be read of it in the name of a Lease.
func slug(name string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		if b.Len() == slugLen {
			break
		}
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if s := b.String(); s != "" && !strings.HasSuffix(s, "-") {
			b.WriteByte('-')
		}
	}
	if s := strings.TrimRight(b.String(), "-"); s != "" {
		return s
	}
	return "election"
}
