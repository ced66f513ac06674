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

// initializeRequest starts a session with a server that requires no login.
const initializeRequest = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"login","version":"1"}}}`

// Login starts a new login, even if there is one already. It asks the server how, and
// then the user. Without Options.Authorize it fails with [ErrRequired], except for a
// client that logs in as itself.
func (h *Handler) Login(ctx context.Context) error {
	select {
	case h.authorizing <- struct{}{}:
		defer func() { <-h.authorizing }()
	case <-ctx.Done():
		return h.wrap(context.Cause(ctx))
	}
	h.userErr = nil
	return h.wrap(h.login(ctx))
}

func (h *Handler) login(ctx context.Context) error {
	res, err := h.probe(ctx, http.MethodPost)
	if err == nil && (res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed) {
		res, err = h.probe(ctx, http.MethodGet) // the HTTP+SSE transport
	}
	if err != nil {
		return err
	}
	asked := res.StatusCode == http.StatusUnauthorized
	if _, err := h.reread(); err != nil {
		return err
	}
	return h.startLogin(ctx, parseChallenge(res.Header), asked, nil)
}

// probe sends a request that the server refuses if it requires a login. The body of the
// response is closed.
func (h *Handler) probe(ctx context.Context, method string) (*http.Response, error) {
	body, accept := io.Reader(http.NoBody), "text/event-stream"
	if method == http.MethodPost {
		body, accept = strings.NewReader(initializeRequest), "application/json, text/event-stream"
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
		return nil, fmt.Errorf("probe %s: %w", showURL(h.server.URL), err)
	}
	return res, res.Body.Close()
}

// startLogin logs in with the scopes of the previous login and more.
func (h *Handler) startLogin(ctx context.Context, c challenge, asked bool, more []string) error {
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
		return h.loginAsClient(ctx, a, scopes)
	}
	if h.logins.opts.Authorize == nil {
		return h.required("this program cannot ask the user", nil)
	}
	if h.userErr != nil {
		return h.userErr
	}
	if h.redirect() == "" {
		return errors.New("no redirect address is set")
	}
	if !slices.Contains(a.meta.CodeChallengeMethodsSupported, pkceMethod) {
		return fmt.Errorf("the authorization server %s does not announce support for PKCE with %s, without which codes can be stolen", showURL(a.meta.Issuer), pkceMethod)
	}
	who, err := h.client(ctx, a, &r)
	if err != nil {
		return err
	}
	if who.registered {
		// Store it even if the login fails later, so that the next one does not
		// register another.
		if err := h.update(ctx, func(r *record) error { r.Client = who; return nil }); err != nil {
			return err
		}
	}
	t, err := h.askUser(ctx, a, &who, scopes)
	if err != nil {
		h.userErr = err
		if hasCode(err, "invalid_client") && h.server.ClientID == "" {
			err = errors.Join(err, h.update(ctx, func(r *record) error { r.Client = client{}; return nil }))
		}
		return err
	}
	return h.save(ctx, a, &who, scopes, t)
}

// scopes returns the scopes to request: those of the definition, of the server's
// challenge or of its metadata, together with those granted before by the same
// authority.
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
	const offline = "offline_access" // required for refresh tokens by servers that know it
	if !h.server.ClientCredentials && slices.Contains(a.meta.ScopesSupported, offline) {
		scopes = union(scopes, []string{offline})
	}
	return scopes
}

// askUser asks the user to approve the login and exchanges the code for a token.
func (h *Handler) askUser(ctx context.Context, a *authority, who *client, scopes []string) (*oauth2.Token, error) {
	state, verifier := rand.Text(), oauth2.GenerateVerifier()
	config := oauth2.Config{ClientID: who.ID, RedirectURL: who.Redirect, Scopes: scopes,
		Endpoint: oauth2.Endpoint{AuthURL: a.meta.AuthorizationEndpoint}}
	page := config.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("resource", a.resource))
	asking, cancel := context.WithTimeoutCause(ctx, userTimeout, fmt.Errorf("no approval within %v", userTimeout))
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

// loginAsClient requests a token for the client itself.
func (h *Handler) loginAsClient(ctx context.Context, a *authority, scopes []string) error {
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
	return h.save(ctx, a, &who, scopes, t)
}

// save stores a token as the login.
func (h *Handler) save(ctx context.Context, a *authority, who *client, scopes []string, t *oauth2.Token) error {
	// The token exists: do not lose it because the caller stops waiting now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	return h.update(ctx, func(r *record) error {
		saved := record{
			Server: r.Server, Issuer: a.meta.Issuer, Resource: a.resource, Token: a.meta.TokenEndpoint, Revocation: a.meta.RevocationEndpoint,
			Method: who.Method, Asked: scopes,
		}
		if h.server.ClientID == "" {
			saved.Client = *who
		}
		saved.setToken(t, h.logins.now())
		*r = saved
		return nil
	})
}

// Logout deletes the login and then revokes it at the authorization server, if that has
// an endpoint for it. It returns false if there was no login. If only the revocation
// failed, it returns true and the error.
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
