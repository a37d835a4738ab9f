package zookeeper

import (
	"testing"
	"time"
)

// What a renewal grants is counted from what the leading server has heard of for certain (S2).
func TestGrant(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	const ttl, tick = 3000 * time.Millisecond, 200 * time.Millisecond
	e := lease{timeout: 4500 * time.Millisecond, direct: at(0)}
	for _, step := range []struct{ sent, want int }{
		{100, 3000},
		{1000, 3000}, // since 100, which leaves 3600
		{1100, 3000}, // since 100: 1000 is not a tick ago
		{3000, 2600}, // since 1100
		{7000, 500},  // since 3000
		{7100, 400},  // since 3000: 7000 is not a tick ago
		{7200, 3000}, // since 7000
		{8300, 3000},
	} {
		if got := e.grant(at(step.sent), ttl, tick); got != time.Duration(step.want)*time.Millisecond {
			t.Errorf("sent at %d ms: granted %v; want %d ms", step.sent, got, step.want)
		}
	}
	// A new connection is heard of by the leading server at once; what was sent before it no longer counts.
	e.direct, e.touches = at(20000), nil
	if got := e.grant(at(20100), ttl, tick); got != ttl {
		t.Errorf("after a new connection: %v", got)
	}
	if got := e.grant(at(19900), ttl, tick); got != ttl {
		t.Errorf("sent before the new connection: %v", got)
	}
	for i := range 10_000 {
		e.grant(at(30000+i), ttl, tick)
	}
	if n := len(e.touches); n > 250 {
		t.Errorf("%d times are kept", n)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"nightly-report":    "/nightly-report",
		"orders/shard-07":   "/orders/shard-07",
		"a//b":              "/a/%/b",
		"/":                 "/%/%",
		".":                 "/%2E",
		"a/../b":            "/a/%2E%2E/b",
		"100%":              "/100%25",
		"😀":                 "/%F0%9F%98%80",
		"zookeeper":         "/%7Aookeeper",
		"a/zookeeper":       "/a/zookeeper",
		"_tenure":           "/%5Ftenure",
		"a/_c_x-latch-0001": "/a/%5Fc_x-latch-0001",
		"é \"'":             "/é \"'",
	} {
		if got := Path(name); got != path {
			t.Errorf("%q lies at %s; want %s", name, got, path)
		}
		if got, ok := Name(path); !ok || got != name {
			t.Errorf("%s is %q, %t; want %q", path, got, ok, name)
		}
	}
	for _, path := range []string{"/_tenure", "/zookeeper", "/a/_c_x-latch-0001", "/%41", "/a%", "/a%2"} {
		if got, ok := Name(path); ok {
			t.Errorf("%s is no election's, yet it is %q", path, got)
		}
	}
	names := make(map[string]string)
	for _, member := range []string{"a/b", "a%2Fb", "a", "%", ".", "..", "_c_", "zookeeper"} {
		dir := layout("/x").members(member)
		if other, ok := names[dir]; ok {
			t.Errorf("members %q and %q both lie at %s", member, other, dir)
		}
		names[dir] = member
	}
}
