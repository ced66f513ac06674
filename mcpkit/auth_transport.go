package mcpkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// ErrNoLogin reports a server without login: it is not reached over HTTP, its
// definition has an Authorization header or disables logins, or the Manager has no
// Options.OAuth.
var ErrNoLogin = errors.New("the server has no login")

// OAuth calls f with the login handler of the server. It checks trust and expands the
// definition as a connection does, but does not connect. f must not retain the handler.
// The error may be [ErrNoLogin].
func (s *Session) OAuth(ctx context.Context, f func(auth.OAuthHandler) error) error {
	r, trust, err := s.resolve(ctx)
	if err != nil {
		return err
	}
	h, err := s.newLogin(r, s.policy(trust))
	if err == nil && h == nil {
		err = ErrNoLogin
	}
	if err != nil {
		return fmt.Errorf("log in to mcp server %q: %w", s.def.Name, err)
	}
	defer closeLogin(h)
	return f(h)
}

// newLogin returns the login handler of the server, or nil.
func (s *Session) newLogin(r *mcpjson.Resolved, policy *outbound.Policy) (auth.OAuthHandler, error) {
	// Over a socket, the URL's host has no meaning.
	if s.m.opts.OAuth == nil || s.m.opts.Dial != nil || r.URL == "" || r.Socket != "" || s.def.OAuth != nil && s.def.OAuth.Disabled {
		return nil, nil
	}
	for _, h := range r.Headers {
		if strings.EqualFold(h.Name, "Authorization") {
			return nil, nil
		}
	}
	return s.m.opts.OAuth(r, policy)
}

func closeLogin(h auth.OAuthHandler) {
	if c, ok := h.(io.Closer); ok {
		_ = c.Close() // errors were reported before
	}
}

// authTransport adds the token of a login to requests to the server's origin, over any
// transport. If the server refuses the token, it calls the login handler and retries.
type authTransport struct {
	next   http.RoundTripper
	login  auth.OAuthHandler
	origin string

	mu       sync.Mutex
	loginErr error // guarded by mu: error of the last login
}

func newAuthTransport(next http.RoundTripper, login auth.OAuthHandler, endpoint string) (*authTransport, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, errors.New("invalid URL")
	}
	return &authTransport{next: next, login: login, origin: origin(u)}, nil
}

// authorize obtains another token.
func (a *authTransport) authorize(req *http.Request, res *http.Response) error {
	err := a.login.Authorize(req.Context(), req, res)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.loginErr = err
	return err
}

// loginError returns the error of the login, if that failed, and otherwise err. After a
// failed login the connection tries other ways, whose errors are less specific.
func (a *authTransport) loginError(err error) error {
	if a == nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loginErr != nil {
		return a.loginErr
	}
	return err
}

// RoundTrip implements [http.RoundTripper].
func (a *authTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if origin(req.URL) != a.origin {
		return a.next.RoundTrip(req)
	}
	body := req.Body
	// A new token may lack a scope, so allow one retry for each kind of refusal.
	for retried := map[int]bool{}; ; {
		sent, err := a.withToken(req, body)
		if err != nil {
			if body != nil {
				body.Close()
			}
			return nil, err
		}
		res, err := a.next.RoundTrip(sent)
		// Ending a session is not worth a login.
		if err != nil || !refused(res) || retried[res.StatusCode] || req.Method == http.MethodDelete || body != nil && req.GetBody == nil {
			return res, err
		}
		retried[res.StatusCode] = true
		if err := a.authorize(sent, res); err != nil {
			return nil, err
		}
		if body != nil {
			if body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// refused reports whether another token may help.
func refused(res *http.Response) bool {
	switch res.StatusCode {
	case http.StatusUnauthorized:
		return true
	case http.StatusForbidden:
		return strings.Contains(strings.Join(res.Header.Values("WWW-Authenticate"), ","), "insufficient_scope")
	}
	return false
}

// withToken returns the request with the token, if there is one.
func (a *authTransport) withToken(req *http.Request, body io.ReadCloser) (*http.Request, error) {
	ctx := req.Context()
	req = req.Clone(ctx)
	req.Body = body
	source, err := a.login.TokenSource(ctx)
	if err != nil || source == nil {
		return req, err
	}
	token, err := source.Token()
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token.AccessToken)
	return req, nil
}

// CloseIdleConnections supports [http.Client.CloseIdleConnections].
func (a *authTransport) CloseIdleConnections() { closeIdle(a.next) }
