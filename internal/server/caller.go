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

// A caller is who makes a request, and from where. It belongs to the one request:
// what the SDK keeps of a session is the caller who began it.
type caller struct {
	id      *auth.Identity // nil: nobody is asked
	remote  string         // address, without port; "stdio"
	request string         // what logs call the request
	account string         // what its rate is counted under
}

// owner is who boxes belong to; "" is the local user.
func (c *caller) owner() string {
	if c.id == nil {
		return ""
	}
	return c.id.Owner
}

// who is the caller for people: the owner, who is "local" if nobody is asked, and
// "unknown" if the answer was not believed.
func (c *caller) who(asked bool) string {
	switch {
	case c.id != nil:
		return c.id.Owner
	case asked && c != stdioCaller:
		return "unknown"
	}
	return "local"
}

// has reports whether the caller may do what the scope is about.
func (c *caller) has(want auth.Scope) bool { return c.id == nil || c.id.Scopes.Has(want) }

// stdioCaller is whoever started the server as their child.
var stdioCaller = &caller{remote: "stdio"}

// nobody may do nothing: what did not come the way that it should have is refused.
var nobody = &caller{id: &auth.Identity{Owner: "nobody"}, remote: "unknown"}

type pipedKey struct{}

// piped marks the requests of a session over standard input and output: those have
// the context of their session.
func piped(ctx context.Context) context.Context { return context.WithValue(ctx, pipedKey{}, true) }

// callerOf returns who makes a request that the SDK hands on.
func callerOf(ctx context.Context, req mcp.Request) *caller {
	if c := originOf(req).caller; c != nil {
		return c
	}
	if ctx.Value(pipedKey{}) != nil {
		return stdioCaller
	}
	return nobody
}

type callerKey struct{}

// callerIn returns who makes an HTTP request that was let in.
func callerIn(r *http.Request) *caller {
	c, _ := r.Context().Value(callerKey{}).(*caller)
	return c
}

// newCaller says from where a request comes, and names it.
func (s *Server) newCaller(r *http.Request) *caller {
	c := &caller{remote: remote(r, s.opts.BehindProxy)}
	if s.opts.BehindProxy {
		c.request = plainWord(r.Header.Get(headerRequest))
	}
	if c.request == "" {
		c.request = strings.ToLower(rand.Text()[:16])
	}
	return c
}

// remote is the address that a request comes from. A proxy of ours adds the one
// that it saw last; what stands before that anybody may have written.
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
	if host, _, err := net.SplitHostPort(from); err == nil {
		from = host
	}
	addr, err := netip.ParseAddr(from)
	if err != nil {
		return "unknown"
	}
	return addr.Unmap().String()
}

// plainWord returns a word of somebody else's if it can stand in a log and a
// header, or "".
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

// bound ends a request when its token is revoked and, with expires, when it
// expires.
func (c *caller) bound(ctx context.Context, expires bool) (context.Context, func()) {
	if c.id == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	life := c.id.Life()
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
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
