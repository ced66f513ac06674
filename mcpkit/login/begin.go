package login

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/oauth2"
)

// hello begins a session with a server that wants no login.
const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"login","version":"1"}}}`

// Login logs in, whether or not there is a login: it asks the server how, and a
// person. Without Options.Authorize it fails with [ErrRequired], but for a client
// that logs in as itself.
func (h *Handler) Login(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return h.fail(context.Cause(ctx))
	}
	h.failed = nil
	return h.fail(h.login(ctx))
}

func (h *Handler) login(ctx context.Context) error {
	res, err := h.probe(ctx, http.MethodPost)
	if err == nil && (res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed) {
		res, err = h.probe(ctx, http.MethodGet) // the older transport
	}
	if err != nil {
		return err
	}
	asked := res.StatusCode == http.StatusUnauthorized
	if _, err := h.reread(); err != nil {
		return err
	}
	return h.begin(ctx, challengeOf(res.Header), asked, nil)
}

// probe sends the server what it refuses if it wants a login. The body of the answer
// is closed.
func (h *Handler) probe(ctx context.Context, method string) (*http.Response, error) {
	body, accept := io.Reader(http.NoBody), "text/event-stream"
	if method == http.MethodPost {
		body, accept = strings.NewReader(hello), "application/json, text/event-stream"
	}
	req, err := http.NewRequestWithContext(ctx, method, h.url.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := h.do(req)
	if err != nil {
		return nil, fmt.Errorf("ask at %s: %w", shown(h.server.URL), err)
	}
	return res, res.Body.Close()
}

// begin logs in anew, for what was granted before and more.
func (h *Handler) begin(ctx context.Context, c challenge, asked bool, more []string) error {
	r, err := h.current()
	if err != nil {
		return err
	}
	a, err := h.discover(ctx, c, asked, r.Issuer)
	if err != nil {
		return err
	}
	scopes := h.scopes(a, c, &r, more)
	if h.server.ClientCredentials {
		return h.asItself(ctx, a, scopes)
	}
	if h.logins.opts.Authorize == nil {
		return h.needed("there is nobody to ask", nil)
	}
	if h.failed != nil {
		return h.failed
	}
	if h.redirect() == "" {
		return errors.New("there is no address for the browser to come back to")
	}
	if !slices.Contains(a.meta.CodeChallengeMethodsSupported, pkceMethod) {
		return fmt.Errorf("the authorization server %s does not say that it knows PKCE with %s, without which codes can be stolen", shown(a.meta.Issuer), pkceMethod)
	}
	who, err := h.client(ctx, a, &r)
	if err != nil {
		return err
	}
	if who.registered {
		// Also of a login that is given up: the next one is not to register another.
		if err := h.update(ctx, func(r *record) error { r.Client = who; return nil }); err != nil {
			return err
		}
	}
	t, err := h.ask(ctx, a, &who, scopes)
	if err != nil {
		h.failed = err
		if is(err, "invalid_client") && h.server.ClientID == "" {
			err = errors.Join(err, h.update(ctx, func(r *record) error { r.Client = client{}; return nil }))
		}
		return err
	}
	return h.keep(ctx, a, &who, scopes, t)
}

// scopes is what to ask for: what the definition says, or the server does, or
// what it has; with what was granted before by the same authority.
func (h *Handler) scopes(a *authority, c challenge, r *record, more []string) []string {
	scopes := h.server.Scopes
	if len(scopes) == 0 {
		scopes = c.scopes
	}
	if len(scopes) == 0 {
		scopes = a.scopes
	}
	if r.Issuer != "" && sameIssuer(r.Issuer, a.meta.Issuer) && (len(h.server.Scopes) == 0 || more != nil) {
		scopes = union(r.scopes(), scopes)
	}
	scopes = union(scopes, more, r.Wanted)
	const offline = "offline_access" // what refresh tokens are given for, where it is known
	if !h.server.ClientCredentials && slices.Contains(a.meta.ScopesSupported, offline) {
		scopes = union(scopes, []string{offline})
	}
	return scopes
}

// ask has a person say yes, and returns the token for it.
func (h *Handler) ask(ctx context.Context, a *authority, who *client, scopes []string) (*oauth2.Token, error) {
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	config := oauth2.Config{ClientID: who.ID, RedirectURL: who.Redirect, Scopes: scopes,
		Endpoint: oauth2.Endpoint{AuthURL: a.meta.AuthorizationEndpoint}}
	page := config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("resource", a.resource))
	asking, cancel := context.WithTimeoutCause(ctx, personTimeout, fmt.Errorf("nobody has said yes within %v", personTimeout))
	defer cancel()
	answer, err := h.logins.opts.Authorize(asking, h.server.Name, page)
	if err != nil {
		return nil, err
	}
	if err := answer.check(state, a); err != nil {
		return nil, err
	}
	return h.exchange(ctx, a.meta.TokenEndpoint, a.meta.Issuer, who, "authorization_code", url.Values{
		"code": {answer.Code}, "redirect_uri": {who.Redirect}, "code_verifier": {verifier}, "resource": {a.resource},
	})
}

// asItself gets a token for the client.
func (h *Handler) asItself(ctx context.Context, a *authority, scopes []string) error {
	who, err := h.client(ctx, a, &record{})
	if err != nil {
		return err
	}
	params := url.Values{"resource": {a.resource}}
	if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	t, err := h.exchange(ctx, a.meta.TokenEndpoint, a.meta.Issuer, &who, "client_credentials", params)
	if err != nil {
		return err
	}
	return h.keep(ctx, a, &who, scopes, t)
}

// keep makes a token the login.
func (h *Handler) keep(ctx context.Context, a *authority, who *client, scopes []string, t *oauth2.Token) error {
	// It is there, and not to be lost because somebody stops waiting now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	return h.update(ctx, func(r *record) error {
		kept := record{
			Server: r.Server, Issuer: a.meta.Issuer, Resource: a.resource, Token: a.meta.TokenEndpoint, Revocation: a.meta.RevocationEndpoint,
			Method: who.Method, Asked: scopes,
		}
		if h.server.ClientID == "" {
			kept.Client = *who
		}
		kept.take(t, h.logins.now())
		*r = kept
		return nil
	})
}

// Logout forgets the login, after telling the authorization server that it is over
// if that can be told. It returns false if there was none. The error is about the
// authorization server only if the login is forgotten all the same.
func (h *Handler) Logout(ctx context.Context) (bool, error) {
	var last record
	err := h.update(ctx, func(r *record) error {
		last = *r
		*r = record{Server: r.Server}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("log out of mcp server %q: %w", h.server.Name, err)
	}
	was := last.Access != "" || last.Refresh != ""
	if was && last.Revocation != "" {
		if err := h.revoke(ctx, &last); err != nil {
			return true, fmt.Errorf("log out of mcp server %q: %w", h.server.Name, err)
		}
	}
	return was, nil
}
