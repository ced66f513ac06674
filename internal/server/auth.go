package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

var errExpired = errors.New("the token expired")

// metadataPath is the path of the protected resource metadata (RFC 9728).
const metadataPath = "/.well-known/oauth-protected-resource"

// identify authenticates a request, and refuses it if that fails. allowBasic also accepts the
// token as a password, which browsers can send.
func (s *Server) identify(w http.ResponseWriter, r *http.Request, allowBasic bool) (*http.Request, bool) {
	c := s.newCaller(r)
	w.Header().Set(headerRequest, c.request)
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
	c.rateKey = "address " + addressPrefix(c.remote)
	if s.opts.Auth != nil {
		token, given := bearer(r, allowBasic)
		if !given {
			s.refuseUnauthenticated(w, r, allowBasic, &auth.Refusal{Text: "no token: send one as Authorization: Bearer"})
			return r, false
		}
		id, err := s.opts.Auth.Verify(r.Context(), token)
		if err != nil {
			s.refuseUnauthenticated(w, r, allowBasic, err)
			return r, false
		}
		c.id = id
		if c.rateKey = "owner " + id.Owner; !c.has(auth.Use) {
			c.rateKey = "readers of " + id.Owner // tokens that may not run code, together
		}
	}
	if wait := s.rate.take(c.rateKey, 1, time.Now()); wait > 0 {
		s.refuseRate(w, r, nil, wait, "Too many requests")
		return r, false
	}
	return r, true
}

// countConnection counts the connection of an authenticated request as one of its owner's, or
// refuses the request.
func (s *Server) countConnection(w http.ResponseWriter, r *http.Request) bool {
	e := s.connections.establish(r, callerIn(r).account())
	if e == withinLimits {
		return true
	}
	w.Header().Set("Connection", "close")
	s.refuseExcess(w, r, nil, e, "Too many connections")
	return false
}

// countRequest counts a request of the endpoint as one of its owner's until leave is called, or
// refuses it. It does so before the connection is established and before the body is
// read, so requests that never end their bodies use only the share of their owner. A
// DELETE takes no place: it is short and frees resources.
func (s *Server) countRequest(w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	if r.Method == http.MethodDelete {
		return func() {}, true
	}
	p := callerIn(r).account()
	if e := s.inFlight.take(p, 1); e != withinLimits {
		if r.Body != http.NoBody {
			// The connection ends with the body at the latest, and soon in any case: it has a
			// place among the connections.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(excessReadTimeout))
			if r.ProtoMajor == 1 {
				w.Header().Set("Connection", "close")
			}
		}
		s.refuseExcess(w, r, nil, e, "Too many requests in flight")
		return nil, false
	}
	return func() { s.inFlight.give(p, 1) }, true
}

// bearer returns the token of a request, from a single Authorization header. A token in
// the URL is ignored, since URLs get into logs.
func bearer(r *http.Request, allowBasic bool) (token string, given bool) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return "", false
	}
	if len(values) > 1 {
		return "", true // refused as malformed
	}
	if allowBasic {
		if _, password, ok := r.BasicAuth(); ok {
			return password, true
		}
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true
	}
	return strings.Trim(token, " "), true
}

// refuseUnauthenticated refuses a request without a valid token.
func (s *Server) refuseUnauthenticated(w http.ResponseWriter, r *http.Request, allowBasic bool, err error) {
	c := callerIn(r)
	// The limit slows down guessing.
	if wait := s.unauthenticatedRate.take(addressPrefix(c.remote), 1, time.Now()); wait > 0 {
		s.refuseRate(w, r, nil, wait, "Too many unauthenticated requests")
		return
	}
	refusal, known := errors.AsType[*auth.Refusal](err)
	if !known {
		s.auditRefusal(r, "unavailable")
		if omitted, ok := s.refusedLines.Allow(refusalKey{c.rateKey, "log"}); ok {
			s.log.Warn("token not verified", withOmitted(omitted, logkey.Request, c.request, logkey.Error, err)...)
		}
		w.Header().Set("Retry-After", "5")
		s.refuse(w, http.StatusServiceUnavailable, nil, codeRefused, "Tokens cannot be verified at the moment")
		return
	}
	reason := string(refusal.Reason)
	params := []string{`realm="glovebox"`}
	if reason == "" {
		reason = "no_token"
	} else {
		params = append(params, `error="invalid_token"`, "error_description="+quoted(refusal.Text))
	}
	if s.opts.Auth.ScopesNeeded() {
		params = append(params, "scope="+quoted(auth.Use.Public()))
	}
	s.auditRefusal(r, reason)
	s.challenge(w, r, params)
	if allowBasic {
		w.Header().Add("WWW-Authenticate", `Basic realm="glovebox", charset="UTF-8"`)
	}
	s.refuse(w, http.StatusUnauthorized, nil, codeRefused, "Unauthorized: "+refusal.Text)
}

// permit reports whether the caller has the scope, and refuses the request if not.
func (s *Server) permit(w http.ResponseWriter, r *http.Request, id json.RawMessage, want auth.Scope) bool {
	c := callerIn(r)
	if c.has(want) {
		return true
	}
	text := insufficient(want)
	s.auditRefusal(r, "insufficient_scope")
	s.challenge(w, r, []string{`realm="glovebox"`, `error="insufficient_scope"`, "error_description=" + quoted(text), "scope=" + quoted(want.Public())})
	s.refuse(w, http.StatusForbidden, id, codeRefused, "Forbidden: "+text)
	return false
}

func insufficient(want auth.Scope) string {
	return fmt.Sprintf("the token does not have the scope %q", string(want))
}

// challenge sets WWW-Authenticate: which token the request needs, and where to get it.
func (s *Server) challenge(w http.ResponseWriter, r *http.Request, params []string) {
	if s.opts.Auth != nil && len(s.opts.Auth.Issuers()) > 0 {
		base, path := s.resource(r)
		params = append(params, "resource_metadata="+quoted(base+metadataPath+path))
	}
	w.Header().Add("WWW-Authenticate", "Bearer "+strings.Join(params, ", "))
}

// quoted returns a quoted string of HTTP, with characters that it cannot have replaced.
func quoted(s string) string {
	return `"` + strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '\''
		}
		return r
	}, s) + `"`
}

// resource returns the URL of the endpoint as clients know it: scheme and host, and path.
func (s *Server) resource(r *http.Request) (base, path string) {
	if u, err := url.Parse(s.opts.PublicURL); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host, strings.TrimSuffix(u.EscapedPath(), "/")
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host, strings.TrimSuffix(s.opts.Path, "/")
}

// serveMetadata serves the protected resource metadata, which names the authorization
// servers, for the path of the endpoint and for the whole host. It returns false for
// other paths.
func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) bool {
	at, asked := strings.CutPrefix(r.URL.Path, metadataPath)
	if !asked || s.opts.Auth == nil || len(s.opts.Auth.Issuers()) == 0 {
		return false
	}
	base, path := s.resource(r)
	switch strings.TrimSuffix(at, "/") {
	case path, strings.TrimSuffix(s.opts.Path, "/"):
	case "":
		path = ""
	default:
		return false
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.refuseMethod(w, "GET")
		return true
	}
	about := &oauthex.ProtectedResourceMetadata{
		Resource: base + path, ResourceName: title,
		AuthorizationServers:   s.opts.Auth.Issuers(),
		BearerMethodsSupported: []string{"header"},
	}
	if s.opts.Auth.ScopesNeeded() {
		for _, scope := range auth.AllScopes() {
			about.ScopesSupported = append(about.ScopesSupported, scope.Public())
		}
	}
	w.Header().Set("Access-Control-Allow-Origin", "*") // it is public
	writeJSON(w, http.StatusOK, about)
	return true
}

// scopeOf returns the scope that a message needs.
func (s *Server) scopeOf(method, tool string) auth.Scope {
	switch {
	case method == callTool && !s.readOnly[tool], strings.HasPrefix(method, "tasks/") && method != "tasks/get":
		return auth.Use
	}
	return auth.Read
}

// scopeError refuses one message of a batch or a session.
func scopeError(want auth.Scope) *jsonrpc.Error {
	return &jsonrpc.Error{Code: codeRefused, Message: "Forbidden: " + insufficient(want)}
}
