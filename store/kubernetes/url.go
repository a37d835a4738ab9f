package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Where a pod finds its service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Open opens the store of a URL:
//
//	kubernetes://NAMESPACE?kubeconfig=FILE&context=NAME&pod-label=PREFIX&pod=NAME
//
// All parts may be left out: kubernetes:// in a pod takes the pod's service account and namespace; elsewhere, as kubectl does, what $KUBECONFIG or
// ~/.kube/config say. kubeconfig and context choose others. pod-label and pod are Options.PodLabel and Options.Pod.
//
// Open asks the API server at once what the credentials allow. Errors that wrap driver.ErrInvalid say what has to be changed.
func Open(ctx context.Context, url string) (*Store, error) { return OpenWith(ctx, url, nil) }

// OpenWith is Open with a logger. Nil: silent.
func OpenWith(ctx context.Context, url string, logger *slog.Logger) (*Store, error) {
	place, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	config, namespace, err := place.load()
	if err != nil {
		return nil, err
	}
	if place.opts.Namespace == "" {
		place.opts.Namespace = namespace
	}
	place.opts.Logger = logger
	return New(ctx, config, place.opts)
}

// A place is what a URL says.
type place struct {
	kubeconfig, context string
	opts                Options
}

func parseURL(raw string) (*place, error) {
	fail := func(format string, args ...any) (*place, error) {
		return nil, fmt.Errorf("kubernetes: %w: store URL: %s", errInvalid, fmt.Sprintf(format, args...))
	}
	const form = "kubernetes://NAMESPACE?kubeconfig=FILE&context=NAME"
	if !strings.HasPrefix(raw, "kubernetes://") {
		return fail("want %s, where all that follows the slashes may be left out", form)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return fail("it cannot be parsed: want %s", form)
	}
	switch {
	case u.User != nil:
		return fail("it has a user or a password: credentials are in the kubeconfig or the service account; leave them out")
	case u.Port() != "":
		return fail("it has a port: what follows the slashes is a namespace; the API server's address is in the kubeconfig")
	case u.Path != "" && u.Path != "/":
		return fail("it has the path %q: want %s", u.Path, form)
	case u.Fragment != "":
		return fail("it has a #: want %s", form)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("its parameters cannot be parsed: percent-encode their values, and separate them with &")
	}
	p := &place{opts: Options{Namespace: u.Hostname()}}
	known := map[string]*string{"kubeconfig": &p.kubeconfig, "context": &p.context, "pod-label": &p.opts.PodLabel, "pod": &p.opts.Pod}
	for name, values := range query {
		target := known[name]
		switch {
		case target == nil:
			return fail("unknown parameter %q: known are kubeconfig, context, pod-label and pod", name)
		case len(values) > 1:
			return fail("parameter %q is given %d times: give it once", name, len(values))
		case values[0] == "":
			return fail("parameter %q is empty: give it a value or leave it out", name)
		}
		*target = values[0]
	}
	return p, nil
}

// load returns what to connect with, and the namespace that goes with it.
func (p *place) load() (*rest.Config, string, error) {
	if p.kubeconfig == "" && p.context == "" && os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		config, err := rest.InClusterConfig()
		if err == nil {
			namespace, err := os.ReadFile(accountDir + "/namespace")
			if err != nil {
				return nil, "", fmt.Errorf("kubernetes: %w: namespace of the service account: %w: name it in the store URL", errInvalid, err)
			}
			return config, strings.TrimSpace(string(namespace)), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, "", fmt.Errorf("kubernetes: %w: service account: %w", errInvalid, err)
		}
		if os.Getenv("KUBECONFIG") == "" {
			return nil, "", fmt.Errorf("kubernetes: %w: this is a pod without a service account token: %w: remove automountServiceAccountToken: false, or set KUBECONFIG", errInvalid, err)
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: p.context})
	config, err := loader.ClientConfig()
	if err != nil {
		remedy := "this is no pod, and there is no kubeconfig: set KUBECONFIG, or add kubeconfig=FILE to the store URL"
		if p.kubeconfig != "" || p.context != "" || !clientcmd.IsEmptyConfig(err) {
			remedy = "check the file and the context with: kubectl config view"
		}
		return nil, "", fmt.Errorf("kubernetes: %w: %w: %s", errInvalid, err, remedy)
	}
	namespace, _, err := loader.Namespace()
	return config, namespace, err
}

// complete fills what was left out, and checks the rest.
func (o *Options) complete() error {
	bad := func(field, value, remedy string) error {
		return fmt.Errorf("kubernetes: %w: %s is %q: %s", errInvalid, field, value, remedy)
	}
	if o.Namespace == "" {
		o.Namespace = "default"
	}
	if len(o.Namespace) > 63 || !dnsName.MatchString(o.Namespace) || strings.Contains(o.Namespace, ".") {
		return bad("namespace", o.Namespace, "it has at most 63 lower-case letters, digits and -")
	}
	if o.PodLabel == "" {
		return nil
	}
	if len(o.PodLabel) > maxLeaseName || !dnsName.MatchString(o.PodLabel) {
		return bad("pod label", o.PodLabel, "use a DNS name as leader.example.com; the name of the election is put behind it")
	}
	if o.Pod == "" {
		o.Pod = os.Getenv("POD_NAME")
	}
	if o.Pod == "" {
		o.Pod, _ = os.Hostname()
	}
	if len(o.Pod) > maxLeaseName || !dnsName.MatchString(o.Pod) {
		return bad("pod", o.Pod, "set the pod's name, or the variable POD_NAME from the field metadata.name")
	}
	return nil
}
