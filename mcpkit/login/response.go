package login

import (
	"errors"
	"fmt"
	"net/url"
)

// An AuthorizationResponse is what an authorization server sends the browser back with.
type AuthorizationResponse struct {
	Code   string
	State  string
	Issuer string
	Error  string // a code of OAuth, in place of Code
	Detail string // of Error
}

// maxAnswer bounds a redirect: codes may be whole tokens.
const maxAnswer = 64 << 10

// ParseAuthorizationResponse reads the address that the browser was sent back to: all of it, or
// only its query.
func ParseAuthorizationResponse(redirect string) (AuthorizationResponse, error) {
	if len(redirect) > maxAnswer {
		return AuthorizationResponse{}, fmt.Errorf("read the answer of the authorization server: larger than %d bytes", maxAnswer)
	}
	u, err := url.Parse(redirect)
	if err != nil {
		return AuthorizationResponse{}, errors.New("read the answer of the authorization server: it is no url")
	}
	q := u.Query()
	a := AuthorizationResponse{Code: q.Get("code"), State: q.Get("state"), Issuer: q.Get("iss"), Error: q.Get("error"), Detail: q.Get("error_description")}
	if a.Code == "" && a.Error == "" {
		return AuthorizationResponse{}, errors.New("read the answer of the authorization server: the url has neither a code nor an error")
	}
	return a, nil
}

// check holds the answer to what was asked of whom, before anything of it is used.
func (a *AuthorizationResponse) check(state string, from *authority) error {
	if a.State != state {
		return errors.New("the answer is not to this login: its state is another")
	}
	switch advertised := from.meta.AuthorizationResponseIssParameterSupported; {
	case a.Issuer == "" && advertised:
		return fmt.Errorf("the answer does not say that it is from %q, as those of that server do", from.meta.Issuer)
	case a.Issuer != "" && a.Issuer != from.meta.Issuer:
		return fmt.Errorf("the answer is from %q, not from %q", said(a.Issuer), from.meta.Issuer)
	case a.Error != "":
		return &ServerError{Code: said(a.Error), Detail: said(a.Detail)}
	}
	return nil
}

// ServerError is an error that an authorization server answered with.
type ServerError struct {
	Status int    // of HTTP; 0 if it came by way of the browser
	Code   string // of OAuth, such as invalid_grant; may be empty
	Detail string
}

func (e *ServerError) Error() string {
	text := "the authorization server says "
	switch {
	case e.Code == "":
		return fmt.Sprintf("%s%d", text, e.Status)
	case e.Detail == "":
		return text + e.Code
	}
	return text + e.Code + ": " + e.Detail
}

// is reports whether err is an answer with a code.
func is(err error, code string) bool {
	var e *ServerError
	return errors.As(err, &e) && e.Code == code
}
