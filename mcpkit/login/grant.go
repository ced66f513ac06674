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

// pkceMethod is the one that is used; a server that has another only has none.
const pkceMethod = "S256"

// exchange asks a token endpoint for a token. Its error holds nothing of an answer
// but what the protocol has for people.
func (h *Handler) exchange(ctx context.Context, endpoint, issuer string, c *client, grant string, params url.Values) (*oauth2.Token, error) {
	params.Set("grant_type", grant)
	config := clientcredentials.Config{ClientID: c.ID, TokenURL: endpoint, AuthStyle: oauth2.AuthStyleInParams, EndpointParams: params}
	switch c.Method {
	case methodBasic:
		config.AuthStyle, config.ClientSecret = oauth2.AuthStyleInHeader, c.Secret
	case methodPost:
		config.ClientSecret = c.Secret
	case methodKey:
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
		err = &ServerError{Status: status, Code: said(refused.ErrorCode), Detail: said(refused.ErrorDescription)}
	case err != nil:
		err = bare(err)
	case !strings.EqualFold(t.TokenType, "bearer") && t.TokenType != "":
		err = fmt.Errorf("the token is of the type %q, which is not known here", said(t.TokenType))
	case strings.ContainsFunc(t.AccessToken, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		err = errors.New("the token has characters that a header cannot have")
	}
	if err != nil {
		return nil, fmt.Errorf("get a token at %s: %w", shown(endpoint), err)
	}
	return t, nil
}

// revoke tells the authorization server that a login is over.
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
	case methodKey:
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
		_, _ = io.CopyN(io.Discard, res.Body, maxMetadata) // lets the connection be used again
		res.Body.Close()
		if res.StatusCode/100 != 2 {
			err = &ServerError{Status: res.StatusCode}
		}
	}
	if err != nil {
		return fmt.Errorf("revoke the login at %s: %w", shown(r.Revocation), err)
	}
	return nil
}
