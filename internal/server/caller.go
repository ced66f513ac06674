package server

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

const headerRequest = "X-Request-Id"

// A caller is the identity and address that a request comes from. It belongs to that
// request only: others of the session may have another.
type caller struct {
	id      *auth.Identity // nil: the server does not authenticate
	remote  string         // address, without port; "stdio"
	request string         // id of the request, for logs
	rateKey string         // key of its rate limit

	declinesCode bool // the client leaves out code mode
}

// owner returns the owner of the caller's boxes; "" is the local user.
func (c *caller) owner() string {
	if c.id == nil {
		return ""
	}
	return c.id.Owner
}

// displayName names the caller for people: the owner, "local" without authentication, or
// "unknown" if authentication failed.
func (c *caller) displayName(authenticates bool) string {
	switch {
	case c.id != nil:
		return c.id.Owner
	case authenticates && c != stdioCaller:
		return "unknown"
	}
	return "local"
}

// has reports whether the caller has a scope.
func (c *caller) has(want auth.Scope) bool { return c.id == nil || c.id.Scopes.Has(want) }

// stdioCaller is the process that started the server as its child.
var stdioCaller = &caller{remote: "stdio"}

// unknownCaller makes the requests whose source is not known. It has no scopes.
var unknownCaller = &caller{id: &auth.Identity{Owner: "nobody"}, remote: "unknown"}

type stdioKey struct{}

// markStdio marks the context of a session over standard input and output, which its
// requests inherit. Calls that begin after the end of calls are cancelled for its cause.
func markStdio(ctx, calls context.Context) context.Context {
	return context.WithValue(ctx, stdioKey{}, calls)
}

// callerOf returns the caller of a request that the SDK serves.
func callerOf(ctx context.Context, req mcp.Request) *caller {
	if c := sourceOf(req).caller; c != nil {
		return c
	}
	if ctx.Value(stdioKey{}) != nil {
		return stdioCaller
	}
	return unknownCaller
}

type callerKey struct{}

// callerIn returns the caller of an authenticated HTTP request.
func callerIn(r *http.Request) *caller {
	c, _ := r.Context().Value(callerKey{}).(*caller)
	return c
}

// newCaller returns the caller of an HTTP request, not authenticated yet.
func (s *Server) newCaller(r *http.Request) *caller {
	c := &caller{remote: remote(r, s.opts.BehindProxy), declinesCode: declinesCodeMode(r)}
	if s.opts.BehindProxy {
		c.request = plainWord(r.Header.Get(headerRequest))
	}
	if c.request == "" {
		c.request = strings.ToLower(rand.Text()[:16])
	}
	return c
}

// remote returns the client's address. Behind a proxy that is the last address in
// X-Forwarded-For, which the proxy added; the client may have written the others.
func remote(r *http.Request, proxied bool) string {
	from := r.RemoteAddr
	if proxied {
		if all := r.Header.Values("X-Forwarded-For"); len(all) > 0 {
			list := all[len(all)-1]
			last := strings.TrimSpace(list[strings.LastIndexByte(list, ',')+1:])
			if addr, err := netip.ParseAddr(strings.Trim(last, "[]")); err == nil {
				return addr.Unmap().String()
			}
		}
	}
	return addressOf(from)
}

// addressOf returns the address in host:port, or "unknown".
func addressOf(from string) string {
	if host, _, err := net.SplitHostPort(from); err == nil {
		from = host
	}
	addr, err := netip.ParseAddr(from)
	if err != nil {
		return "unknown"
	}
	return addr.Unmap().String()
}

// plainWord returns a word from outside if it is safe in logs and headers, or "".
func plainWord(s string) string {
	if len(s) > 64 {
		return ""
	}
	for i := range len(s) {
		b := s[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '.') {
			return ""
		}
	}
	return s
}

// bound returns a context that ends when the caller's token is revoked and, with
// expires, when it expires.
func (c *caller) bound(ctx context.Context, expires bool) (context.Context, func()) {
	if c.id == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	revoked := c.id.Revoked()
	stop := context.AfterFunc(revoked, func() { cancel(context.Cause(revoked)) })
	var timer *time.Timer
	if expires && !c.id.Expires.IsZero() {
		timer = time.AfterFunc(time.Until(c.id.Expires), func() { cancel(errExpired) })
	}
	return ctx, func() {
		if timer != nil {
			timer.Stop()
		}
		stop()
		cancel(nil)
	}
}
