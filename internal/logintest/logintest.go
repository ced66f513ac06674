// Package logintest is an MCP server that wants a login, with the authorization
// server that gives it, over HTTP on this machine: what tests log in to. It holds
// clients to the rules: PKCE, exact redirects, the way in which a client says who it
// is, resources, and refresh tokens that are good for one use.
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

// Scopes of the server: Read is wanted for all, Admin for the tool "admin".
const (
	Read  = "mcp:read"
	Admin = "mcp:admin"
)

// Server is both servers. The fields are set before it is used.
type Server struct {
	URL    string // of the MCP endpoint
	Issuer string // of the authorization server

	Lifetime    time.Duration // of access tokens; 0 says nothing of it
	NoRefresh   bool          // gives no refresh tokens
	Say         string        // the issuer that answers are said to be from; "" for its own
	Deny        bool          // the person says no
	Method      string        // of clients to say who they are; "" for none
	StaticID    string        // a client that is there from the start, with
	StaticKey   string        // its secret
	NoRegister  bool          // registers nobody
	Unprotected bool          // has no metadata of the resource: the revision 2025-03-26
	// Before sees every request to the authorization server first, by its path; what
	// it answers with true is done.
	Before func(w http.ResponseWriter, r *http.Request) bool

	api, auth *httptest.Server

	mu      sync.Mutex
	clients map[string]*client // guarded by mu
	codes   map[string]*code   // guarded by mu
	tokens  map[string]*grant  // guarded by mu: by access token
	refresh map[string]*family // guarded by mu: by refresh token
	used    map[string]*family // guarded by mu: refresh tokens that are spent
	counts  map[string]int     // guarded by mu: requests by path
	replays int                // guarded by mu: spent refresh tokens that came again
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

// New returns servers that are not started.
func New() *Server {
	return &Server{
		Lifetime: time.Hour,
		clients:  make(map[string]*client), codes: make(map[string]*code), tokens: make(map[string]*grant),
		refresh: make(map[string]*family), used: make(map[string]*family), counts: make(map[string]int),
	}
}

// Start starts both. The caller closes them.
func (s *Server) Start() {
	s.api = httptest.NewUnstartedServer(s.resource())
	s.auth = httptest.NewUnstartedServer(s.authority())
	s.URL = "http://" + s.api.Listener.Addr().String() + "/mcp"
	s.Issuer = "http://" + s.auth.Listener.Addr().String()
	if s.StaticID != "" {
		s.clients[s.StaticID] = &client{s.StaticID, s.StaticKey, s.Method, ""}
	}
	// Nothing is written after this but under the lock: requests read.
	s.api.Start()
	s.auth.Start()
}

// SayNo has the person say no from now on.
func (s *Server) SayNo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Deny = true
}

// Close stops both.
func (s *Server) Close() {
	s.api.CloseClientConnections() // streams do not end by themselves
	s.api.Close()
	s.auth.CloseClientConnections()
	s.auth.Close()
}

// Count is how many requests a path of the authorization server got.
func (s *Server) Count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[path]
}

// Replays is how many refresh tokens came again.
func (s *Server) Replays() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replays
}

// Expire ends all access tokens, though not to the knowledge of who has them.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// Revoke ends all logins.
func (s *Server) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
	clear(s.refresh)
}

// Forget forgets all clients that have registered.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.clients)
}

// Clients is how many there are.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// Answer writes JSON.
func Answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // whoever is gone needs none
}

func refuse(w http.ResponseWriter, status int, code, detail string) {
	Answer(w, status, map[string]string{"error": code, "error_description": detail})
}

// resource is the MCP server.
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
		if s.Unprotected {
			http.NotFound(w, r)
			return
		}
		path := strings.TrimPrefix(r.URL.Path, "/.well-known/oauth-protected-resource")
		Answer(w, http.StatusOK, map[string]any{"resource": s.api.URL + path, "authorization_servers": []string{s.Issuer}, "scopes_supported": []string{Read}})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if s.Unprotected { // is its own authority
			s.authority().ServeHTTP(w, r)
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
		if s.Unprotected {
			where = `realm="mcp"`
		}
		var call struct {
			Method string
			Params struct{ Name string }
		}
		_ = json.Unmarshal(body, &call) // what is no call wants no more
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

// authority is the authorization server.
func (s *Server) authority() http.Handler {
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
		Answer(w, http.StatusOK, m)
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
		refuse(w, http.StatusBadRequest, "invalid_client_metadata", "not like this")
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
	Answer(w, http.StatusCreated, answer)
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[q.Get("client_id")]
	back, err := url.Parse(q.Get("redirect_uri"))
	if c == nil || err != nil || c.redirect != "" && c.redirect != q.Get("redirect_uri") || q.Get("code_challenge_method") != "S256" ||
		q.Get("response_type") != "code" || q.Get("resource") == "" || q.Get("state") == "" {
		http.Error(w, "a person sees: this is not right", http.StatusBadRequest)
		return
	}
	say := s.Say
	if say == "" {
		say = "http://" + r.Host
	}
	answer := url.Values{"state": {q.Get("state")}, "iss": {say}}
	if s.Deny {
		answer.Set("error", "access_denied")
		answer.Set("error_description", "she said no")
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
		refuse(w, http.StatusUnauthorized, "invalid_client", "who is that?")
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
			spent.revoked = true // somebody has stolen it, or races himself
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
	Answer(w, http.StatusOK, answer)
}

// Follow is a person who says yes at once: it returns where the browser would be
// sent back to.
func Follow(ctx context.Context, page string) (string, error) {
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
		b, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10)) // half of a reason is one
		return "", fmt.Errorf("the page says %s: %s", res.Status, bytes.TrimSpace(b))
	}
	return res.Header.Get("Location"), nil
}
