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
	// refreshTimeout bounds a refresh with the wait for another process that does
	// the same, which has no more.
	refreshTimeout = 45 * time.Second
	// personTimeout bounds the wait for a person.
	personTimeout = 5 * time.Minute
	// maxSteps bounds how often a handler asks for more scopes: a server that wants
	// another each time would have somebody asked for ever.
	maxSteps = 3
)

// A Handler keeps the login to one server. Its methods may be called concurrently.
type Handler struct {
	logins *Logins
	server Server
	url    *url.URL
	policy *outbound.Policy
	hc     *http.Client
	kept   document

	work sync.WaitGroup // refreshes under way, which outlive who waits for them

	// turn holds a value while somebody authorizes. It guards what is below.
	turn   chan struct{}
	forced string // the token that was got because the server refused another
	steps  int    // how often more scopes were asked for
	// failed is why an authorization by a person came to nothing. Whoever said no is
	// not asked again because the transport tries another way.
	failed error

	refreshes singleflight.Group // in progress, by the token that the server refused

	mu     sync.Mutex
	closed bool    // guarded by mu
	latest *record // guarded by mu: nil until read
}

var _ auth.OAuthHandler = (*Handler)(nil)

func newHandler(l *Logins, s Server, u *url.URL, p *outbound.Policy) *Handler {
	hc := outbound.NewClient(s.Name, p, maxMetadata)
	hc.Timeout = callTimeout
	return &Handler{
		logins: l, server: s, url: u, policy: p, hc: hc,
		kept: l.opts.Store.document(&s), turn: make(chan struct{}, 1),
	}
}

// Close waits for a refresh that is under way, whose token would be lost, and gives
// up idle connections. It returns nil.
func (h *Handler) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.work.Wait()
	h.hc.CloseIdleConnections()
	return nil
}

func (h *Handler) fail(err error) error {
	if err == nil {
		return nil
	}
	var needed *RequiredError
	if errors.As(err, &needed) {
		return err
	}
	return fmt.Errorf("log in to mcp server %q: %w", h.server.Name, err)
}

func (h *Handler) needed(reason string, cause error) error {
	return &RequiredError{Server: h.server.Name, Reason: reason, Cause: cause}
}

// current is the record as this process knows it.
func (h *Handler) current() (record, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.latest != nil {
		return *h.latest, nil
	}
	return h.readLocked()
}

// reread is the record as it is.
func (h *Handler) reread() (record, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.readLocked()
}

func (h *Handler) readLocked() (record, error) {
	r, err := read(h.kept, &h.server)
	if err != nil {
		return record{}, err
	}
	h.latest = &r
	return r, nil
}

// errKeep leaves the record as it is.
var errKeep = errors.New("unchanged")

// update changes what is kept and what is known.
func (h *Handler) update(ctx context.Context, change func(*record) error) error {
	var now record
	err := h.kept.Update(ctx, func(r *record) error {
		*r = r.of(&h.server)
		err := change(r)
		now = *r
		return err
	})
	if err == nil || errors.Is(err, errKeep) {
		h.mu.Lock()
		h.latest = &now
		h.mu.Unlock()
		return nil
	}
	return err
}

// TokenSource implements [auth.OAuthHandler]. The source has one token, which is
// refreshed here if its end is near. It is nil if there is no login, or none that
// can be used any more: the server may want none for what is asked.
func (h *Handler) TokenSource(ctx context.Context) (oauth2.TokenSource, error) {
	token, err := h.token(ctx)
	if errors.Is(err, ErrRequired) || err == nil && token == "" {
		return nil, nil
	}
	if err != nil {
		return nil, h.fail(err)
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
		return "", nil // once the server has asked for a login, it is looked for elsewhere
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
	var got record // an answer that could not be kept
	var failed error
	err := h.update(ctx, func(r *record) error {
		// Another process may have been here while this one waited.
		now := h.logins.now()
		if r.Access != refused && r.fresh(now) {
			token = r.Access
			return errKeep
		}
		t, err := h.renew(ctx, r)
		switch {
		case err == nil:
			r.take(t, h.logins.now())
			token, got = r.Access, *r
			return nil
		case errors.Is(err, ErrRequired):
			failed = err
			r.Refresh = "" // it is good for nothing
			if r.Access == refused || !r.alive(now) {
				r.Access = ""
			} else {
				token, failed = r.Access, nil
			}
			return nil
		case r.Access != refused && r.alive(now):
			token = r.Access // there is time to try again
		default:
			failed = err
		}
		return errKeep
	})
	if err != nil && got.Access != "" {
		// The token is good, and the one that it was got with is not any more.
		h.logins.log.Warn("keep the login to an mcp server", "server", h.server.Name, "err", err)
		h.mu.Lock()
		h.latest = &got
		h.mu.Unlock()
		return token, nil
	}
	return token, errors.Join(failed, err)
}

// renew asks for a token without asking a person.
func (h *Handler) renew(ctx context.Context, r *record) (*oauth2.Token, error) {
	c := h.clientOf(r)
	params := url.Values{"resource": {r.Resource}}
	if h.server.ClientCredentials {
		if r.Token == "" {
			return nil, h.needed("it has not been used yet", nil)
		}
		if len(r.Asked) > 0 {
			params.Set("scope", strings.Join(r.Asked, " "))
		}
		return h.exchange(ctx, r.Token, r.Issuer, &c, "client_credentials", params)
	}
	if r.Refresh == "" {
		return nil, h.needed("the login has ended", nil)
	}
	params.Set("refresh_token", r.Refresh)
	t, err := h.exchange(ctx, r.Token, r.Issuer, &c, "refresh_token", params)
	switch {
	case is(err, "invalid_grant"):
		return nil, h.needed("the login has ended", err)
	case is(err, "invalid_client"), is(err, "unauthorized_client"):
		if h.server.ClientID == "" {
			r.Client = client{} // forgotten there
		}
		return nil, h.needed("the client of the login is not known any more", err)
	}
	return t, err
}

// clientOf is who the login of the record is for.
func (h *Handler) clientOf(r *record) client {
	if h.server.ClientID != "" {
		return h.configured(r.Method)
	}
	return r.Client
}

// Authorize implements [auth.OAuthHandler]: it gets a token that may be tried in
// place of the one that the server refused. The error is a [*RequiredError] if that takes
// a person and nobody can be asked. It closes the body of the answer.
func (h *Handler) Authorize(ctx context.Context, req *http.Request, res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // half of a reason is one
	res.Body.Close()
	c := challengeOf(res.Header)
	if res.StatusCode == http.StatusForbidden && c.code != "insufficient_scope" {
		return fmt.Errorf("mcp server %q refuses the request: %s", h.server.Name, said(res.Status+": "+string(text)))
	}
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return h.fail(context.Cause(ctx))
	}
	r, err := h.reread()
	if err != nil {
		return h.fail(err)
	}
	_, used, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if r.Access != "" && r.Access != used && r.alive(h.logins.now()) {
		return nil // somebody has been faster
	}
	if res.StatusCode == http.StatusForbidden {
		return h.fail(h.stepUp(ctx, c, &r))
	}
	return h.fail(h.again(ctx, c, &r, used))
}

// maxRefusal bounds what is read of a refusal.
const maxRefusal = 1 << 10

// tooSoon is for a token to be refused because it is not what the server wants.
const tooSoon = time.Minute

// again gets another token in place of one that the server does not take.
func (h *Handler) again(ctx context.Context, c challenge, r *record, used string) error {
	// One that is refused as soon as it is there would be refreshed for ever.
	useless := used != "" && used == h.forced && h.logins.now().Sub(r.Begun) < tooSoon
	if r.Refresh != "" && !useless {
		// A server that has moved to another authority wants none of the old one's.
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
				h.forced = token
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
			return h.needed("it does not take the token any more"+quoted(c.code), nil)
		case used != "", r.Issuer != "":
			return h.needed("the login has ended", nil)
		}
		return h.needed("nobody has logged in yet", nil)
	}
	return h.begin(ctx, c, true, nil)
}

func quoted(code string) string {
	if code == "" {
		return ""
	}
	return " (" + said(code) + ")"
}

// stepUp asks for a token for more than the last.
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
	what := said(strings.Join(c.scopes, " "))
	switch {
	case len(more) == 0:
		return fmt.Errorf("the server wants the scopes %q, which were asked for already", what)
	case h.steps >= maxSteps:
		return fmt.Errorf("the server wants the scopes %q, after others %d times", what, h.steps)
	case !h.server.ClientCredentials && h.logins.opts.Authorize == nil:
		err := h.update(ctx, func(r *record) error {
			wanted := union(r.Wanted, more)
			if len(wanted) == len(r.Wanted) {
				return errKeep
			}
			r.Wanted = wanted
			return nil
		})
		return h.needed(fmt.Sprintf("it wants the scopes %q for this", what), err)
	}
	h.steps++
	return h.begin(ctx, c, true, more)
}
