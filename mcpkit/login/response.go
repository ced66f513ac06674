package login

import (
	"errors"
	"fmt"
	"net/url"
)

// An AuthorizationResponse holds the parameters with which an authorization server
// redirects the browser back.
type AuthorizationResponse struct {
	Code   string
	State  string
	Issuer string
	Error  string // an OAuth error code, instead of Code
	Detail string // the description of Error
}

// maxResponse bounds the address of a redirect. Some servers put a whole token in the
// code.
const maxResponse = 64 << 10

// ParseAuthorizationResponse parses the address to which the browser was redirected, or
// its query alone.
func ParseAuthorizationResponse(redirect string) (AuthorizationResponse, error) {
	if len(redirect) > maxResponse {
		return AuthorizationResponse{}, fmt.Errorf("parse the authorization response: larger than %d bytes", maxResponse)
	}
	u, err := url.Parse(redirect)
	if err != nil {
		return AuthorizationResponse{}, errors.New("parse the authorization response: invalid URL")
	}
	q := u.Query()
	a := AuthorizationResponse{Code: q.Get("code"), State: q.Get("state"), Issuer: q.Get("iss"), Error: q.Get("error"), Detail: q.Get("error_description")}
	if a.Code == "" && a.Error == "" {
		return AuthorizationResponse{}, errors.New("parse the authorization response: the URL has neither a code nor an error")
	}
	return a, nil
}

// check verifies that the response belongs to the login and comes from its issuer. Call
// it before using any other part of the response.
func (a *AuthorizationResponse) check(state string, from *authority) error {
	if a.State != state {
		return errors.New("the authorization response is not for this login: its state differs")
	}
	switch advertised := from.meta.AuthorizationResponseIssParameterSupported; {
	case a.Issuer == "" && advertised:
		return fmt.Errorf("the authorization response does not name the issuer %q, although that server promises to", from.meta.Issuer)
	case a.Issuer != "" && a.Issuer != from.meta.Issuer:
		return fmt.Errorf("the authorization response is from %q, not from %q", quote(a.Issuer), from.meta.Issuer)
	case a.Error != "":
		return &ServerError{Code: quote(a.Error), Detail: quote(a.Detail)}
	}
	return nil
}

// ServerError is an error response of an authorization server.
type ServerError struct {
	Status int    // of HTTP; 0 if the browser brought the response
	Code   string // the OAuth error code, such as invalid_grant; may be empty
	Detail string
}

func (e *ServerError) Error() string {
	text := "the authorization server answered "
	switch {
	case e.Code == "":
		return fmt.Sprintf("%s%d", text, e.Status)
	case e.Detail == "":
		return text + e.Code
	}
	return text + e.Code + ": " + e.Detail
}

// hasCode reports whether err is a ServerError with that code.
func hasCode(err error, code string) bool {
	var e *ServerError
	return errors.As(err, &e) && e.Code == code
}
