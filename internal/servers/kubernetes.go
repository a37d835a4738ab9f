package servers

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

//go:embed kubernetes.mod.txt
var kubernetesMod string

//go:embed kubernetes.sum.txt
var kubernetesSum string

const kubernetesVersion = "1.37.2"

var kubernetesSource = source{
	name: "kube-apiserver", version: kubernetesVersion, mod: kubernetesMod, sum: kubernetesSum,
	programs: map[string]string{"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver"},
	ldflags:  "-X k8s.io/component-base/version.gitVersion=v" + kubernetesVersion,
}

// KubernetesProgram returns the path of kube-apiserver.
func KubernetesProgram() (string, error) { return kubernetesSource.program("kube-apiserver") }

// BuildKubernetes builds kube-apiserver unless it is there.
func BuildKubernetes(ctx context.Context) error { return kubernetesSource.build(ctx) }

// A Kubernetes is an API server that keeps its objects in an etcd of its own. It authorizes by RBAC and has no controllers, no scheduler and no nodes. Its methods are
// not for concurrent use.
type Kubernetes struct {
	program, dir, token string
	etcd                *Etcd
	port                int
	running             *process
}

// StartKubernetes starts an API server and an etcd. Both run until Close; ctx bounds the start only.
func StartKubernetes(ctx context.Context) (*Kubernetes, error) {
	if !supported {
		return nil, ErrUnsupported
	}
	program, err := KubernetesProgram()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tenure-kubernetes-")
	if err != nil {
		return nil, err
	}
	k := &Kubernetes{program: program, dir: dir, token: rand.Text()}
	if k.etcd, err = StartEtcd(ctx); err == nil {
		err = k.create()
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	// Another process may take the port between the look and the start.
	for try := 0; ; try++ {
		if k.port, err = freePort(); err == nil {
			err = k.Start(ctx)
		}
		if err == nil {
			err = k.writeConfig()
		}
		if err == nil {
			return k, nil
		}
		if try == 2 || ctx.Err() != nil {
			return nil, errors.Join(err, k.Close())
		}
		k.Kill()
	}
}

// create writes the key that signs the tokens of service accounts, and the list of users, which has the administrator alone.
func (k *Kubernetes) create() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(k.path("accounts.key"), text, 0o600); err != nil {
		return err
	}
	return os.WriteFile(k.path("tokens.csv"), []byte(k.token+",admin,admin,system:masters\n"), 0o600)
}

func (k *Kubernetes) path(name string) string { return filepath.Join(k.dir, name) }

// writeConfig writes a kubeconfig of the administrator.
func (k *Kubernetes) writeConfig() error {
	return os.WriteFile(k.Config(), []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: admin
clusters:
- name: test
  cluster:
    server: %s
    certificate-authority: %s
users:
- name: admin
  user:
    token: %s
contexts:
- name: admin
  context: {cluster: test, user: admin}
`, k.ServerURL(), k.Certificate(), k.token)), 0o600)
}

// Config returns the path of a kubeconfig for the administrator.
func (k *Kubernetes) Config() string { return k.path("kubeconfig") }

// Certificate returns the path of the server's certificate, with that of the authority that signed it.
func (k *Kubernetes) Certificate() string { return k.path("certificates/apiserver.crt") }

// Addr returns the API server's host and port.
func (k *Kubernetes) Addr() string { return loopback(k.port) }

// ServerURL returns the URL of the API server, as kubectl wants it.
func (k *Kubernetes) ServerURL() string { return "https://" + k.Addr() }

// URL returns the store URL of namespace default for the administrator.
func (k *Kubernetes) URL() string {
	u := url.URL{Scheme: "kubernetes", Host: "default", RawQuery: url.Values{"kubeconfig": {k.Config()}}.Encode()}
	return u.String()
}

// Etcd returns the server that has the API server's objects.
func (k *Kubernetes) Etcd() *Etcd { return k.etcd }

// Start starts the API server, on the port and with the objects that it had before, and waits until it serves.
func (k *Kubernetes) Start(ctx context.Context) error {
	if k.running != nil && !k.running.ended() {
		return errors.New("kube-apiserver runs already: stop or kill it first")
	}
	// Without priority and fairness there is less to compute for servers that share a machine with all tests.
	p, err := startOwn(k.dir, syscall.SIGKILL, k.program, "--etcd-servers="+k.etcd.Endpoint(), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(k.port), "--cert-dir="+k.path("certificates"), "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+k.path("accounts.key"),
		"--service-account-signing-key-file="+k.path("accounts.key"), "--authorization-mode=RBAC", "--token-auth-file="+k.path("tokens.csv"),
		"--endpoint-reconciler-type=none", "--enable-priority-and-fairness=false", "--disable-admission-plugins=ServiceAccount")
	if err != nil {
		return err
	}
	k.running = p
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return p.waitReady(ctx, func() error {
		// The namespace is made a little after the server calls itself ready.
		for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
			if err := k.probe(client, path); err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *Kubernetes) probe(client *http.Client, path string) (err error) {
	request, err := http.NewRequest(http.MethodGet, k.ServerURL()+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+k.token)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, text)
	}
	return err
}

// Stop ends the API server as an operator would, and waits for its end. Its etcd goes on.
func (k *Kubernetes) Stop() {
	if k.running != nil {
		k.running.stop(syscall.SIGTERM)
	}
}

// Kill ends the API server at once with SIGKILL. Its etcd goes on.
func (k *Kubernetes) Kill() {
	if k.running != nil {
		k.running.kill()
	}
}

// Pause stops a running API server with SIGSTOP: its connections stay open and nothing answers.
func (k *Kubernetes) Pause() { pauseTree(k.running.cmd.Process.Pid) }

// Resume lets a paused API server go on. It has no effect on one that is not paused.
func (k *Kubernetes) Resume() { resumeTree(k.running.cmd.Process.Pid) }

// Log returns the last lines that the API server printed.
func (k *Kubernetes) Log() string { return logTail(k.path("log")) }

// Close ends both servers, paused or not, and removes their data.
func (k *Kubernetes) Close() error {
	k.Kill()
	var err error
	if k.etcd != nil {
		err = k.etcd.Close()
	}
	return errors.Join(err, os.RemoveAll(k.dir))
}
