package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

const (
	// callTimeout bounds each request to an authorization server.
	callTimeout = 15 * time.Second
	// refreshTimeout bounds a refresh, including the wait for another process that
	// refreshes the same login within the same bound.
	refreshTimeout = 45 * time.Second
	// userTimeout bounds the wait for the user.
	userTimeout = 5 * time.Minute
	// maxStepUps bounds how often a handler requests more scopes. A server that keeps
	// asking for others would have the user prompted for ever.
	maxStepUps = 3
)

// A Handler holds the login to one server. Its methods may be called concurrently.
type Handler struct {
	logins *Logins
	server Server
	url    *url.URL
	policy *outbound.Policy
	hc     *http.Client
	store  document

	work sync.WaitGroup // refreshes, which may outlive their callers

	// authorizing holds a value during an authorization. It guards the following
	// fields.
	authorizing chan struct{}
	replacement string // the token obtained because the server refused the previous one
	stepUps     int    // how often more scopes were requested
	// userErr is the error of the last authorization by the user. It prevents a second
	// prompt when the transport tries another way to connect.
	userErr error

	refreshes singleflight.Group // in progress, by the token that the server refused

	mu     sync.Mutex
	closed bool    // guarded by mu
	latest *record // guarded by mu: nil until read
}

var _ auth.OAuthHandler = (*Handler)(nil)

func newHandler(l *Logins, s Server, u *url.URL, p *outbound.Policy) *Handler {
	connect := p
	if p == nil {
		// Requests also go to addresses that the server named: none of them may resolve
		// to a metadata service. A proxy resolves names itself.
		if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u}); err == nil && proxy == nil {
			connect = &outbound.Policy{AllowHTTP: true, AllowLocalhost: true, AllowPrivate: true, LookupTimeout: callTimeout}
		}
	}
	hc := outbound.NewClient(s.Name, connect, maxMetadata)
	hc.Timeout = callTimeout
	return &Handler{
		logins: l, server: s, url: u, policy: p, hc: hc,
		store: l.opts.Store.document(&s), authorizing: make(chan struct{}, 1),
	}
}

// Close waits for running refreshes, whose tokens would be lost, and closes idle
// connections. It returns nil.
func (h *Handler) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.work.Wait()
	h.hc.CloseIdleConnections()
	return nil
}

func (h *Handler) wrap(err error) error {
	if err == nil {
		return nil
	}
	var required *RequiredError
	if errors.As(err, &required) {
		return err
	}
	return fmt.Errorf("log in to mcp server %q: %w", h.server.Name, err)
}

func (h *Handler) required(reason string, cause error) error {
	return &RequiredError{Server: h.server.Name, Reason: reason, Cause: cause}
}

// current returns the record as this process last saw it.
func (h *Handler) current() (record, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.latest != nil {
		return *h.latest, nil
	}
	return h.readLocked()
}

// reread reads the stored record.
func (h *Handler) reread() (record, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.readLocked()
}

func (h *Handler) readLocked() (record, error) {
	r, err := read(h.store, &h.server)
	if err != nil {
		return record{}, err
	}
	h.latest = &r
	return r, nil
}

// errUnchanged tells update to leave the record as it is.
var errUnchanged = errors.New("unchanged")

// update changes the stored record and the one in memory.
func (h *Handler) update(ctx context.Context, change func(*record) error) error {
	var now record
	err := h.store.Update(ctx, func(r *record) error {
		*r = r.of(&h.server)
		err := change(r)
		now = *r
		return err
	})
	if err == nil || errors.Is(err, errUnchanged) {
		h.mu.Lock()
		h.latest = &now
		h.mu.Unlock()
		return nil
	}
	return err
}

// TokenSource implements [auth.OAuthHandler]. The source has a single token, which this
// method refreshes if it expires soon. The source is nil if there is no usable login:
// the server may not require one for the request.
func (h *Handler) TokenSource(ctx context.Context) (oauth2.TokenSource, error) {
	token, err := h.token(ctx)
	if errors.Is(err, ErrRequired) || err == nil && token == "" {
		return nil, nil
	}
	if err != nil {
		return nil, h.wrap(err)
	}
	return oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token, TokenType: "Bearer"}), nil
}

func (h *Handler) token(ctx context.Context) (string, error) {
	r, err := h.current()
	if err != nil {
		return "", err
	}
	if r.Access == "" && r.Refresh == "" || r.fresh(h.logins.now()) {
		return r.Access, nil
	}
	token, err := h.refresh(ctx, "")
	var answer *ServerError
	if errors.As(err, &answer) && answer.Status/100 == 4 && answer.Status != http.StatusTooManyRequests {
		return "", nil // if the server requires a login, Authorize starts one
	}
	return token, err
}

// refresh returns a token other than refused, or a fresh one if refused is empty.
// Concurrent calls for the same token share one refresh. It continues after ctx has
// ended, because the authorization server may accept the refresh token only once.
func (h *Handler) refresh(ctx context.Context, refused string) (string, error) {
	type result struct {
		token string
		err   error
	}
	done := make(chan result, 1)
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return "", errClosed
	}
	h.work.Go(func() {
		token, err, _ := h.refreshes.Do(refused, func() (any, error) {
			ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), refreshTimeout, fmt.Errorf("no answer within %v", refreshTimeout))
			defer cancel()
			return h.refreshNow(ctx, refused)
		})
		done <- result{token.(string), err}
	})
	h.mu.Unlock()
	select {
	case r := <-done:
		return r.token, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

var errClosed = errors.New("closed")

func (h *Handler) refreshNow(ctx context.Context, refused string) (string, error) {
	token := ""
	var unsaved record // a refreshed record that could not be stored
	var failed error
	err := h.update(ctx, func(r *record) error {
		// Another process may have refreshed the token during the wait for the lock.
		now := h.logins.now()
		if r.Access != refused && r.fresh(now) {
			token = r.Access
			return errUnchanged
		}
		t, err := h.renew(ctx, r)
		switch {
		case err == nil:
			r.setToken(t, h.logins.now())
			token, unsaved = r.Access, *r
			return nil
		case errors.Is(err, ErrRequired):
			failed = err
			r.Refresh = "" // invalid
			if r.Access == refused || !r.alive(now) {
				r.Access = ""
			} else {
				token, failed = r.Access, nil
			}
			return nil
		case r.Access != refused && r.alive(now):
			token = r.Access // still valid; the next request tries again
		default:
			failed = err
		}
		return errUnchanged
	})
	if err != nil && unsaved.Access != "" {
		// The new token is valid, and the refresh token that it was obtained with may
		// not be any more.
		h.logins.log.Warn("store the login to an mcp server", "server", h.server.Name, "err", err)
		h.mu.Lock()
		h.latest = &unsaved
		h.mu.Unlock()
		return token, nil
	}
	return token, errors.Join(failed, err)
}

// renew requests a token without involving the user.
func (h *Handler) renew(ctx context.Context, r *record) (*oauth2.Token, error) {
	c := h.clientOf(r)
	params := url.Values{"resource": {r.Resource}}
	if h.server.ClientCredentials {
		if r.Token == "" {
			return nil, h.required("nobody has logged in yet", nil)
		}
		if len(r.Asked) > 0 {
			params.Set("scope", strings.Join(r.Asked, " "))
		}
		return h.exchange(ctx, r.Token, r.Issuer, &c, "client_credentials", params)
	}
	if r.Refresh == "" {
		return nil, h.required("the login has ended", nil)
	}
	params.Set("refresh_token", r.Refresh)
	t, err := h.exchange(ctx, r.Token, r.Issuer, &c, "refresh_token", params)
	switch {
	case hasCode(err, "invalid_grant"):
		return nil, h.required("the login has ended", err)
	case hasCode(err, "invalid_client"), hasCode(err, "unauthorized_client"):
		if h.server.ClientID == "" {
			r.Client = client{} // deleted at the server
		}
		return nil, h.required("the authorization server no longer knows the client", err)
	}
	return t, err
}

// clientOf returns the client of a record.
func (h *Handler) clientOf(r *record) client {
	if h.server.ClientID != "" {
		return h.configured(r.Method)
	}
	return r.Client
}

// Authorize implements [auth.OAuthHandler]: it obtains another token after the server
// refused a request. The error is a [*RequiredError] if that needs the user and
// Options.Authorize is nil. Authorize closes the body of the response.
func (h *Handler) Authorize(ctx context.Context, req *http.Request, res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // a partial reason suffices
	res.Body.Close()
	c := parseChallenge(res.Header)
	if res.StatusCode == http.StatusForbidden && c.code != "insufficient_scope" {
		return fmt.Errorf("mcp server %q refuses the request: %s", h.server.Name, quote(res.Status+": "+string(text)))
	}
	select {
	case h.authorizing <- struct{}{}:
		defer func() { <-h.authorizing }()
	case <-ctx.Done():
		return h.wrap(context.Cause(ctx))
	}
	r, err := h.reread()
	if err != nil {
		return h.wrap(err)
	}
	_, used, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if r.Access != "" && r.Access != used && r.alive(h.logins.now()) {
		return nil // another request or process has replaced it
	}
	if res.StatusCode == http.StatusForbidden {
		return h.wrap(h.stepUp(ctx, c, &r))
	}
	return h.wrap(h.replaceToken(ctx, c, &r, used))
}

// maxRefusal bounds the part of a refusal's body that is read.
const maxRefusal = 1 << 10

// minUse is the minimum time after which the server may refuse a new token because it
// has expired. A token refused earlier is one that the server does not accept at all.
const minUse = time.Minute

// replaceToken obtains another token after the server refused one.
func (h *Handler) replaceToken(ctx context.Context, c challenge, r *record, used string) error {
	// A token that is refused right after a refresh would be refreshed for ever.
	rejected := used != "" && used == h.replacement && h.logins.now().Sub(r.Begun) < minUse
	if r.Refresh != "" && !rejected {
		// A server that has moved to another authorization server does not accept
		// tokens of the old one.
		a, err := h.discover(ctx, c, true, r.Issuer)
		if err != nil || sameIssuer(a.meta.Issuer, r.Issuer) {
			if err == nil && a.meta.TokenEndpoint != r.Token {
				err = h.update(ctx, func(r *record) error { r.Token = a.meta.TokenEndpoint; return nil })
				if err != nil {
					return err
				}
			}
			token, err := h.refresh(ctx, r.Access)
			if err == nil {
				h.replacement = token
				return nil
			}
			if !errors.Is(err, ErrRequired) {
				return err
			}
			if *r, err = h.current(); err != nil {
				return err
			}
		}
	}
	if !h.server.ClientCredentials && h.logins.opts.Authorize == nil {
		switch {
		case r.Access != "":
			return h.required("it no longer accepts the token"+inParens(c.code), nil)
		case used != "", r.Issuer != "":
			return h.required("the login has ended", nil)
		}
		return h.required("nobody has logged in yet", nil)
	}
	return h.startLogin(ctx, c, true, nil)
}

func inParens(code string) string {
	if code == "" {
		return ""
	}
	return " (" + quote(code) + ")"
}

// stepUp requests a token with more scopes than the last one.
func (h *Handler) stepUp(ctx context.Context, c challenge, r *record) error {
	more := c.scopes
	if len(more) == 0 {
		a, err := h.discover(ctx, c, true, r.Issuer)
		if err != nil {
			return err
		}
		more = a.scopes
	}
	more = slices.DeleteFunc(slices.Clone(more), func(s string) bool { return slices.Contains(r.Asked, s) })
	what := quote(strings.Join(c.scopes, " "))
	switch {
	case len(more) == 0:
		return fmt.Errorf("the server requires the scopes %q, which were already requested", what)
	case h.stepUps >= maxStepUps:
		return fmt.Errorf("the server requires the scopes %q, after %d requests for others", what, h.stepUps)
	case !h.server.ClientCredentials && h.logins.opts.Authorize == nil:
		err := h.update(ctx, func(r *record) error {
			wanted := union(r.Wanted, more)
			if len(wanted) == len(r.Wanted) {
				return errUnchanged
			}
			r.Wanted = wanted
			return nil
		})
		return h.required(fmt.Sprintf("it wants the scopes %q for this", what), err)
	}
	h.stepUps++
	return h.startLogin(ctx, c, true, more)
}
