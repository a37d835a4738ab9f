package kubernetes_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gotenure/tenure/internal/testserver"
)

// An elector of client-go cannot be asked, and whoever asks it is told so instead of waiting for it.
func TestAskClientGo(t *testing.T) {
	t.Parallel()
	url := newNamespace(t, testserver.KubernetesURL(t))
	a := connect(t, url)
	a.do(t, http.MethodPost, a.leases(), map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"name": "orders"},
		"spec": map[string]any{"holderIdentity": "client-go-1", "leaseDurationSeconds": 3600, "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")},
	})
	store := open(t, url)
	record, err := store.Get(t.Context(), "orders")
	if err != nil || !record.Held() || record.Token != 0 {
		t.Fatalf("the record is %+v, %v; want one that is held without a token", record, err)
	}
	if err := store.Ask(t.Context(), "orders", record.Token); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "client-go-1") {
		t.Errorf("Ask: %v; want ErrUnsupported that names the leader", err)
	}
}
