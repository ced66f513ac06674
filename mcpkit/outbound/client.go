package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

const (
	// dialTimeout bounds a connection and its TLS handshake.
	dialTimeout = 10 * time.Second
	// minDialTimeout is the minimum time for each of several addresses, of which the
	// first may not respond.
	minDialTimeout = 2 * time.Second
	// idleTimeout closes unused connections.
	idleTimeout = 90 * time.Second
	// maxRedirects suffices for a redirect to https and one to a path with a trailing
	// slash.
	maxRedirects = 5
	// maxAddresses bounds the addresses of one name.
	maxAddresses = 32
	// maxHeader bounds the header of a response. Clients send some of it back, such as
	// the session id.
	maxHeader = 64 << 10
)

// NewClient returns an HTTP client for one server that connects only where the policy
// allows, for every request and redirect. It follows redirects only within one origin,
// or from http to https on the same host, because headers added by the caller are meant
// for that origin. Response bodies fail after maxBody bytes, except for event streams;
// 0 means no limit.
//
// With a nil policy it uses the proxy of the environment. Otherwise it uses none, since
// a proxy would have to be trusted to apply the policy. The caller may close idle
// connections when done.
func NewClient(server string, p *Policy, maxBody int64) *http.Client {
	d := &dialer{server: server, policy: p, resolver: net.DefaultResolver}
	c := newClient(server, p, maxBody, d.dial)
	if p == nil {
		c.Transport.(*guard).next.Proxy = http.ProxyFromEnvironment
	}
	return c
}

// NewSocketClient is [NewClient] for a trusted server on a Unix socket. All requests go
// there, whatever host they name.
func NewSocketClient(server, path string, maxBody int64) *http.Client {
	return newClient(server, nil, maxBody, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	})
}

func newClient(server string, p *Policy, maxBody int64, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &guard{server, p, &http.Transport{
			DialContext:            dial,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    dialTimeout,
			IdleConnTimeout:        idleTimeout,
			MaxIdleConnsPerHost:    4,
			MaxResponseHeaderBytes: maxHeader,
		}, maxBody},
		CheckRedirect: checkRedirect(server, p),
	}
}

func checkRedirect(server string, p *Policy) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("connect mcp server %q: more than %d redirects", server, maxRedirects)
		}
		if !sameOrigin(via[0].URL, req.URL) {
			return &Refusal{Server: server, Reason: Redirected, Target: target(req.URL)}
		}
		return p.Check(server, req.URL)
	}
}

// sameOrigin reports whether a request for one URL may be redirected to the other.
func sameOrigin(from, to *url.URL) bool {
	if from.Scheme == to.Scheme {
		return canonical(from.Hostname()) == canonical(to.Hostname()) && port(from) == port(to)
	}
	return from.Scheme == "http" && to.Scheme == "https" && canonical(from.Hostname()) == canonical(to.Hostname()) &&
		from.Port() == "" && port(to) == "443"
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

// A guard checks every request against the policy, not only redirects.
type guard struct {
	server  string
	policy  *Policy
	next    *http.Transport
	maxBody int64
}

// RoundTrip implements [http.RoundTripper].
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := g.policy.Check(g.server, req.URL); err != nil {
		return nil, err
	}
	res, err := g.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); g.maxBody > 0 && kind != "text/event-stream" {
		if res.ContentLength > g.maxBody {
			res.Body.Close()
			return nil, &TooLargeError{Server: g.server, Limit: g.maxBody}
		}
		res.Body = &bounded{res.Body, g.maxBody, &TooLargeError{Server: g.server, Limit: g.maxBody}}
	}
	return res, nil
}

// CloseIdleConnections supports [http.Client.CloseIdleConnections].
func (g *guard) CloseIdleConnections() { g.next.CloseIdleConnections() }

// TooLargeError reports a response body that exceeds the limit.
type TooLargeError struct {
	Server string
	Limit  int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("read response of mcp server %q: larger than %d bytes", e.Server, e.Limit)
}

// bounded is a body that returns an error beyond the limit, where io.LimitReader would
// return EOF.
type bounded struct {
	io.ReadCloser
	left int64
	err  error
}

func (b *bounded) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		return int(b.left), b.err
	}
	b.left -= int64(n)
	return n, err
}

// resolver is the part of [net.Resolver] in use.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

type dialer struct {
	server   string
	policy   *Policy
	resolver resolver
}

// dial resolves the name, checks all its addresses, and connects to one of them.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fmt.Errorf("no connection within %v", dialTimeout))
	defer cancel()
	if d.policy == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("connect mcp server %q: %w", d.server, err)
	}
	addrs, err := d.lookup(ctx, host)
	if err != nil {
		return nil, &Refusal{Server: d.server, Reason: Unresolved, Target: host, Cause: err}
	}
	// A single refused address suffices: such a name is suspicious.
	for _, addr := range addrs {
		if reason := d.policy.refusal(addr); reason != "" {
			return nil, &Refusal{Server: d.server, Reason: reason, Target: host + " at " + addr.String()}
		}
	}
	var errs []error
	nd := net.Dialer{Timeout: max(dialTimeout/time.Duration(len(addrs)), minDialTimeout)}
	for _, addr := range addrs {
		conn, err := nd.DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (d *dialer) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	timeout := d.policy.lookupTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	addrs, err := d.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, errors.New("it has no address")
	}
	return addrs[:min(len(addrs), maxAddresses)], nil
}
