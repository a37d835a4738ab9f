package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	// A connection that has said nothing for pingAfter is asked whether it lives, and closed when it has not answered within pingTimeout: a watch is silent for
	// as long as nothing happens, so nothing else would show that its server is gone.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second

	// dialTimeout bounds the making of a connection, which many requests may be waiting for.
	dialTimeout = 5 * time.Second

	// maxAnswer is more than any answer of an API server has.
	maxAnswer = 64 << 20
)

// A client speaks to the API server. Objects are JSON that is passed on as it came: fields that this package does not know survive. Nothing is retried, and nothing waits for
// a rate limit: a renewal that has to queue behind other requests comes too late.
type client struct {
	http        *http.Client
	base        *url.URL
	connections *connections
}

func newClient(given *rest.Config) (*client, error) {
	config := rest.CopyConfig(given)
	if config.UserAgent == "" {
		config.UserAgent = "tenure" // the name under which the API server lists the fields that a client manages
	}
	config.Timeout = 0 // every request has a deadline of its own, and watches have none
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w: address of the API server %q: %w", errInvalid, config.Host, err)
	}
	c := &client{base: base, connections: newConnections(config.Dial)}
	if config.Transport != nil { // the caller's own; it is no business of ours how it connects
		c.http, err = rest.HTTPClientFor(config)
		return c, err
	}
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w: certificates: %w", errInvalid, err)
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	transport := &http.Transport{
		Proxy: proxy, DialContext: c.connections.dial, TLSClientConfig: tls, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w: credentials: %w", errInvalid, err)
	}
	c.http = &http.Client{Transport: wrapped}
	return c, nil
}

// close ends all requests.
func (c *client) close() {
	c.http.CloseIdleConnections()
	c.connections.close(func(*connection) bool { return true })
}

// do makes a request, and decodes its answer into what into points to. An error of the API server is an *apierrors.StatusError.
func (c *client) do(ctx context.Context, method, path string, query url.Values, body, into any) error {
	began := time.Now()
	response, err := c.send(ctx, method, path, query, body)
	if err == nil {
		var text []byte
		text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		_ = response.Body.Close() // all that it had was read, or reading failed
		if err == nil && into != nil {
			err = json.Unmarshal(text, into)
		}
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		// A connection that has been silent all the time may be dead. The next request is not to wait for it too.
		if waited := time.Since(began); waited > time.Second {
			c.connections.close(func(held *connection) bool { return held.silentSince(began) })
		}
		return fmt.Errorf("kubernetes: %s %s: %w", method, path, context.Cause(ctx))
	}
	return fmt.Errorf("kubernetes: %s %s: %w", method, path, err)
}

// send makes a request and returns the answer when it has begun and is no error.
func (c *client) send(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	target := c.base.JoinPath(path)
	target.RawQuery = query.Encode()
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), reader)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
		if method == http.MethodPatch {
			request.Header.Set("Content-Type", "application/merge-patch+json")
		}
	}
	response, err := c.http.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the rest of it is said by the caller
		}
		return nil, err
	}
	if response.StatusCode < http.StatusBadRequest {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }() // only the error matters
	if response.StatusCode == http.StatusUnauthorized {
		// A client certificate that was renewed is shown by new connections only.
		c.connections.closeOld()
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return nil, err
	}
	return nil, statusError(response.StatusCode, text)
}

// statusError makes an error of what an API server, or a proxy before it, answered.
func statusError(code int, text []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(text, &status); err != nil || status.Status != metav1.StatusFailure {
		status = metav1.Status{Status: metav1.StatusFailure, Message: strings.TrimSpace(string(text[:min(len(text), 500)]))}
	}
	if status.Code == 0 {
		status.Code = int32(code)
	}
	if status.Message == "" {
		status.Message = http.StatusText(code)
	}
	status.Message = fmt.Sprintf("%s (%d)", status.Message, status.Code)
	return &apierrors.StatusError{ErrStatus: status}
}

// An event is one line of a watch.
type event struct {
	Type   string
	Object json.RawMessage
}

// watch calls f with every event of a watch until f or the watch fails, or the server ends it, which is io.EOF.
func (c *client) watch(ctx context.Context, path string, query url.Values, f func(event) error) error {
	response, err := c.send(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it is not wanted any more, or has ended
	// Idle watches get a bookmark every minute or so. HTTP/2 notices dead connections long before; this is for proxies that speak HTTP/1.1.
	silent := time.AfterFunc(maxSilence, func() { _ = response.Body.Close() })
	defer silent.Stop()
	lines := json.NewDecoder(response.Body)
	for {
		var e event
		if err := lines.Decode(&e); err != nil {
			return err
		}
		silent.Reset(maxSilence)
		if e.Type == "ERROR" {
			return statusError(http.StatusInternalServerError, e.Object)
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

const maxSilence = 3 * time.Minute

// dialer is what makes connections unless the configuration brings its own.
var dialer = &net.Dialer{
	Timeout:         dialTimeout,
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: pingAfter, Interval: 2 * time.Second, Count: 3},
}
