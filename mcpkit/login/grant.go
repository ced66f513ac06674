package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// pkceMethod is the only PKCE method in use. A server without it is refused.
const pkceMethod = "S256"

// exchange requests a token from a token endpoint. Its error quotes nothing of the
// response except the fields meant for people.
func (h *Handler) exchange(ctx context.Context, endpoint, issuer string, c *client, grant string, params url.Values) (*oauth2.Token, error) {
	params.Set("grant_type", grant)
	config := clientcredentials.Config{ClientID: c.ID, TokenURL: endpoint, AuthStyle: oauth2.AuthStyleInParams, EndpointParams: params}
	switch c.Method {
	case methodBasic:
		config.AuthStyle, config.ClientSecret = oauth2.AuthStyleInHeader, c.Secret
	case methodPost:
		config.ClientSecret = c.Secret
	case methodPrivateKey:
		assertion, err := c.assertion(issuer, h.logins.now())
		if err != nil {
			return nil, err
		}
		params.Set("client_assertion_type", assertionType)
		params.Set("client_assertion", assertion)
	}
	t, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, h.hc))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused):
		status := 0
		if refused.Response != nil {
			status = refused.Response.StatusCode
		}
		err = &ServerError{Status: status, Code: quote(refused.ErrorCode), Detail: quote(refused.ErrorDescription)}
	case err != nil:
		err = withoutURL(err)
	case !strings.EqualFold(t.TokenType, "bearer") && t.TokenType != "":
		err = fmt.Errorf("the token has the unknown type %q", quote(t.TokenType))
	case strings.ContainsFunc(t.AccessToken, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		err = errors.New("the token has characters that are invalid in a header")
	}
	if err != nil {
		return nil, fmt.Errorf("get a token at %s: %w", showURL(endpoint), err)
	}
	return t, nil
}

// revoke revokes the login at the authorization server.
func (h *Handler) revoke(ctx context.Context, r *record) error {
	c := h.clientOf(r)
	token, hint := r.Refresh, "refresh_token"
	if token == "" {
		token, hint = r.Access, "access_token"
	}
	form := url.Values{"token": {token}, "token_type_hint": {hint}}
	switch c.Method {
	case methodPost:
		form.Set("client_secret", c.Secret)
		fallthrough
	case methodNone:
		form.Set("client_id", c.ID)
	case methodPrivateKey:
		assertion, err := c.assertion(r.Issuer, h.logins.now())
		if err != nil {
			return err
		}
		form.Set("client_assertion_type", assertionType)
		form.Set("client_assertion", assertion)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Revocation, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.Method == methodBasic {
		req.SetBasicAuth(url.QueryEscape(c.ID), url.QueryEscape(c.Secret))
	}
	res, err := h.do(req)
	if err == nil {
		_, _ = io.CopyN(io.Discard, res.Body, maxMetadata) // allows the connection to be reused
		res.Body.Close()
		if res.StatusCode/100 != 2 {
			err = &ServerError{Status: res.StatusCode}
		}
	}
	if err != nil {
		return fmt.Errorf("revoke the login at %s: %w", showURL(r.Revocation), err)
	}
	return nil
}
