package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gotenure/tenure/driver"
)

var infoCases = []Case{
	{
		Name: "Info",
		Why:  "people choose a store by it, and the suite tests what it claims",
		run: func(e *env) {
			i := e.info
			if i.Name == "" || i.Token == "" || i.Clock == "" {
				e.Errorf("Info lacks a name, what backs the token, or whose clock decides expiry: %+v", i)
			}
			if i.MinTTL <= 0 || i.MaxTTL < i.MinTTL {
				e.Errorf("Info's bounds of a TTL are %v and %v", i.MinTTL, i.MaxTTL)
			}
			if again := e.store.Info(); again.Name != i.Name || again.MinTTL != i.MinTTL || again.MaxTTL != i.MaxTTL ||
				again.Push != i.Push || again.Queue != i.Queue || again.SharedSessions != i.SharedSessions {
				e.Errorf("Info was %+v and is %+v", i, again)
			}
			if s := e.open(e.store, "m"); i.Push && s.Changed() == nil {
				e.Error("Info claims push, and Changed is nil")
			}
		},
	},
}

var recordCases = []Case{
	{
		Name: "UnknownElectionIsVacant",
		Why:  "an election exists from the first time that somebody asks for it",
		run: func(e *env) {
			if r := e.vacant(e.election("never")); r.Token != 0 || len(r.Value) != 0 {
				e.Errorf("never held, yet %s", show(r))
			}
		},
	},
	{
		Name: "AcquireTakesVacant",
		Why:  "this is what a store is for; every handle must see it at once",
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.handle(), "member of it")
			r := e.acquire(s, election, "hello")
			if r.Leader != "member of it" {
				e.Errorf("leader is %q", r.Leader)
			}
			if got := e.get(election); !same(got, r) {
				e.Errorf("Acquire returned %s, Get by another handle %s", show(r), show(got))
			}
			if r = e.get(election); !r.AcquiredAt.IsZero() && !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(r.AcquiredAt) {
				e.Errorf("acquired at %v and expires at %v", r.AcquiredAt, r.ExpiresAt)
			}
		},
	},
	{
		Name: "AcquireIsIdempotent",
		Why:  "the answer to an acquire may be lost; asking again must find the term that was won, not start another (S6)",
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.handle(), "m")
			first := e.acquire(s, election, "one")
			second := e.acquire(s, election, "two")
			if second.Token != first.Token {
				e.Errorf("token %d became %d by acquiring what the session held already", first.Token, second.Token)
			}
			if got := e.get(election); !same(got, second) {
				e.Errorf("published %q, and Get says %s", "two", show(got))
			}
			if again := e.acquire(s, election, "two"); again.Token != first.Token {
				e.Errorf("token %d became %d by publishing the same value again", first.Token, again.Token)
			}
		},
	},
	{
		Name: "HeldTellsTheHolder",
		Why:  "who is refused wants to know by whom",
		run: func(e *env) {
			election := e.election("e")
			holder, other := e.open(e.handle(), "holder"), e.open(e.handle(), "other")
			held := e.acquire(holder, election, "v")
			for _, queue := range []bool{false, true} {
				if r := e.refused(other, election, queue); !same(r, held) {
					e.Errorf("refused with %s; want %s", show(r), show(held))
				}
			}
			if got := e.holds(holder, election); !same(got, held) {
				e.Errorf("after refusals %s; want %s", show(got), show(held))
			}
		},
	},
	{
		Name: "ReadYourWrites",
		Why:  "a status that names a leader from a stale read sends people to the wrong machine (C5)",
		run: func(e *env) {
			election := e.election("e")
			writer, reader := e.handle(), e.handle()
			s := e.open(writer, "m")
			read := func(what string) driver.Record {
				r, err := reader.Get(e.context(), election)
				if err != nil {
					e.Fatalf("Get after %s: %v", what, err)
				}
				var listed []driver.Record
				for l, err := range reader.List(e.context(), election) {
					if err != nil {
						e.Fatalf("List after %s: %v", what, err)
					}
					listed = append(listed, l)
				}
				if r.Held() && (len(listed) != 1 || !same(listed[0], r)) {
					e.Fatalf("after %s Get returned %s and List %d records", what, show(r), len(listed))
				}
				return r
			}
			for i := range 20 {
				won := e.acquire(s, election, "a")
				if r := read("Acquire"); !same(r, won) {
					e.Fatalf("round %d: acquired %s, read %s", i, show(won), show(r))
				}
				published := e.acquire(s, election, "b")
				if r := read("publishing"); !same(r, published) {
					e.Fatalf("round %d: published %s, read %s", i, show(published), show(r))
				}
				e.release(s, election, won.Token)
				if r := read("Release"); r.Held() || r.Token != 0 && r.Token != won.Token {
					e.Fatalf("round %d: released token %d, read %s", i, won.Token, show(r))
				}
			}
		},
	},
	{
		Name: "Values",
		Why:  "a value is bytes: empty, binary or long, it comes back as it went in",
		run: func(e *env) {
			var binary []byte
			for i := range 256 {
				binary = append(binary, byte(i))
			}
			s := e.open(e.store, "m")
			for _, value := range [][]byte{nil, {}, {0}, binary, []byte(`'"\%_; DROP TABLE`), []byte("\xff\xfe invalid UTF-8"), slices.Repeat([]byte{0, 0xff}, e.h.MaxValue/2)} {
				election := e.election("e")
				given := slices.Clone(value)
				r, err := s.Acquire(e.context(), driver.Bid{Election: election, Value: given})
				if err != nil {
					e.Fatalf("Acquire with a value of %d bytes: %v", len(value), err)
				}
				for i := range given {
					given[i] = '!' // the driver does not keep it
				}
				if string(r.Value) != string(value) {
					e.Errorf("value %.20q of %d bytes came back as %.20q of %d bytes", value, len(value), r.Value, len(r.Value))
				}
				if got := e.get(election); string(got.Value) != string(value) {
					e.Errorf("value %.20q of %d bytes was read as %.20q of %d bytes", value, len(value), got.Value, len(got.Value))
				}
			}
		},
	},
	{
		Name: "List",
		Why:  "status lists elections by prefix; a prefix with the store's wildcards or quotes matches itself and nothing else",
		run: func(e *env) {
			root := e.election("")
			names := []string{"a", "a%", "a%b", "a_", "a_b", "aXb", "a*", "a?", "a[x]", "a\\", "a\\%", "a'", `a"`, "a/b", "a/b/c", "A", "á", "a😀", "a ", "b"}
			held := make(map[string]driver.Record)
			for _, name := range names {
				s := e.open(e.store, "m")
				held[root+name] = e.acquire(s, root+name, name)
			}
			for _, prefix := range append([]string{"", "a/", "a😀x", "zzz"}, names...) {
				var want, got []string
				for _, name := range names {
					if strings.HasPrefix(name, prefix) {
						want = append(want, root+name)
					}
				}
				slices.Sort(want)
				for r, err := range e.store.List(e.context(), root+prefix) {
					if err != nil {
						e.Fatalf("List(%q): %v", prefix, err)
					}
					if !r.Held() { // left over by nobody: all of these are held
						e.Errorf("List(%q) yields %s", prefix, show(r))
					} else if !same(r, held[r.Election]) {
						e.Errorf("List(%q) yields %s; want %s", prefix, show(r), show(held[r.Election]))
					}
					got = append(got, r.Election)
				}
				if !slices.Equal(got, want) {
					e.Errorf("List(%q):\n got %q\nwant %q", prefix, got, want)
				}
			}
			for _, err := range e.store.List(e.context(), root) {
				if err != nil {
					e.Errorf("List: %v", err)
				}
				break // must not hang or leak; the next call shows it
			}
			if _, err := e.store.Get(e.context(), root+"a"); err != nil {
				e.Errorf("Get after a List that was left early: %v", err)
			}
		},
	},
}

// hardNames are names that a driver may have to quote, escape or compare with care. All are different elections and members.
var hardNames = []string{
	"plain", "Plain", "PLAIN", "with space", " leading", "trailing ", "trailing", "a/b/c", "a//b", "/", "//", ".", "..", "a.b", "*", "%", "_", "?", "#", "&=+",
	`'`, `"`, `''`, "`", `\`, `\\`, `\'`, "$1", "$$", "?1", ":x", "@x", "%s%d", "{}", "[x]", "(", "a;b", "'; DROP TABLE elections; --",
	"null", "NULL", "0", "-1", "é", "e\u0301", "ß", "ss", "İ", "i", "ı", "😀", "日本語", "שלום", "\u00a0", "\u2028", "\ufeffbom", strings.Repeat("x", 255), strings.Repeat("😀", 63) + "abc",
}

var badNames = []struct{ what, name string }{
	{"empty", ""}, {"256 bytes", strings.Repeat("x", 256)}, {"255 characters of more bytes", strings.Repeat("é", 255)},
	{"a newline", "a\nb"}, {"NUL", "a\x00b"}, {"DEL", "a\x7fb"}, {"invalid UTF-8", "a\xffb"},
}

var nameCases = []Case{
	{
		Name: "HardNames",
		Why:  "names are bytes for people: quotes, slashes, wildcards, case and accents neither fail nor fall together",
		run: func(e *env) {
			root := e.election("")
			tokens := make(map[string]driver.Record)
			for _, name := range hardNames {
				if name = root + name; len(name) > driver.MaxNameLen {
					name = strings.ToValidUTF8(name[:driver.MaxNameLen], "") // which may have cut a character in two
				}
				s := e.open(e.store, name)
				tokens[name] = e.acquire(s, name, name)
				if tokens[name].Leader != name {
					e.Errorf("member %q leads as %q", name, tokens[name].Leader)
				}
			}
			if len(tokens) != len(hardNames) {
				e.Fatalf("the case uses %d of %d names", len(tokens), len(hardNames))
			}
			for name, want := range tokens {
				if got := e.get(name); !same(got, want) {
					e.Errorf("%s; want %s", show(got), show(want))
				}
			}
		},
	},
	{
		Name: "BadNamesAreRefused",
		Why:  "a name that the store would cut, reject or mix up must fail before anything is written, with an error that says what to do",
		run: func(e *env) {
			s := e.open(e.store, "m")
			check := func(call, what string, err error) {
				if !errors.Is(err, driver.ErrInvalid) {
					e.Errorf("%s with a name that is or has %s: %v; want ErrInvalid", call, what, err)
				}
			}
			for _, bad := range badNames {
				got, err := e.store.Open(e.context(), bad.name, e.long)
				check("Open", bad.what, err)
				if err == nil {
					_ = got.Close(e.context())
				}
				_, err = s.Acquire(e.context(), driver.Bid{Election: bad.name})
				check("Acquire", bad.what, err)
				_, err = e.store.Get(e.context(), bad.name)
				check("Get", bad.what, err)
				for _, err = range e.store.Watch(e.context(), bad.name) {
					break
				}
				check("Watch", bad.what, err)
			}
			e.keepAlive(s)
		},
	},
	{
		Name: "BoundsOfTTL",
		Why:  "a TTL that the store would silently correct makes two clocks count different leases",
		run: func(e *env) {
			for _, ttl := range []time.Duration{-time.Second, 0, e.info.MinTTL - 1, e.info.MinTTL / 2, e.info.MaxTTL + 1, 2 * e.info.MaxTTL} {
				if ttl >= e.info.MinTTL && ttl <= e.info.MaxTTL {
					continue // half or twice came out within the bounds by overflow
				}
				s, err := e.store.Open(e.context(), "m", ttl)
				if err == nil {
					_ = s.Close(e.context())
				}
				bound := e.info.MinTTL
				if ttl > bound {
					bound = e.info.MaxTTL
				}
				switch {
				case !errors.Is(err, driver.ErrInvalid):
					e.Errorf("Open with a TTL of %v: %v; want ErrInvalid, for it is outside %v to %v", ttl, err, e.info.MinTTL, e.info.MaxTTL)
				case !strings.Contains(err.Error(), ttl.String()) || !strings.Contains(err.Error(), bound.String()):
					e.Errorf("Open with a TTL of %v: %q names not both the value and the bound %v", ttl, err, bound)
				}
			}
			for _, ttl := range []time.Duration{e.info.MinTTL, e.info.MaxTTL} {
				s, err := e.store.Open(e.context(), "m", ttl)
				if err != nil {
					e.Errorf("Open with the bound %v: %v", ttl, err)
					continue
				}
				_ = s.Close(context.WithoutCancel(e.context())) // a session of MinTTL may have lapsed
			}
		},
	},
	{
		Name: "LongValue",
		Why:  "a value that is too long fails as such and changes nothing; it is never cut",
		run: func(e *env) {
			election := e.election("e")
			s := e.open(e.store, "m")
			before := e.acquire(s, election, "short")
			long := slices.Repeat([]byte("long"), 4<<20)
			r, err := s.Acquire(e.context(), driver.Bid{Election: election, Value: long})
			switch got := e.get(election); {
			case err == nil && (string(r.Value) != string(long) || !same(got, r)):
				e.Errorf("a value of %d bytes was taken, and came back with %d bytes and %d bytes", len(long), len(r.Value), len(got.Value))
			case err != nil && !errors.Is(err, driver.ErrInvalid):
				e.Errorf("a value of %d bytes: %v; want ErrInvalid or success", len(long), err)
			case err != nil && !same(got, before):
				e.Errorf("a refused value left %s; want %s", show(got), show(before))
			}
		},
	},
}
