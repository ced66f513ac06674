// Package kubeapi is a client of the part of Kubernetes' API that boxes need: Pods,
// commands in them, Leases, runtime classes and network policies, with the fields used
// only. It treats the cluster's answers as untrusted: their size is bounded, and texts
// of errors are safe to print.
package kubeapi

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

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	// maxAnswer bounds one answer: a page of a list is the largest.
	maxAnswer = 16 << 20
	// maxStatus bounds the answer of a request that failed.
	maxStatus = 64 << 10
	// requestWait bounds one request, except for watches and commands.
	requestWait = 30 * time.Second
)

// Client talks to a cluster. All methods may be called concurrently.
type Client struct {
	cluster *kubeconfig.Cluster
	http    *http.Client
	upgrade *http.Client // HTTP/1.1, for WebSockets
}

// New returns a client. Close frees its connections.
func New(c *kubeconfig.Cluster) *Client {
	transport := func(http2 bool) *http.Transport {
		t := &http.Transport{
			Proxy: c.Proxy, TLSClientConfig: c.TLS.Clone(), ForceAttemptHTTP2: http2,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 4,
			ResponseHeaderTimeout: requestWait,
		}
		if !http2 {
			t.Protocols = new(http.Protocols)
			t.Protocols.SetHTTP1(true)
		}
		return t
	}
	// A redirect would carry the credentials elsewhere, and the API sends none.
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{
		cluster: c,
		http:    &http.Client{Transport: transport(true), CheckRedirect: refuse},
		upgrade: &http.Client{Transport: transport(false), CheckRedirect: refuse},
	}
}

// Close closes idle connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.upgrade.CloseIdleConnections()
}

// StatusError is the answer of a request that the cluster refused.
type StatusError struct {
	Op      string // method and path
	Code    int    // of HTTP
	Reason  string // a word, such as AlreadyExists
	Message string // one line for people
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%s: the cluster answers %d %s", e.Op, e.Code, e.Reason)
	}
	return fmt.Sprintf("%s: the cluster answers %d: %s", e.Op, e.Code, e.Message)
}

// Code returns the HTTP status with which the cluster refused a request, 0 for other
// errors.
func Code(err error) int {
	var e *StatusError
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// newStatusError makes an error of an answer, of which it reads a bounded part.
func newStatusError(op string, code int, body io.Reader) *StatusError {
	e := &StatusError{Op: op, Code: code, Reason: http.StatusText(code)}
	b, err := io.ReadAll(io.LimitReader(body, maxStatus))
	var s Status
	if err == nil && json.Unmarshal(b, &s) == nil && s.Kind == "Status" {
		if s.Reason != "" {
			e.Reason = line(s.Reason, 80)
		}
		e.Message = line(s.Message, 1000)
	} else {
		e.Message = line(strings.TrimSpace(string(b)), 200)
	}
	return e
}

// line makes a text of the cluster safe to show.
func line(s string, limit int) string { return visible.Line(truncate.Bytes(s, limit)) }

// request is one call of the API.
type request struct {
	method string
	path   []string // elements, escaped by do
	query  url.Values
	body   any    // as JSON; nil: none
	as     string // content type of body; default JSON
}

func (c *Client) url(path []string, query url.Values) *url.URL {
	u := *c.cluster.Server
	escaped := make([]string, len(path))
	for i, p := range path {
		escaped[i] = url.PathEscape(p)
	}
	u.RawPath = u.EscapedPath() + "/" + strings.Join(escaped, "/")
	u.Path += "/" + strings.Join(path, "/")
	u.RawQuery = query.Encode()
	return &u
}

// open sends a request and returns an answer of success, which the caller closes.
func (c *Client) open(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		b, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	u := c.url(r.path, r.query)
	op := r.method + " " + line(u.Path, 400) // it may have a name that the cluster gave
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "glovebox")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.as != "" {
		req.Header.Set("Content-Type", r.as)
	}
	if err := c.cluster.Auth.Apply(req); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("reach the cluster %s at %s: %w", c.cluster.Name, c.cluster.Server.Host, unwrapURL(err))
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer res.Body.Close()
		return nil, c.explain(newStatusError(op, res.StatusCode, res.Body))
	}
	return res, nil
}

// unwrapURL removes the URL, which the message has already.
func unwrapURL(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// explain adds what to do about credentials that the cluster rejects.
func (c *Client) explain(e *StatusError) error {
	switch e.Code {
	case http.StatusUnauthorized:
		c.cluster.Auth.Rejected()
		return fmt.Errorf("%w: the credentials of %s are wrong or have expired; log in again, and check with: kubectl auth whoami", e, c.cluster.Auth.User())
	case http.StatusForbidden:
		if !strings.Contains(e.Message, "exceeded quota") {
			return fmt.Errorf("%w; give %s the permissions of docs/kubernetes.md", e, c.cluster.Auth.User())
		}
	}
	return e
}

// do sends a request and decodes the answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, r request, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	res, err := c.open(ctx, r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: read answer: %w", r.method, strings.Join(r.path, "/"), err)
	case len(b) > maxAnswer:
		return fmt.Errorf("%s %s: the answer has more than %d bytes", r.method, strings.Join(r.path, "/"), maxAnswer)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s: the answer is not what Kubernetes sends: %w", r.method, strings.Join(r.path, "/"), err)
	}
	return nil
}
