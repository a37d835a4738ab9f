package kubernetes_test

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/internal/testserver"
	"github.com/gotenure/tenure/store/kubernetes"
)

const (
	tokenKey   = "gotenure.github.io/token"
	sessionKey = "gotenure.github.io/session"
)

// patience bounds every wait for something that must happen.
const patience = testserver.Patience

var eventually = testserver.Eventually

func open(t testing.TB, url string) *kubernetes.Store {
	t.Helper()
	s, err := kubernetes.Open(t.Context(), url)
	if err != nil {
		t.Fatalf("open %s: %v", url, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// An api is what an operator does to the API server, with another client than the one under test.
type api struct {
	config    string // path of the kubeconfig
	server    string
	token     string
	namespace string
	client    *http.Client
}

func field(t testing.TB, text []byte, name string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^\s*` + name + `: (\S+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("the kubeconfig has no %s", name)
	}
	return string(found[1])
}

// connect connects an operator to the server and the namespace of a store URL.
func connect(t testing.TB, storeURL string) *api {
	t.Helper()
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	a := &api{config: u.Query().Get("kubeconfig"), namespace: u.Hostname()}
	text, err := os.ReadFile(a.config)
	if err != nil {
		t.Fatal(err)
	}
	a.server, a.token = field(t, text, "server"), field(t, text, "token")
	pem, err := os.ReadFile(field(t, text, "certificate-authority"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	a.client = &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	return a
}

// newNamespace makes a namespace, and returns the store's URL with it.
func newNamespace(t testing.TB, storeURL string) string {
	t.Helper()
	name := "test-" + strings.ToLower(rand.Text()[:10])
	connect(t, storeURL).do(t, http.MethodPost, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": name}})
	u, err := url.Parse(storeURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = name
	return u.String()
}

// do makes a request that must succeed.
func (a *api) do(t testing.TB, method, path string, body any) map[string]any {
	t.Helper()
	object, err := a.try(method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func (a *api) try(method, path string, body any) (object map[string]any, err error) {
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequest(method, a.server+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 400 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	return object, json.Unmarshal(answer, &object)
}

func (a *api) leases() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + a.namespace + "/leases"
}

func (a *api) lease(election string) string { return a.leases() + "/" + kubernetes.LeaseName(election) }

func (a *api) delete(t testing.TB, election string) {
	t.Helper()
	a.do(t, http.MethodDelete, a.lease(election), nil)
}

// edit changes a Lease whatever its state.
func (a *api) edit(t testing.TB, election string, change func(spec, annotations map[string]any)) map[string]any {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		object := a.do(t, http.MethodGet, a.lease(election), nil)
		metadata := object["metadata"].(map[string]any)
		if metadata["annotations"] == nil {
			metadata["annotations"] = map[string]any{}
		}
		change(object["spec"].(map[string]any), metadata["annotations"].(map[string]any))
		written, err := a.try(http.MethodPut, a.lease(election), object)
		if err == nil {
			return written
		}
		if time.Now().After(end) || !strings.Contains(err.Error(), "409") {
			t.Fatal(err)
		}
	}
}
