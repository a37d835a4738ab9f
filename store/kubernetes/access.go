package kubernetes

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gotenure/tenure/driver"
)

// leaseVerbs are what a member needs to be allowed, podVerbs what the label of the leading pod needs.
var (
	leaseVerbs = []string{"get", "list", "watch", "create", "update"}
	podVerbs   = []string{"list", "patch"}
)

// access knows what the credentials are good for. Its methods may be called concurrently.
type access struct {
	client    *client
	namespace string

	mu      sync.Mutex
	all     bool            // every Lease of the namespace may be used
	unknown bool            // the server does not tell
	granted map[string]bool // Leases that may be used, when not all may
}

type attributes struct {
	Namespace string `json:"namespace"`
	Verb      string `json:"verb"`
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Name      string `json:"name,omitempty"`
}

// open asks what may be done, and fails when nothing may, or a label cannot be set. Some verbs may be granted for Leases of certain names only: check asks
// for those when their name is known.
func (a *access) open(ctx context.Context, label bool) error {
	missing, err := a.review(ctx, "coordination.k8s.io", "leases", "", leaseVerbs)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
		a.unknown = true
		return nil
	}
	if err != nil {
		return err
	}
	a.all = len(missing) == 0
	if len(missing) == len(leaseVerbs) {
		return a.refusal(ctx, "leases.coordination.k8s.io", "", missing)
	}
	if label {
		missing, err := a.review(ctx, "", "pods", "", podVerbs)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return a.refusal(ctx, "pods", "", missing)
		}
	}
	return nil
}

// check asks, once for each Lease, whether it may be used.
func (a *access) check(ctx context.Context, lease string) error {
	a.mu.Lock()
	known := a.all || a.unknown || a.granted[lease]
	a.mu.Unlock()
	if known {
		return nil
	}
	missing, err := a.review(ctx, "coordination.k8s.io", "leases", lease, leaseVerbs)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return a.refusal(ctx, "leases.coordination.k8s.io", lease, missing)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.granted[lease] = true
	return nil
}

// explain makes of a refusal one that names what is missing. What was granted once is being changed by somebody, and may come back: that is no error
// for which a member gives up.
func (a *access) explain(ctx context.Context, lease string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	a.mu.Lock()
	once := a.all || a.granted[lease]
	a.mu.Unlock()
	missing, reviewErr := a.review(ctx, "coordination.k8s.io", "leases", lease, leaseVerbs)
	if reviewErr != nil || len(missing) == 0 {
		return err
	}
	refusal := a.refusal(ctx, "leases.coordination.k8s.io", lease, missing)
	if once {
		return fmt.Errorf("%s: %w", strings.Replace(refusal.Error(), ": "+driver.ErrInvalid.Error(), "", 1), err)
	}
	return fmt.Errorf("%w: %w", refusal, err)
}

// review returns those of the verbs that are not granted.
func (a *access) review(ctx context.Context, group, resource, name string, verbs []string) ([]string, error) {
	var missing []string
	for _, verb := range verbs {
		granted := name
		if verb == "create" {
			granted = "" // cannot be granted by name
		}
		var answer struct{ Status struct{ Allowed bool } }
		err := a.client.do(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", nil, map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": map[string]any{"resourceAttributes": attributes{a.namespace, verb, group, resource, granted}},
		}, &answer)
		if err != nil {
			return nil, err
		}
		if !answer.Status.Allowed {
			missing = append(missing, verb)
		}
	}
	return missing, nil
}

func (a *access) refusal(ctx context.Context, resource, name string, missing []string) error {
	who := "the user"
	var answer struct {
		Status struct{ UserInfo struct{ Username string } }
	}
	if err := a.client.do(ctx, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", nil, map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
	}, &answer); err == nil && answer.Status.UserInfo.Username != "" {
		who = answer.Status.UserInfo.Username
	}
	what := resource
	if name != "" {
		what = fmt.Sprintf("%s %q", resource, name)
	}
	return fmt.Errorf("kubernetes: %w: %s may not %s %s in namespace %q: grant %s by a Role and a RoleBinding there", errInvalid, who, strings.Join(missing, ", "), what, a.namespace, verbList(missing))
}

func verbList(missing []string) string {
	if len(missing) == 1 {
		return "the verb " + missing[0]
	}
	return "the verbs " + strings.Join(missing[:len(missing)-1], ", ") + " and " + missing[len(missing)-1]
}
