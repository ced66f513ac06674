// Package logintest provides an MCP server that requires a login, and its authorization
// server, on the loopback interface, for tests. They enforce the rules on clients:
// PKCE, exact redirect addresses, the method of client authentication, resource
// indicators, and refresh tokens that are valid once.
package logintest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Scopes of the server. Every request requires Read, and the tool "admin" requires
// Admin.
const (
	Read  = "mcp:read"
	Admin = "mcp:admin"
)

// A Server is both servers. Set the fields before Start.
type Server struct {
	URL    string // of the MCP endpoint
	Issuer string // of the authorization server

	Lifetime           time.Duration // of access tokens; 0 omits expires_in
	NoRefresh          bool          // issue no refresh tokens
	ResponseIssuer     string        // the issuer in authorization responses; empty for the real one
	Deny               bool          // the user refuses every login
	Method             string        // method of client authentication; empty for "none"
	StaticID           string        // a preregistered client
	StaticKey          string        // its secret
	NoRegister         bool          // no dynamic registration
	NoResourceMetadata bool          // no protected resource metadata, as in the revision 2025-03-26
	// Before handles a request to the authorization server if it returns true.
	Before func(w http.ResponseWriter, r *http.Request) bool

	api, auth *httptest.Server

	mu      sync.Mutex
	clients map[string]*client // guarded by mu
	codes   map[string]*code   // guarded by mu
	tokens  map[string]*grant  // guarded by mu: by access token
	refresh map[string]*family // guarded by mu: by refresh token
	used    map[string]*family // guarded by mu: by spent refresh token
	counts  map[string]int     // guarded by mu: requests by path
	replays int                // guarded by mu: uses of spent refresh tokens
}

type client struct{ id, secret, method, redirect string }

type code struct {
	client, challenge, redirect, resource string
	scopes                                []string
}

type family struct {
	client  string
	scopes  []string
	revoked bool
}

type grant struct {
	family *family
	end    time.Time
}

// New returns a Server that is not started.
func New() *Server {
	return &Server{
		Lifetime: time.Hour,
		clients:  make(map[string]*client), codes: make(map[string]*code), tokens: make(map[string]*grant),
		refresh: make(map[string]*family), used: make(map[string]*family), counts: make(map[string]int),
	}
}

// Start starts both servers. The caller closes them.
func (s *Server) Start() {
	s.api = httptest.NewUnstartedServer(s.resource())
	s.auth = httptest.NewUnstartedServer(s.authorizationServer())
	s.URL = "http://" + s.api.Listener.Addr().String() + "/mcp"
	s.Issuer = "http://" + s.auth.Listener.Addr().String()
	if s.StaticID != "" {
		s.clients[s.StaticID] = &client{s.StaticID, s.StaticKey, s.Method, ""}
	}
	// From here on fields are written under the lock only.
	s.api.Start()
	s.auth.Start()
}

// DenyLogins makes the user refuse every login from now on.
func (s *Server) DenyLogins() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Deny = true
}

// Close stops both servers.
func (s *Server) Close() {
	s.api.CloseClientConnections() // streams do not end by themselves
	s.api.Close()
	s.auth.CloseClientConnections()
	s.auth.Close()
}

// Count returns the number of requests to a path of the authorization server.
func (s *Server) Count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[path]
}

// Replays returns how often spent refresh tokens were used again.
func (s *Server) Replays() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replays
}

// Expire invalidates all access tokens; clients still consider them valid.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// Revoke invalidates all logins.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
	clear(s.refresh)
}

// Forget deletes all registered clients.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.clients)
}

// Clients returns the number of clients.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// WriteJSON writes a JSON response.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}

func refuse(w http.ResponseWriter, status int, code, detail string) {
	WriteJSON(w, status, map[string]string{"error": code, "error_description": detail})
}

// resource returns the MCP server.
func (s *Server) resource() http.Handler {
	server := mcp.NewServer(&mcp.Implementation{Name: "guarded", Version: "1"}, nil)
	for _, name := range []string{"hello", "admin"} {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done by " + name}}}, nil, nil
		})
	}
	get := func(*http.Request) *mcp.Server { return server }
	streamable, sse := mcp.NewStreamableHTTPHandler(get, nil), mcp.NewSSEHandler(get, nil)
	mux := http.NewServeMux()
	mux.Handle("/mcp", s.guard(streamable))
	mux.Handle("/sse", s.guard(sse))
	mux.HandleFunc("/.well-known/oauth-protected-resource/", func(w http.ResponseWriter, r *http.Request) {
		if s.NoResourceMetadata {
			http.NotFound(w, r)
			return
		}
		path := strings.TrimPrefix(r.URL.Path, "/.well-known/oauth-protected-resource")
		WriteJSON(w, http.StatusOK, map[string]any{"resource": s.api.URL + path, "authorization_servers": []string{s.Issuer}, "scopes_supported": []string{Read}})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if s.NoResourceMetadata { // its own authorization server
			s.authorizationServer().ServeHTTP(w, r)
			return
		}
		http.NotFound(w, r)
	})
	return mux
}

func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.mu.Lock()
		g := s.tokens[token]
		ok := g != nil && !g.family.revoked && (s.Lifetime == 0 || time.Now().Before(g.end))
		s.mu.Unlock()
		where := fmt.Sprintf(`resource_metadata="%s/.well-known/oauth-protected-resource%s"`, s.api.URL, r.URL.Path)
		if s.NoResourceMetadata {
			where = `realm="mcp"`
		}
		var call struct {
			Method string
			Params struct{ Name string }
		}
		_ = json.Unmarshal(body, &call) // other messages need no more scopes
		switch {
		case !ok:
			code := ""
			if token != "" {
				code = `, error="invalid_token"`
			}
			w.Header().Set("WWW-Authenticate", "Bearer "+where+code)
			http.Error(w, "log in first", http.StatusUnauthorized)
		case call.Method == "tools/call" && call.Params.Name == "admin" && !slices.Contains(g.family.scopes, Admin):
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer error="insufficient_scope", scope=%q, %s`, Admin, where))
			http.Error(w, "not with this token", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) methods() []string {
	if s.Method == "" {
		return []string{"none"}
	}
	return []string{s.Method}
}

// authorizationServer returns the authorization server.
func (s *Server) authorizationServer() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", func(w http.ResponseWriter, r *http.Request) {
		base := "http://" + r.Host
		m := map[string]any{
			"issuer": base, "authorization_endpoint": base + "/authorize", "token_endpoint": base + "/token", "revocation_endpoint": base + "/revoke",
			"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": s.methods(),
			"authorization_response_iss_parameter_supported": true, "scopes_supported": []string{Read, Admin, "offline_access"},
		}
		if !s.NoRegister {
			m["registration_endpoint"] = base + "/register"
		}
		WriteJSON(w, http.StatusOK, m)
	})
	mux.HandleFunc("POST /register", s.register)
	mux.HandleFunc("GET /authorize", s.authorize)
	mux.HandleFunc("POST /token", s.token)
	mux.HandleFunc("POST /revoke", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f := s.refresh[r.PostFormValue("token")]; f != nil {
			f.revoked = true
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.counts[r.URL.Path]++
		s.mu.Unlock()
		if s.Before == nil || !s.Before(w, r) {
			mux.ServeHTTP(w, r)
		}
	})
}

func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	var want struct {
		Redirects []string `json:"redirect_uris"`
		Method    string   `json:"token_endpoint_auth_method"`
		Type      string   `json:"application_type"`
	}
	if json.NewDecoder(r.Body).Decode(&want) != nil || len(want.Redirects) != 1 || !slices.Contains(s.methods(), want.Method) || want.Type == "" {
		refuse(w, http.StatusBadRequest, "invalid_client_metadata", "invalid metadata")
		return
	}
	c := &client{id: rand.Text(), method: want.Method, redirect: want.Redirects[0]}
	answer := map[string]any{"client_id": c.id, "redirect_uris": want.Redirects, "token_endpoint_auth_method": c.method}
	if c.method != "none" {
		c.secret = rand.Text()
		answer["client_secret"], answer["client_secret_expires_at"] = c.secret, 0
	}
	s.mu.Lock()
	s.clients[c.id] = c
	s.mu.Unlock()
	WriteJSON(w, http.StatusCreated, answer)
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[q.Get("client_id")]
	back, err := url.Parse(q.Get("redirect_uri"))
	if c == nil || err != nil || c.redirect != "" && c.redirect != q.Get("redirect_uri") || q.Get("code_challenge_method") != "S256" ||
		q.Get("response_type") != "code" || q.Get("resource") == "" || q.Get("state") == "" {
		http.Error(w, "invalid authorization request", http.StatusBadRequest)
		return
	}
	say := s.ResponseIssuer
	if say == "" {
		say = "http://" + r.Host
	}
	answer := url.Values{"state": {q.Get("state")}, "iss": {say}}
	if s.Deny {
		answer.Set("error", "access_denied")
		answer.Set("error_description", "the user refused")
	} else {
		id := rand.Text()
		s.codes[id] = &code{c.id, q.Get("code_challenge"), q.Get("redirect_uri"), q.Get("resource"), strings.Fields(q.Get("scope"))}
		answer.Set("code", id)
	}
	back.RawQuery = answer.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, secret, method := r.PostFormValue("client_id"), r.PostFormValue("client_secret"), "none"
	if user, password, ok := r.BasicAuth(); ok {
		id, _ = url.QueryUnescape(user)
		secret, _ = url.QueryUnescape(password)
		method = "client_secret_basic"
	} else if secret != "" {
		method = "client_secret_post"
	}
	c := s.clients[id]
	if c == nil || c.secret != secret || c.method != "" && c.method != method {
		refuse(w, http.StatusUnauthorized, "invalid_client", "unknown client")
		return
	}
	var f *family
	switch r.PostFormValue("grant_type") {
	case "client_credentials":
		f = &family{client: id, scopes: strings.Fields(r.PostFormValue("scope"))}
	case "authorization_code":
		code := s.codes[r.PostFormValue("code")]
		delete(s.codes, r.PostFormValue("code"))
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if code == nil || code.client != id || code.redirect != r.PostFormValue("redirect_uri") || code.resource != r.PostFormValue("resource") ||
			code.challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
			refuse(w, http.StatusBadRequest, "invalid_grant", "no such code")
			return
		}
		f = &family{client: id, scopes: code.scopes}
	case "refresh_token":
		old := r.PostFormValue("refresh_token")
		if spent := s.used[old]; spent != nil {
			spent.revoked = true // stolen, or used twice by its owner
			s.replays++
		}
		f = s.refresh[old]
		if f == nil || f.revoked || f.client != id || r.PostFormValue("resource") == "" {
			refuse(w, http.StatusBadRequest, "invalid_grant", "no such login")
			return
		}
		delete(s.refresh, old)
		s.used[old] = f
	default:
		refuse(w, http.StatusBadRequest, "unsupported_grant_type", "")
		return
	}
	access := rand.Text()
	s.tokens[access] = &grant{f, time.Now().Add(s.Lifetime)}
	answer := map[string]any{"access_token": access, "token_type": "bearer", "scope": strings.Join(f.scopes, " ")}
	if s.Lifetime > 0 {
		answer["expires_in"] = int(s.Lifetime.Seconds())
	}
	if !s.NoRefresh && r.PostFormValue("grant_type") != "client_credentials" {
		next := rand.Text()
		s.refresh[next] = f
		answer["refresh_token"] = next
	}
	WriteJSON(w, http.StatusOK, answer)
}

// Approve acts as a user who approves the login at page. It returns the address to
// which the browser is redirected.
func Approve(ctx context.Context, page string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return "", err
	}
	hc := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := hc.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusFound {
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10)) // a partial reason suffices
		return "", fmt.Errorf("the page answered %s: %s", res.Status, bytes.TrimSpace(b))
	}
	return res.Header.Get("Location"), nil
}
