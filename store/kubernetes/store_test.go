package kubernetes_test

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/store/kubernetes"
)

func acquire(t testing.TB, s driver.Session, election string) driver.Record {
	t.Helper()
	r, err := s.Acquire(t.Context(), driver.Bid{Election: election, Queue: true})
	if err != nil {
		t.Fatalf("Acquire(%q): %v", election, err)
	}
	return r
}

func openSession(t testing.TB, store driver.Store, member string) driver.Session {
	t.Helper()
	s, err := store.Open(t.Context(), member, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An election with a name that is fit for one has the Lease of that name, as client-go would name it; no two elections share one.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, name := range []string{
		"orders", "a.b-c.d", "Orders", "orders/shard-07", "orders/shard-7", "-a", "a-", "a..b", "é", "e", "日本", "😀", strings.Repeat("x", 253), strings.Repeat("x", 254),
		strings.Repeat("x", 255), kubernetes.LeaseName("Orders"), kubernetes.LeaseName(kubernetes.LeaseName("Orders")),
	} {
		lease := kubernetes.LeaseName(name)
		if other, ok := seen[lease]; ok {
			t.Errorf("%q and %q have the Lease %s", name, other, lease)
		}
		seen[lease] = name
		if plain := name == "orders" || name == "a.b-c.d" || name == "e" || len(name) == 253; plain != (lease == name) {
			t.Errorf("%q has the Lease %s", name, lease)
		}
	}
}

// Whatever is done to an election, what others wrote into its Lease stays.
func TestForeignFieldsStay(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	foreign := map[string]any{
		"labels":          map[string]any{"team": "orders", "gotenure.example/x": "1"},
		"annotations":     map[string]any{"note": "hands off", "control-plane.alpha.kubernetes.io/x": "{}"},
		"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Namespace", "name": a.namespace, "uid": "6f3fbd6f-4e5c-4b1f-9d1e-0d8d7e6c5b4a"}},
		"finalizers":      []any{"example.com/keep"},
	}
	metadata := map[string]any{"name": "orders"}
	for key, value := range foreign {
		metadata[key] = value
	}
	a.do(t, http.MethodPost, a.leases(), map[string]any{"metadata": metadata})
	check := func(after string) {
		t.Helper()
		object := a.do(t, http.MethodGet, a.lease("orders"), nil)
		got := object["metadata"].(map[string]any)
		for key, want := range foreign {
			if values, ok := want.(map[string]any); ok {
				for name, value := range values {
					if found := got[key].(map[string]any)[name]; found != value {
						t.Errorf("after %s: %s %s is %v; want %v", after, key, name, found, value)
					}
				}
			} else if !reflect.DeepEqual(got[key], want) {
				t.Errorf("after %s: %s are %v; want %v", after, key, got[key], want)
			}
		}
	}
	store := open(t, url)
	s := openSession(t, store, "m")
	won := acquire(t, s, "orders")
	check("Acquire")
	if _, err := s.KeepAlive(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("KeepAlive")
	if _, err := s.Acquire(t.Context(), driver.Bid{Election: "orders", Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	if err := store.Ask(t.Context(), "orders", won.Token); err != nil {
		t.Fatal(err)
	}
	check("Ask")
	if err := s.Release(t.Context(), "orders", won.Token); err != nil {
		t.Fatal(err)
	}
	check("Release")
	for key := range a.do(t, http.MethodGet, a.lease("orders"), nil)["metadata"].(map[string]any)["annotations"].(map[string]any) {
		if strings.HasPrefix(key, "gotenure.github.io/") && key != tokenKey {
			t.Errorf("after Release there is annotation %s", key)
		}
	}
}

// Somebody edits labels all the time, as controllers do. Neither renewals nor the release fail, and a dead holder's lease is not prolonged by it.
func TestOthersEditTheLease(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	store := open(t, url)
	s, err := store.Open(t.Context(), "m", 8*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	won := acquire(t, s, "orders")
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			default:
			}
			_, err := a.try(http.MethodPatch, a.lease("orders"), map[string]any{"metadata": map[string]any{"labels": map[string]any{"edited": fmt.Sprint(i)}}})
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 5 {
		time.Sleep(500 * time.Millisecond) // between renewals
		if grant, err := s.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
			t.Errorf("KeepAlive: %+v, %v", grant, err)
		}
	}
	if err := s.Release(t.Context(), "orders", won.Token); err != nil {
		t.Errorf("Release: %v", err)
	}
	acquire(t, s, "orders")
	eventually(t, func() string {
		if r, err := store.Get(t.Context(), "orders"); err != nil || r.Held() {
			return fmt.Sprintf("the dead session's record is %+v, %v", r, err)
		}
		return ""
	})
	close(quit)
	<-done
}

// An operator makes another the holder. The leader is told at once although its TTL is long, its work is cancelled, and what it does then harms nobody.
func TestOverwritten(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	store := open(t, url)
	for _, change := range []struct {
		what string
		do   func()
	}{
		{"overwritten", func() {
			a.edit(t, "orders", func(spec, _ map[string]any) { spec["holderIdentity"] = "intruder" })
		}},
		{"deleted", func() { a.delete(t, "orders") }},
	} {
		member, err := tenure.Join(t.Context(), store, tenure.Config{TTL: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		term, err := member.Campaign(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		// The watch of a leader begins a little after its term.
		eventually(t, func() string {
			if err := term.Publish(t.Context(), []byte("published")); err != nil {
				t.Fatal(err)
			}
			if r, err := store.Get(t.Context(), "orders"); err != nil || string(r.Value) != "published" {
				return fmt.Sprintf("%+v, %v", r, err)
			}
			return ""
		})
		change.do()
		select {
		case <-term.Done():
		case <-time.After(patience):
			t.Fatalf("%s: the term goes on", change.what)
		}
		if !errors.Is(term.Check(), tenure.ErrLost) {
			t.Errorf("%s: %v; want ErrLost", change.what, term.Check())
		}
		if err := member.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		r, err := store.Get(t.Context(), "orders")
		if err != nil || change.what == "overwritten" && r.Session != "intruder" || change.what == "deleted" && r.Held() {
			t.Errorf("%s: after the former leader has left the record is %+v, %v", change.what, r, err)
		}
		if change.what == "overwritten" {
			a.delete(t, "orders")
		}
	}

	// A session that waits, and is made the holder, is told what it holds now.
	holder, waiter := openSession(t, store, "holder"), openSession(t, store, "waiter")
	held := acquire(t, holder, "orders")
	if _, err := waiter.Acquire(t.Context(), driver.Bid{Election: "orders", Queue: true}); !errors.Is(err, driver.ErrHeld) {
		t.Fatal(err)
	}
	a.edit(t, "orders", func(spec, annotations map[string]any) {
		spec["holderIdentity"] = waiter.ID()
		annotations[sessionKey], annotations[tokenKey] = waiter.ID(), fmt.Sprint(held.Token+1)
		annotations["gotenure.github.io/member"] = "waiter"
	})
	if err := waiter.Await(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if grant, err := waiter.KeepAlive(t.Context()); err != nil || grant.Holds["orders"] != held.Token+1 {
		t.Errorf("KeepAlive of the new holder: %+v, %v; want token %d", grant, err, held.Token+1)
	}
	if grant, err := holder.KeepAlive(t.Context()); err != nil || grant.Holds == nil || grant.Holds["orders"] != 0 {
		t.Errorf("KeepAlive of the former holder: %+v, %v; want that it holds nothing", grant, err)
	}
	if err := holder.Release(t.Context(), "orders", held.Token); err != nil {
		t.Error(err)
	}
	if r, err := store.Get(t.Context(), "orders"); err != nil || r.Session != waiter.ID() {
		t.Errorf("the record is %+v, %v", r, err)
	}
}

// Somebody spoils the Lease of a leader, so that it cannot be renewed: the session does not hold it any more, for others may take it as it stands.
func TestSpoilt(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	s := openSession(t, open(t, url), "m")
	for what, spoil := range map[string]func(spec, annotations map[string]any){
		"duration": func(spec, _ map[string]any) { delete(spec, "leaseDurationSeconds") },
		"member":   func(_, annotations map[string]any) { delete(annotations, "gotenure.github.io/member") },
		"token":    func(_, annotations map[string]any) { annotations[tokenKey] = "nonsense" },
	} {
		acquire(t, s, what)
		before := a.edit(t, what, spoil)
		if grant, err := s.KeepAlive(t.Context()); err != nil || grant.Holds == nil || grant.Holds[what] != 0 {
			t.Errorf("KeepAlive without %s: %+v, %v; want that it holds nothing", what, grant, err)
		}
		if after := a.do(t, http.MethodGet, a.lease(what), nil); !reflect.DeepEqual(before["spec"], after["spec"]) {
			t.Errorf("the Lease without %s was written: %v; want %v", what, after["spec"], before["spec"])
		}
		a.delete(t, what)
	}
}

// Somebody edits what the Lease of a leader says of its term. The session takes it anew, under a greater token, and does not go on under what is written there, nor wait for
// itself (S1).
func TestEditedTerm(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	s := openSession(t, open(t, url), "m")
	for what, edit := range map[string]func(annotations map[string]any){
		"lesser token":   func(annotations map[string]any) { annotations[tokenKey] = "1" },
		"greater token":  func(annotations map[string]any) { annotations[tokenKey] = "999999999999" },
		"no session":     func(annotations map[string]any) { delete(annotations, sessionKey) },
		"no annotations": func(annotations map[string]any) { clear(annotations) },
	} {
		election := strings.ReplaceAll(what, " ", "-")
		first := acquire(t, s, election)
		edited := a.edit(t, election, func(_, annotations map[string]any) { edit(annotations) })
		grant, err := s.KeepAlive(t.Context())
		if what != "no session" && (err != nil || grant.Holds == nil || grant.Holds[election] == first.Token) {
			t.Errorf("%s: KeepAlive: %+v, %v; want that the term with token %d is over", what, grant, err, first.Token)
		}
		second := acquire(t, s, election)
		version, err := strconv.ParseUint(edited["metadata"].(map[string]any)["resourceVersion"].(string), 10, 64)
		if err != nil || second.Token <= first.Token || second.Token < version || second.Token > version+1000 {
			t.Errorf("%s: token %d after %d (%v); want one of about %d", what, second.Token, first.Token, err, version)
		}
		if again := acquire(t, s, election); again.Token != second.Token {
			t.Errorf("%s: token %d, and then %d of the same term", what, second.Token, again.Token)
		}
		if err := s.Release(t.Context(), election, second.Token); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if grant, err := s.KeepAlive(t.Context()); err != nil || grant.Holds != nil {
			t.Errorf("%s: KeepAlive after Release: %+v, %v; want no news", what, grant, err)
		}
	}
}

// The pod that leads has the label, and no other.
func TestPodLabel(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	pods := "/api/v1/namespaces/" + a.namespace + "/pods"
	for _, name := range []string{"pod-1", "pod-2", "dead"} {
		a.do(t, http.MethodPost, pods, map[string]any{
			"metadata": map[string]any{"name": name, "labels": map[string]any{"app": "orders"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "registry.example.com/c:1"}}},
		})
	}
	const key = "leader.example.com/orders"
	// The pod that led before is dead or hangs, and cannot take the label off.
	a.do(t, http.MethodPatch, pods+"/dead", map[string]any{"metadata": map[string]any{"labels": map[string]any{key: "true"}}})
	labelled := func(want string) {
		t.Helper()
		eventually(t, func() string {
			var got []string
			for _, pod := range a.do(t, http.MethodGet, pods+"?labelSelector="+key+"%3Dtrue", nil)["items"].([]any) {
				got = append(got, pod.(map[string]any)["metadata"].(map[string]any)["name"].(string))
			}
			if text := strings.Join(got, " "); text != want {
				return fmt.Sprintf("pods %q have the label; want %q", text, want)
			}
			return ""
		})
	}
	token := a.grant(t, "member", leaseRule(allVerbs), rule("", "pods", []string{"list", "patch"}))
	account := func(pod string) *kubernetes.Store {
		return open(t, a.as(t, "token: "+token, "pod-label", "leader.example.com", "pod", pod))
	}
	one, two := openSession(t, account("pod-1"), "one"), openSession(t, account("pod-2"), "two")
	first := acquire(t, one, "orders")
	labelled("pod-1")
	if err := one.Release(t.Context(), "orders", first.Token); err != nil {
		t.Fatal(err)
	}
	labelled("")
	acquire(t, two, "orders")
	labelled("pod-2")
	if err := two.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	labelled("")
	acquire(t, one, "orders")
	labelled("pod-1")
	a.delete(t, "orders")
	if _, err := one.KeepAlive(t.Context()); err != nil {
		t.Fatal(err)
	}
	labelled("")
	_ = url
}
