package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure"
	"github.com/gotenure/tenure/driver"
	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/kubernetes"
)

var allVerbs = []string{"get", "list", "watch", "create", "update"}

// grant makes a service account that may do what rules say, and returns a token of it.
func (a *api) grant(t testing.TB, account string, rules ...any) string {
	t.Helper()
	core, rbac := "/api/v1/namespaces/"+a.namespace, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+a.namespace
	name := map[string]any{"name": account}
	a.do(t, http.MethodPost, core+"/serviceaccounts", map[string]any{"metadata": name})
	a.do(t, http.MethodPost, rbac+"/roles", map[string]any{"metadata": name, "rules": rules})
	a.do(t, http.MethodPost, rbac+"/rolebindings", map[string]any{
		"metadata": name, "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": account, "namespace": a.namespace}},
	})
	return a.issue(t, account)
}

// issue returns a token of a service account.
func (a *api) issue(t testing.TB, account string) string {
	t.Helper()
	answer := a.do(t, http.MethodPost, "/api/v1/namespaces/"+a.namespace+"/serviceaccounts/"+account+"/token", map[string]any{"spec": map[string]any{}})
	return answer["status"].(map[string]any)["token"].(string)
}

func rule(group, resource string, verbs []string, names ...string) map[string]any {
	r := map[string]any{"apiGroups": []string{group}, "resources": []string{resource}, "verbs": verbs}
	if len(names) > 0 {
		r["resourceNames"] = names
	}
	return r
}

func leaseRule(verbs []string, names ...string) map[string]any {
	return rule("coordination.k8s.io", "leases", verbs, names...)
}

// as returns a store URL for another user. credential is a line of the kubeconfig.
func (a *api) as(t testing.TB, credential string, parameters ...string) string {
	t.Helper()
	text, err := os.ReadFile(a.config)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text = []byte(strings.Replace(string(text), "token: "+a.token, credential, 1))
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	query := url.Values{"kubeconfig": {config}}
	for i := 0; i < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	u := url.URL{Scheme: "kubernetes", Host: a.namespace, RawQuery: query.Encode()}
	return u.String()
}

// The role of the manifest is enough, and without any one of its verbs an error names that one.
func TestMissingVerbsAreNamed(t *testing.T) {
	t.Parallel()
	url, a, _ := newFleet(t)
	use := func(storeURL string) error {
		store, err := kubernetes.Open(t.Context(), storeURL)
		if err != nil {
			return err
		}
		defer store.Close()
		member, err := tenure.Join(t.Context(), store, tenure.Config{})
		if err != nil {
			return err
		}
		defer member.Leave(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		term, err := member.Campaign(ctx, "orders")
		if err != nil {
			return err
		}
		return term.Resign(ctx)
	}
	if err := use(a.as(t, "token: "+a.grant(t, "enough", leaseRule(allVerbs)))); err != nil {
		t.Errorf("with the role of the manifest: %v", err)
	}
	if err := use(a.as(t, "token: "+a.grant(t, "one", leaseRule([]string{"get", "list", "watch", "update"}, "orders"), leaseRule([]string{"create"})))); err != nil {
		t.Errorf("with the role for one election: %v", err)
	}
	for i, verb := range append(allVerbs, "get, list, watch, create, update") {
		var rest []string
		for _, v := range allVerbs {
			if !strings.Contains(verb, v) {
				rest = append(rest, v)
			}
		}
		account := fmt.Sprint("lacks-", i)
		rules := []any{leaseRule(rest)}
		if len(rest) == 0 {
			rules = nil
		}
		err := use(a.as(t, "token: "+a.grant(t, account, rules...)))
		want := fmt.Sprintf("system:serviceaccount:%s:%s may not %s leases.coordination.k8s.io", a.namespace, account, verb)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "grant the verb") {
			t.Errorf("without %s: %v; want %q", verb, err, want)
		}
	}
	token := a.grant(t, "no-pods", leaseRule(allVerbs))
	if err := use(a.as(t, "token: "+token, "pod-label", "leader.example.com", "pod", "p")); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "list, patch pods") {
		t.Errorf("a label without permission for pods: %v", err)
	}
	_ = url
}

// What was granted, and is taken away for a while, is no reason to give up.
func TestRevokedRoleIsWaitedFor(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	const ttl = 4 * time.Second
	path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + a.namespace + "/rolebindings/member"
	startMember(t, a.as(t, "token: "+a.grant(t, "member", leaseRule(allVerbs))), o, "orders", "limited", ttl)
	o.AwaitLeader("limited")
	binding := a.do(t, http.MethodGet, path, nil)
	a.do(t, http.MethodDelete, path, nil)
	other := startMember(t, url, o, "orders", "admin", ttl)
	o.AwaitLeader("admin")
	delete(binding["metadata"].(map[string]any), "resourceVersion")
	delete(binding["metadata"].(map[string]any), "uid")
	a.do(t, http.MethodPost, strings.TrimSuffix(path, "/member"), binding)
	other.stop()
	o.AwaitLeader("limited")
}

// A token that has become invalid while a member waits is replaced in its file, as a kubelet does it, and the member goes on.
func TestRotatedCredentials(t *testing.T) {
	t.Parallel()
	url, a, o := newFleet(t)
	const ttl = 4 * time.Second
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(a.grant(t, "member", leaseRule(allVerbs)))
	first := startMember(t, url, o, "orders", "admin", ttl)
	o.AwaitLeader("admin")
	startMember(t, a.as(t, "tokenFile: "+file), o, "orders", "rotated", ttl)
	// Tokens are those of one account with one UID: those of an account that was made anew are others.
	accounts := "/api/v1/namespaces/" + a.namespace + "/serviceaccounts"
	a.do(t, http.MethodDelete, accounts+"/member", nil)
	a.do(t, http.MethodPost, accounts, map[string]any{"metadata": map[string]any{"name": "member"}})
	time.Sleep(2 * ttl) // the member has to wait for some time with a token that is good for nothing
	write(a.issue(t, "member"))
	first.stop()
	o.AwaitLeader("rotated")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	storeURL, a, _ := newFleet(t)
	config := url.QueryEscape(a.config)
	for _, refused := range []struct{ url, want string }{
		{"kubernetes:", "want kubernetes://NAMESPACE"},
		{"etcd://x", "want kubernetes://NAMESPACE"},
		{"kubernetes://user:secret@default", "credentials are in the kubeconfig"},
		{"kubernetes://default:6443", "what follows the slashes is a namespace"},
		{"kubernetes://default/path", `"/path"`},
		{"kubernetes://default#x", "#"},
		{"kubernetes://default?namespace=x", `unknown parameter "namespace"`},
		{"kubernetes://default?context=a&context=b", "given 2 times"},
		{"kubernetes://default?context=", "empty"},
		{"kubernetes://default?context=%zz", "percent-encode"},
		{"kubernetes://Default_?kubeconfig=" + config, `namespace is "Default_"`},
		{"kubernetes://?kubeconfig=" + config + "&pod-label=a/b", `pod label is "a/b"`},
		{"kubernetes://?kubeconfig=" + config + "&pod-label=a&pod=A", `pod is "A"`},
		{"kubernetes://?kubeconfig=/nonexistent", "check the file"},
		{"kubernetes://?kubeconfig=" + config + "&context=nosuch", "nosuch"},
	} {
		store, err := kubernetes.Open(t.Context(), refused.url)
		if err == nil {
			store.Close()
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), refused.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q): %v; want ErrInvalid with %q", refused.url, err, refused.want)
		}
	}
	store := open(t, storeURL)
	for _, ttl := range []time.Duration{time.Second, 2500 * time.Millisecond, 25 * time.Hour} {
		if _, err := store.Open(t.Context(), "m", ttl); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("Open with a TTL of %v: %v; want ErrInvalid", ttl, err)
		}
	}
	listed := false
	nowhere := open(t, strings.Replace(storeURL, a.namespace, "nowhere", 1))
	for _, err := range nowhere.List(t.Context(), "") {
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), `namespace "nowhere" does not exist`) {
			t.Errorf("List: %v; want ErrInvalid that names the namespace", err)
		}
		listed = true
	}
	if !listed {
		t.Error("List of a namespace that does not exist is empty")
	}
	s, err := nowhere.Open(t.Context(), "m", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), driver.Bid{Election: "orders"}); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), `namespace "nowhere" does not exist`) {
		t.Errorf("Acquire in a namespace that does not exist: %v", err)
	}
	if store, err := kubernetes.Open(t.Context(), a.as(t, "token: wrong")); err == nil || errors.Is(err, driver.ErrInvalid) {
		if err == nil {
			store.Close()
		}
		t.Errorf("Open with a wrong token: %v; want an error that may pass", err)
	}
	if _, err := open(t, testserver.KubernetesURL(t)).Get(t.Context(), "nothing"); err != nil {
		t.Errorf("Get of a Lease that does not exist: %v", err)
	}
}
