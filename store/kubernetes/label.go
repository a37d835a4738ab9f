package kubernetes

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// labels keep the label of the leading pod, by which a Service can select it. It is set a little after the election was won, and taken off others then: a leader
// that died or hangs cannot do it. Methods may be called concurrently.
type labels struct {
	store *Store

	mu     sync.Mutex
	states map[string]*labelState // by Lease
}

type labelState struct {
	want, have bool
	busy       chan struct{} // closed when the work under way has ended; nil: there is none
}

const maxLabelName = 63

func newLabels(s *Store) *labels { return &labels{store: s, states: make(map[string]*labelState)} }

// key returns the label of an election. A name that is too long for one is that of its hash.
func (b *labels) key(lease string) string {
	if len(lease) > maxLabelName {
		name := lease
		if !hashed.MatchString(name) {
			name = LeaseName("\x00" + name) // no election has such a name
		}
		lease = name[strings.LastIndexByte(name, '.')+1:]
	}
	return b.store.opts.PodLabel + "/" + lease
}

// set says whether this pod leads, and returns at once.
func (b *labels) set(lease string, leads bool) {
	if b.store.opts.PodLabel == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.states[lease]
	if state == nil {
		if !leads {
			return
		}
		state = &labelState{}
		b.states[lease] = state
	}
	state.want = leads
	if state.busy != nil || state.want == state.have {
		return
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if b.store.closed {
		return
	}
	state.busy = make(chan struct{})
	b.store.running.Go(func() { b.work(lease, state) })
}

// clear takes the label off this pod, and returns when that is done or the context has ended.
func (b *labels) clear(ctx context.Context, lease string) {
	b.set(lease, false)
	b.mu.Lock()
	var busy chan struct{}
	if state := b.states[lease]; state != nil {
		busy = state.busy
	}
	b.mu.Unlock()
	if busy == nil {
		return
	}
	select {
	case <-busy:
	case <-ctx.Done():
	}
}

// work makes the pods' labels what they should be, however often it fails.
func (b *labels) work(lease string, state *labelState) {
	wait := retryMin
	for {
		b.mu.Lock()
		want := state.want
		if want == state.have || b.store.ctx.Err() != nil {
			close(state.busy)
			state.busy = nil
			if !want {
				delete(b.states, lease)
			}
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		ctx, cancel := context.WithTimeout(b.store.ctx, setupLimit)
		err := b.apply(ctx, b.key(lease), want)
		cancel()
		b.mu.Lock()
		if err == nil {
			state.have, wait = want, retryMin
		}
		b.mu.Unlock()
		if err != nil {
			b.store.warn("the label of the leading pod cannot be set", "pod", b.store.opts.Pod, "error", err)
			_ = pause(b.store.ctx, wait) // the loop looks whether the store is closed
			wait = min(2*wait, retryMax)
		}
	}
}

func (b *labels) apply(ctx context.Context, key string, leads bool) error {
	if !leads {
		return b.patch(ctx, b.store.opts.Pod, key, nil)
	}
	var pods struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	var text json.RawMessage
	err := b.store.client.do(ctx, http.MethodGet, b.path(""), url.Values{"labelSelector": {key + "=true"}}, nil, &text)
	if err == nil {
		err = json.Unmarshal(text, &pods)
	}
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.Metadata.Name == b.store.opts.Pod {
			continue
		}
		if err := b.patch(ctx, pod.Metadata.Name, key, nil); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return b.patch(ctx, b.store.opts.Pod, key, "true")
}

func (b *labels) patch(ctx context.Context, pod, key string, value any) error {
	return b.store.client.do(ctx, http.MethodPatch, b.path(pod), nil, map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}}, nil)
}

func (b *labels) path(pod string) string {
	path := "/api/v1/namespaces/" + url.PathEscape(b.store.namespace) + "/pods"
	if pod != "" {
		path += "/" + url.PathEscape(pod)
	}
	return path
}
