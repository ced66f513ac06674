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
	// minDial is what each of many addresses has, of which the first may be silent.
	minDial = 2 * time.Second
	// idleTimeout ends connections that nobody uses.
	idleTimeout = 90 * time.Second
	// maxRedirects is enough for http to https and for a slash at the end.
	maxRedirects = 5
	// maxAddresses bounds what one name may stand for.
	maxAddresses = 32
	// maxHeader bounds the header of an answer, of which a client sends some, such as
	// the id of a session, back with each request.
	maxHeader = 64 << 10
)

// NewClient returns an HTTP client for one server that connects only where the
// policy allows, on every request and every redirect, and follows redirects only
// within one origin or from http to https of the same host: the headers that a
// caller adds are meant for no other. Bodies of answers that are not event streams
// are cut off with an error after maxBody bytes; 0 means no limit.
//
// For a nil policy it uses the proxy that the environment names; else none, which
// would have to be trusted to keep the rules. The caller may close idle
// connections when it is done.
func NewClient(server string, p *Policy, maxBody int64) *http.Client {
	d := &dialer{server: server, policy: p, resolver: net.DefaultResolver}
	c := newClient(server, p, maxBody, d.dial)
	if p == nil {
		c.Transport.(*guard).next.Proxy = http.ProxyFromEnvironment
	}
	return c
}

// NewSocketClient is [NewClient] for a trusted server on a Unix socket, to which all
// requests go, whatever host they name.
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

// sameOrigin reports whether what was meant for one URL may be sent to the other.
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

// A guard checks every request, also those that no redirect led to.
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

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (g *guard) CloseIdleConnections() { g.next.CloseIdleConnections() }

// TooLargeError says that the body of an answer is larger than what was allowed.
type TooLargeError struct {
	Server string
	Limit  int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("read answer of mcp server %q: larger than %d bytes", e.Server, e.Limit)
}

// bounded fails where io.LimitReader would pretend that the body ends.
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

// resolver is what of a [net.Resolver] is used.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

type dialer struct {
	server   string
	policy   *Policy
	resolver resolver
}

// dial looks the name up, judges every address that it stands for, and connects to
// one of just these.
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
	// One address that is refused is enough: such a name is up to something.
	for _, addr := range addrs {
		if reason := d.policy.judge(addr); reason != "" {
			return nil, &Refusal{Server: d.server, Reason: reason, Target: host + " at " + addr.String()}
		}
	}
	var errs []error
	nd := net.Dialer{Timeout: max(dialTimeout/time.Duration(len(addrs)), minDial)}
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
