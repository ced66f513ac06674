package login

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/glovebox-dev/glovebox/internal/logintest"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

const redirect = "http://127.0.0.1:7/callback"

func start(t *testing.T, change func(*logintest.Server)) *logintest.Server {
	t.Helper()
	s := logintest.New()
	if change != nil {
		change(s)
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// approve is a user who approves every login. It counts the prompts in asked.
func approve(asked *atomic.Int32) func(context.Context, string, string) (AuthorizationResponse, error) {
	return func(ctx context.Context, _, page string) (AuthorizationResponse, error) {
		if asked != nil {
			asked.Add(1)
		}
		back, err := logintest.Approve(ctx, page)
		if err != nil {
			return AuthorizationResponse{}, err
		}
		return ParseAuthorizationResponse(back)
	}
}

func handler(t *testing.T, s *logintest.Server, o Options, change func(*Server)) *Handler {
	t.Helper()
	server := Server{Name: "srv", URL: s.URL}
	if change != nil {
		change(&server)
	}
	if o.RedirectURL == "" {
		o.RedirectURL = redirect
	}
	h, err := New(o).Handler(server, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// greet calls a tool that requires a token, and handles refusals as a transport does.
func greet(ctx context.Context, h *Handler, tool string) error {
	do := func() (*http.Request, *http.Response, error) {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q}}`, tool)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.server.URL, strings.NewReader(body))
		if err != nil {
			return nil, nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		src, err := h.TokenSource(ctx)
		if err != nil {
			return nil, nil, err
		}
		if src != nil {
			token, err := src.Token()
			if err != nil {
				return nil, nil, err
			}
			token.SetAuthHeader(req)
		}
		res, err := http.DefaultClient.Do(req)
		return req, res, err
	}
	req, res, err := do()
	if err != nil {
		return err
	}
	if res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden {
		if err := h.Authorize(ctx, req, res); err != nil {
			return err
		}
		if _, res, err = do(); err != nil {
			return err
		}
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden {
		return errors.New(res.Status)
	}
	return nil // the server may still refuse a call without a session
}

// A stored login is used without another prompt, by this process and by others.
func TestLogin_IsReusedWithoutPrompt(t *testing.T) {
	s := start(t, nil)
	dir := filepath.Join(t.TempDir(), "logins")
	var asked atomic.Int32
	h := handler(t, s, Options{Store: OpenStore(dir), Authorize: approve(&asked)}, nil)
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := greet(t.Context(), h, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	// Another process has no user to ask.
	other := handler(t, s, Options{Store: OpenStore(dir)}, nil)
	if err := greet(t.Context(), other, "hello"); err != nil {
		t.Fatal(err)
	}
	// A token that the server has revoked is refreshed when the server refuses it.
	s.Expire()
	if err := greet(t.Context(), other, "hello"); err != nil {
		t.Fatal(err)
	}
	// The first has a token that is no more, and finds the other's.
	before := s.Count("/token")
	if err := greet(t.Context(), h, "hello"); err != nil {
		t.Fatal(err)
	}
	if got := s.Count("/token"); got != before {
		t.Errorf("%d token requests although a token was stored", got-before)
	}
	if asked.Load() != 1 || s.Clients() != 1 || s.Replays() != 0 {
		t.Errorf("asked %d times, %d clients, %d replays; want 1, 1, 0", asked.Load(), s.Clients(), s.Replays())
	}
	state, err := OpenStore(dir).State(h.server)
	if err != nil || !state.LoggedIn || state.Issuer != s.Issuer || !slices.Contains(state.Scopes, logintest.Read) || state.Redirect != redirect || !state.Expires.IsZero() {
		t.Errorf("state %+v, %v", state, err)
	}
	// All of it is the user's alone.
	for _, path := range []string{dir, filepath.Join(dir, h.server.key()+".json")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if perm := info.Mode().Perm(); perm&0o077 != 0 {
			t.Errorf("%s has the mode %v", path, perm)
		}
	}
}

func TestTokenSource_RefreshesBeforeExpiry(t *testing.T) {
	s := start(t, nil)
	h := handler(t, s, Options{Authorize: approve(nil)}, nil)
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	token := func() string {
		t.Helper()
		src, err := h.TokenSource(t.Context())
		if err != nil || src == nil {
			t.Fatalf("token source %v, %v", src, err)
		}
		token, _ := src.Token()
		return token.AccessToken
	}
	first := token()
	h.logins.now = func() time.Time { return time.Now().Add(54 * time.Minute) }
	if token() != first {
		t.Error("refreshed too early")
	}
	h.logins.now = func() time.Time { return time.Now().Add(56 * time.Minute) }
	if token() == first {
		t.Error("not refreshed five minutes ahead")
	}
}

// If the authorization server is unreachable, a token that is still valid is used. An
// expired one is an error, and does not start a new login.
func TestTokenSource_AuthorizationServerDown(t *testing.T) {
	var away atomic.Bool
	s := start(t, func(s *logintest.Server) {
		s.Before = func(w http.ResponseWriter, _ *http.Request) bool {
			if away.Load() {
				http.Error(w, "out for lunch", http.StatusServiceUnavailable)
			}
			return away.Load()
		}
	})
	h := handler(t, s, Options{Authorize: approve(nil)}, nil)
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	away.Store(true)
	h.logins.now = func() time.Time { return time.Now().Add(56 * time.Minute) }
	if src, err := h.TokenSource(t.Context()); err != nil || src == nil {
		t.Errorf("with a token for four minutes: %v, %v", src, err)
	}
	h.logins.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	_, err := h.TokenSource(t.Context())
	if err == nil || errors.Is(err, ErrRequired) || !strings.Contains(err.Error(), "503") {
		t.Errorf("got %v, want the status 503", err)
	}
	if err != nil && strings.Contains(err.Error(), "lunch") {
		t.Errorf("%v quotes the body of the response", err)
	}
	away.Store(false)
	if src, err := h.TokenSource(t.Context()); err != nil || src == nil {
		t.Errorf("when the server is up again: %v, %v", src, err)
	}
}

func TestAuthorize_WithoutUserIsRequiredError(t *testing.T) {
	s := start(t, nil)
	store := newMemoryStore()
	h := handler(t, s, Options{Store: store}, nil)
	check := func(reason string) {
		t.Helper()
		err := greet(t.Context(), h, "hello")
		var needed *RequiredError
		if !errors.As(err, &needed) || !errors.Is(err, ErrRequired) || needed.Server != "srv" || !strings.Contains(needed.Reason, reason) {
			t.Errorf("got %v, want %q", err, reason)
		}
	}
	check("nobody has logged in yet")
	if n := s.Count("/register") + s.Count("/authorize"); n != 0 {
		t.Errorf("%d requests to log in without a user", n)
	}
	if err := handler(t, s, Options{Store: store, Authorize: approve(nil)}, nil).Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := greet(t.Context(), h, "hello"); err != nil {
		t.Fatal("a login by another handler is not found:", err)
	}
	s.Revoke()
	check("the login has ended")
	if state, _ := store.State(h.server); state.LoggedIn {
		t.Error("the state is still logged in")
	}
	check("the login has ended")
}

func TestStepUp_RequestsMoreScopes(t *testing.T) {
	s := start(t, nil)
	store := newMemoryStore()
	var asked atomic.Int32
	with := handler(t, s, Options{Store: store, Authorize: approve(&asked)}, nil)
	if err := with.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Without a user, the missing scope is requested at the next login.
	without := handler(t, s, Options{Store: store}, nil)
	if err := greet(t.Context(), without, "admin"); !errors.Is(err, ErrRequired) || !strings.Contains(err.Error(), logintest.Admin) {
		t.Fatalf("got %v, want an error that names the scope %s", err, logintest.Admin)
	}
	if err := with.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := greet(t.Context(), without, "admin"); err != nil {
		t.Fatal(err)
	}
	state, _ := store.State(with.server)
	for _, scope := range []string{logintest.Read, logintest.Admin, "offline_access"} {
		if !slices.Contains(state.Scopes, scope) {
			t.Errorf("the login has the scopes %q, not %s", state.Scopes, scope)
		}
	}
	// With a user, it is requested at once, and granted scopes are kept.
	asked.Store(0)
	fresh := handler(t, s, Options{Authorize: approve(&asked)}, nil)
	for range 2 {
		if err := greet(t.Context(), fresh, "hello"); err != nil {
			t.Fatal(err)
		}
		if err := greet(t.Context(), fresh, "admin"); err != nil {
			t.Fatal(err)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("asked %d times, want once for each scope", asked.Load())
	}
}

// A server that keeps requiring other scopes does not cause endless prompts.
func TestStepUp_IsBounded(t *testing.T) {
	s := start(t, nil)
	var n atomic.Int32
	greedy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			logintest.WriteJSON(w, http.StatusOK, map[string]any{"resource": "http://" + r.Host + "/mcp", "authorization_servers": []string{s.Issuer}})
			return
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer error="insufficient_scope", scope="more%d"`, n.Add(1)))
		w.WriteHeader(http.StatusForbidden)
	}))
	defer greedy.Close()
	var asked atomic.Int32
	h := handler(t, s, Options{Authorize: approve(&asked)}, func(s *Server) { s.URL = greedy.URL + "/mcp" })
	for range 10 {
		if err := greet(t.Context(), h, "hello"); err == nil {
			t.Fatal("the server accepted the token")
		}
	}
	if asked.Load() != maxStepUps {
		t.Errorf("asked %d times, want %d", asked.Load(), maxStepUps)
	}
}

func TestClient_MethodsOfAuthentication(t *testing.T) {
	for _, method := range []string{"", "client_secret_basic", "client_secret_post"} {
		t.Run("registered by "+method, func(t *testing.T) {
			s := start(t, func(s *logintest.Server) { s.Method = method })
			h := handler(t, s, Options{Authorize: approve(nil)}, nil)
			if err := greet(t.Context(), h, "hello"); err != nil {
				t.Fatal(err)
			}
			s.Expire()
			if err := greet(t.Context(), h, "hello"); err != nil {
				t.Fatal("refresh:", err)
			}
		})
		t.Run("configured by "+method, func(t *testing.T) {
			s := start(t, func(s *logintest.Server) {
				s.Method, s.StaticID, s.NoRegister = method, "me&you", true
				if method != "" {
					s.StaticKey = "a secret: with/signs"
				}
			})
			dir := t.TempDir()
			h := handler(t, s, Options{Store: OpenStore(dir), Authorize: approve(nil)}, func(c *Server) { c.ClientID, c.ClientSecret = s.StaticID, s.StaticKey })
			if err := greet(t.Context(), h, "hello"); err != nil {
				t.Fatal(err)
			}
			s.Expire()
			if err := greet(t.Context(), h, "hello"); err != nil {
				t.Fatal("refresh:", err)
			}
			// A secret of the configuration is not copied.
			if b, err := os.ReadFile(filepath.Join(dir, h.server.key()+".json")); err != nil || method != "" && strings.Contains(string(b), s.StaticKey) {
				t.Errorf("the store has the secret (%v)", err)
			}
		})
	}
	t.Run("as itself", func(t *testing.T) {
		s := start(t, func(s *logintest.Server) {
			s.Method, s.StaticID, s.StaticKey = "client_secret_basic", "robot", "secret"
		})
		h := handler(t, s, Options{}, func(c *Server) {
			c.ClientID, c.ClientSecret, c.ClientCredentials = s.StaticID, s.StaticKey, true
		})
		for _, tool := range []string{"hello", "admin", "hello"} {
			if err := greet(t.Context(), h, tool); err != nil {
				t.Fatal(err)
			}
		}
		s.Expire()
		if err := greet(t.Context(), h, "admin"); err != nil {
			t.Fatal("after the token expired:", err)
		}
		h.logins.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
		before := s.Count("/token")
		if src, err := h.TokenSource(t.Context()); err != nil || src == nil || s.Count("/token") != before+1 {
			t.Errorf("not refreshed before expiry: %v, %v", src, err)
		}
	})
	t.Run("as itself by its definition", func(t *testing.T) {
		s := start(t, func(s *logintest.Server) { s.Method, s.StaticID, s.StaticKey = "client_secret_post", "robot", "secret" })
		file := filepath.Join(t.TempDir(), "mcp.json")
		def := fmt.Sprintf(`{"mcpServers":{"srv":{"url":%q,"oauth":{"grantType":"client_credentials","clientId":"robot","clientSecret":"secret"}}}}`, s.URL)
		if err := os.WriteFile(file, []byte(def), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := mcpjson.LoadFile(file, mcpjson.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := cfg.Server("srv").Resolve(t.Context(), mcpjson.Resolver{})
		if err != nil {
			t.Fatal(err)
		}
		if err := greet(t.Context(), handler(t, s, Options{}, func(c *Server) { *c = ServerFor(r) }), "hello"); err != nil {
			t.Error(err)
		}
	})
	t.Run("of another issuer", func(t *testing.T) {
		s := start(t, func(s *logintest.Server) { s.StaticID = "me" })
		h := handler(t, s, Options{Authorize: approve(nil)}, func(c *Server) { c.ClientID, c.Issuer = "me", "https://other.example.com" })
		if err := greet(t.Context(), h, "hello"); err == nil || !strings.Contains(err.Error(), "other.example.com") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		s := start(t, func(s *logintest.Server) { s.NoRegister = true })
		err := greet(t.Context(), handler(t, s, Options{Authorize: approve(nil)}, nil), "hello")
		if err == nil || !strings.Contains(err.Error(), "oauth.clientId") {
			t.Errorf("got %v, want an error with a remedy", err)
		}
	})
	t.Run("forgotten", func(t *testing.T) {
		s := start(t, nil)
		h := handler(t, s, Options{Authorize: approve(nil)}, nil)
		if err := h.Login(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Forget()
		s.Expire()
		if err := greet(t.Context(), h, "hello"); err != nil {
			t.Errorf("not registered again: %v", err)
		}
	})
}

// Servers vary in the form of members that do not matter here.
func TestRegister_LenientResponse(t *testing.T) {
	for name, c := range map[string]struct {
		response string
		want     client
	}{
		"expiry as a float": {`{"client_id":"c","client_secret":"s","client_secret_expires_at":1.9e9,"client_id_issued_at":1700000000.5}`,
			client{ID: "c", Secret: "s", Method: methodBasic, Expiry: time.Unix(1_900_000_000, 0).UTC()}},
		"keys as an object": {`{"client_id":"c","jwks":{"keys":[]},"redirect_uris":null}`, client{ID: "c", Method: methodNone}},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, c.response)
			}))
			defer s.Close()
			h, err := New(Options{RedirectURL: redirect}).Handler(Server{Name: "srv", URL: s.URL}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			c.want.Issuer, c.want.Redirect, c.want.registered = s.URL, redirect, true
			got, err := h.register(t.Context(), &oauthex.AuthServerMeta{Issuer: s.URL, RegistrationEndpoint: s.URL + "/register"})
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// A server that the user trusts may have its authorization server in the same private
// network, and without TLS if it has none itself.
func TestCheckURL_PrivateNetwork(t *testing.T) {
	for _, c := range []struct {
		server, endpoint string
		policy           *outbound.Policy
		ok               bool
	}{
		{"https://10.0.0.5/mcp", "https://10.0.0.6/token", nil, true},
		{"http://intranet/mcp", "http://intranet/token", nil, true},
		{"http://intranet/mcp", "http://other/token", nil, false},
		{"https://intranet/mcp", "http://intranet/token", nil, false},
		{"https://mcp.example.com/mcp", "https://10.0.0.6/token", &outbound.Policy{}, false},
	} {
		h, err := New(Options{}).Handler(Server{Name: "srv", URL: c.server}, c.policy)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.checkURL(c.endpoint); (err == nil) != c.ok {
			t.Errorf("server %s, endpoint %s: got %v, want ok: %v", c.server, c.endpoint, err, c.ok)
		}
		h.Close()
	}
}

// The definition may name the metadata, for servers that publish wrong metadata.
func TestDiscover_MetadataURLOfDefinition(t *testing.T) {
	s := start(t, nil)
	right := s.Issuer
	s.Issuer += "/wrong"
	h := handler(t, s, Options{Authorize: approve(nil)}, nil)
	if err := greet(t.Context(), h, "hello"); err == nil || !strings.Contains(err.Error(), "has no metadata") {
		t.Errorf("got %v", err)
	}
	h = handler(t, s, Options{Authorize: approve(nil)}, func(c *Server) { c.MetadataURL = right + "/.well-known/oauth-authorization-server" })
	if err := greet(t.Context(), h, "hello"); err != nil {
		t.Fatal(err)
	}
	s.Expire()
	if err := greet(t.Context(), h, "hello"); err != nil {
		t.Error("refresh:", err)
	}
}

func TestDiscover_Revision20250326(t *testing.T) {
	s := start(t, func(s *logintest.Server) { s.NoResourceMetadata = true })
	if err := greet(t.Context(), handler(t, s, Options{Authorize: approve(nil)}, nil), "hello"); err != nil {
		t.Fatal(err)
	}
}

// The authorization page has the right parameters, and forged responses are refused.
func TestAskUser_ChecksResponse(t *testing.T) {
	for name, c := range map[string]struct {
		server func(*logintest.Server)
		answer func(*AuthorizationResponse)
		want   string
	}{
		"another state":  {answer: func(a *AuthorizationResponse) { a.State = "x" }, want: "its state differs"},
		"no state":       {answer: func(a *AuthorizationResponse) { a.State = "" }, want: "its state differs"},
		"another issuer": {server: func(s *logintest.Server) { s.ResponseIssuer = "https://evil.example.com" }, want: `is from "https://evil.example.com"`},
		"no issuer":      {answer: func(a *AuthorizationResponse) { a.Issuer = "" }, want: "does not name the issuer"},
		"a slash more":   {answer: func(a *AuthorizationResponse) { a.Issuer += "/" }, want: "not from"},
		"no":             {server: func(s *logintest.Server) { s.Deny = true }, want: "access_denied: the user refused"},
		"another code":   {answer: func(a *AuthorizationResponse) { a.Code = "x" }, want: "invalid_grant: no such code"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, c.server)
			var asked atomic.Int32
			h := handler(t, s, Options{Authorize: func(ctx context.Context, server, page string) (AuthorizationResponse, error) {
				a, err := approve(&asked)(ctx, server, page)
				if c.answer != nil {
					c.answer(&a)
				}
				return a, err
			}}, nil)
			for range 2 {
				if err := greet(t.Context(), h, "hello"); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			}
			if src, err := h.TokenSource(t.Context()); src != nil || err != nil {
				t.Errorf("got a token: %v, %v", src, err)
			}
			if asked.Load() != 1 {
				t.Errorf("asked %d times, want once: the transport tries twice", asked.Load())
			}
			if name != "another code" && s.Count("/token") != 0 {
				t.Error("the code was sent to the token endpoint")
			}
		})
	}
}

// Errors omit the query of an address, which may contain secrets.
func TestLogin_UnreachableServer(t *testing.T) {
	s := start(t, nil)
	s.Close()
	h := handler(t, s, Options{Authorize: approve(nil)}, func(c *Server) { c.URL += "?api_key=hunter2" })
	err := h.Login(t.Context())
	var dial *net.OpError
	if !errors.As(err, &dial) {
		t.Errorf("got %v, want a *net.OpError", err)
	}
	_, metadata := h.discover(t.Context(), challenge{}, true, "")
	_, token := h.exchange(t.Context(), s.Issuer+"/token?k=hunter2", s.Issuer, &client{ID: "c"}, "refresh_token", url.Values{})
	for _, err := range []error{err, metadata, token} {
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("got %v, want the address without its query", err)
		}
	}
}

func TestLogout_RevokesAndDeletes(t *testing.T) {
	s := start(t, nil)
	store := OpenStore(t.TempDir())
	h := handler(t, s, Options{Store: store, Authorize: approve(nil)}, nil)
	if was, err := h.Logout(t.Context()); was || err != nil {
		t.Errorf("without a login: %v, %v", was, err)
	}
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	if was, err := h.Logout(t.Context()); !was || err != nil {
		t.Errorf("got %v, %v", was, err)
	}
	if s.Count("/revoke") != 1 {
		t.Error("the token was not revoked")
	}
	if src, err := h.TokenSource(t.Context()); src != nil || err != nil {
		t.Errorf("got a token: %v, %v", src, err)
	}
	if state, err := store.State(h.server); err != nil || state.LoggedIn || state.Redirect != "" {
		t.Errorf("state %+v, %v", state, err)
	}
}

// holdTokens starts a server whose token endpoint, once holding is set, answers only
// after release was called.
func holdTokens(t *testing.T) (s *logintest.Server, holding *atomic.Bool, release func()) {
	hold := make(chan struct{})
	holding = new(atomic.Bool)
	s = start(t, func(s *logintest.Server) {
		s.Before = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/token" && holding.Load() {
				<-hold
			}
			return false
		}
	})
	release = sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	return s, holding, release
}

func TestRefresh_ConcurrentRequestsShareOne(t *testing.T) {
	s, holding, release := holdTokens(t)
	h := handler(t, s, Options{Store: OpenStore(t.TempDir()), Authorize: approve(nil)}, nil)
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.logins.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	holding.Store(true)
	before := s.Count("/token")
	impatient, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := h.TokenSource(impatient); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the caller's deadline", err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if src, err := h.TokenSource(t.Context()); err != nil || src == nil {
				t.Errorf("got %v, %v", src, err)
			}
		})
	}
	holding.Store(false)
	release()
	wg.Wait()
	if n := s.Count("/token") - before; n != 1 || s.Replays() != 0 {
		t.Errorf("%d refreshes, %d of them with a used token, want one", n, s.Replays())
	}
}

// A refresh whose caller has given up still stores its token before Close returns.
func TestClose_WaitsForRefresh(t *testing.T) {
	s, holding, release := holdTokens(t)
	store := OpenStore(t.TempDir())
	h := handler(t, s, Options{Store: store, Authorize: approve(nil)}, nil)
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	old, err := h.current()
	if err != nil {
		t.Fatal(err)
	}
	h.logins.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	holding.Store(true)
	impatient, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := h.TokenSource(impatient); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the caller's deadline", err)
	}
	go release()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if now, err := read(h.store, &h.server); err != nil || now.Access == "" || now.Access == old.Access {
		t.Errorf("after Close the store has the old token: %v", err)
	}
	if _, err := h.refresh(t.Context(), "x"); !errors.Is(err, errClosed) {
		t.Errorf("refresh after Close: got %v, want %v", err, errClosed)
	}
}

// Metadata of an untrusted server leads to no address that its policy refuses.
func TestHostileMetadata(t *testing.T) {
	s := start(t, nil)
	victim := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s, with %v", r.Method, r.URL, r.Header)
	}))
	defer victim.Close()
	target, _ := url.Parse(victim.URL)
	byName := "http://localhost:" + target.Port()
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request, self string) bool
		want   string
	}{
		"resource of another": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			logintest.WriteJSON(w, 200, map[string]any{"resource": "https://evil.example.com/mcp", "authorization_servers": []string{s.Issuer}})
			return true
		}, `it describes "https://evil.example.com/mcp"`},
		"resource below": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			logintest.WriteJSON(w, 200, map[string]any{"resource": self + "/mcp/other", "authorization_servers": []string{s.Issuer}})
			return true
		}, "it describes"},
		"no authorization server": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			logintest.WriteJSON(w, 200, map[string]any{"resource": self + "/mcp"})
			return true
		}, "names no authorization server"},
		"a private one": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			logintest.WriteJSON(w, 200, map[string]any{"resource": self + "/mcp", "authorization_servers": []string{"http://169.254.169.254"}})
			return true
		}, "the metadata service of a cloud"},
		"a redirect elsewhere": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			http.Redirect(w, r, byName+"/x", http.StatusFound)
			return true
		}, "a redirect to another origin"},
		"no JSON": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"resource":`)
			return true
		}, "it is not JSON"},
		"a document without end": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"resource":"`)
			for range 3 << 10 {
				fmt.Fprint(w, strings.Repeat("x", 1<<10))
			}
			return true
		}, "it is not JSON of at most 1048576 bytes"},
		"another issuer's": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			if strings.Contains(r.URL.Path, "protected-resource") {
				logintest.WriteJSON(w, 200, map[string]any{"resource": self + "/mcp", "authorization_servers": []string{self}})
			} else {
				logintest.WriteJSON(w, 200, map[string]any{"issuer": s.Issuer, "authorization_endpoint": s.Issuer + "/authorize", "token_endpoint": byName})
			}
			return true
		}, "it belongs to the issuer"},
		"an endpoint of a script": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			if strings.Contains(r.URL.Path, "protected-resource") {
				logintest.WriteJSON(w, 200, map[string]any{"resource": self + "/mcp", "authorization_servers": []string{self}})
			} else {
				logintest.WriteJSON(w, 200, map[string]any{"issuer": self, "authorization_endpoint": "javascript:alert(1)", "token_endpoint": self + "/token"})
			}
			return true
		}, "not http or https"},
		"a private endpoint": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			if strings.Contains(r.URL.Path, "protected-resource") {
				logintest.WriteJSON(w, 200, map[string]any{"resource": self + "/mcp", "authorization_servers": []string{self}})
			} else {
				logintest.WriteJSON(w, 200, map[string]any{"issuer": self, "authorization_endpoint": self + "/a", "token_endpoint": "http://192.168.0.1/token"})
			}
			return true
		}, "not on the public Internet"},
		"no PKCE": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			if strings.Contains(r.URL.Path, "protected-resource") {
				logintest.WriteJSON(w, 200, map[string]any{"resource": self + "/mcp", "authorization_servers": []string{self}})
			} else {
				logintest.WriteJSON(w, 200, map[string]any{"issuer": self, "authorization_endpoint": self + "/a", "token_endpoint": self + "/token"})
			}
			return true
		}, "PKCE"},
		"an error of the server": {func(w http.ResponseWriter, r *http.Request, self string) bool {
			http.Error(w, "no", http.StatusInternalServerError)
			return true
		}, "the server answered 500"},
	} {
		t.Run(name, func(t *testing.T) {
			var self string
			hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				c.answer(w, r, self)
			}))
			defer hostile.Close()
			self = hostile.URL
			l := New(Options{RedirectURL: redirect, Authorize: func(context.Context, string, string) (AuthorizationResponse, error) {
				t.Error("the user was asked")
				return AuthorizationResponse{}, errors.New("no")
			}})
			policy := &outbound.Policy{AllowHTTP: true, AllowLocalhost: true}
			h, err := l.Handler(Server{Name: "srv", URL: self + "/mcp"}, policy)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			if err := greet(t.Context(), h, "hello"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Responses of an authorization server are bounded, and codes and secrets are sent
// nowhere else.
func TestHostileAuthorizationServer(t *testing.T) {
	victim := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s, with %v", r.Method, r.URL, r.Header)
	}))
	defer victim.Close()
	for _, path := range []string{"/register", "/token"} {
		for name, c := range map[string]struct {
			answer func(w http.ResponseWriter, r *http.Request)
			want   string
		}{
			"redirect": {func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, strings.Replace(victim.URL, "127.0.0.1", "localhost", 1), http.StatusTemporaryRedirect)
			}, "a redirect to another origin"},
			"silence": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ""},
			"drops": {func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil {
					fmt.Fprint(w, " ")
					_ = http.NewResponseController(w).Flush()
					select { // the pace of a slow server
					case <-r.Context().Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			}, ""},
			"flood": {func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"access_token":"`)
				for range 3 << 10 {
					fmt.Fprint(w, strings.Repeat("x", 1<<10))
				}
				fmt.Fprint(w, `"}`)
			}, ""},
			"an echo": {func(w http.ResponseWriter, r *http.Request) {
				http.Error(w, "your secret is hunter2", http.StatusTeapot)
			}, "418"},
			"a line break": {func(w http.ResponseWriter, r *http.Request) {
				logintest.WriteJSON(w, http.StatusOK, map[string]string{"client_id": "", "access_token": "a\r\nX: y", "token_type": "Bearer"})
			}, ""},
			"another type": {func(w http.ResponseWriter, r *http.Request) {
				logintest.WriteJSON(w, http.StatusOK, map[string]any{"client_id": "c", "token_endpoint_auth_method": "tls_client_auth", "access_token": "a", "token_type": "DPoP"})
			}, "unknown"},
			"control characters": {func(w http.ResponseWriter, r *http.Request) {
				logintest.WriteJSON(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant", "error_description": "\x1b[2J" + strings.Repeat("y", 10_000)})
			}, "invalid_grant"},
		} {
			t.Run(path[1:]+" "+name, func(t *testing.T) {
				s := start(t, func(s *logintest.Server) {
					s.Before = func(w http.ResponseWriter, r *http.Request) bool {
						if r.URL.Path == path {
							_, _ = io.Copy(io.Discard, r.Body) // else nothing tells when the client leaves
							c.answer(w, r)
						}
						return r.URL.Path == path
					}
				})
				h := handler(t, s, Options{Authorize: approve(nil)}, nil)
				h.hc.Timeout = time.Second
				err := h.Login(t.Context())
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %v, want %q", err, c.want)
				}
				if text := err.Error(); strings.Contains(text, "hunter2") || strings.ContainsAny(text, "\x1b\r\n") || len(text) > 1000 {
					t.Errorf("the error quotes too much: %q", text)
				}
				if src, err := h.TokenSource(t.Context()); src != nil || err != nil {
					t.Errorf("got a token: %v, %v", src, err)
				}
			})
		}
	}
}

// A stored login of another server, or a damaged one, yields no token.
func TestStore_ForeignOrDamagedFile(t *testing.T) {
	s := start(t, nil)
	dir := t.TempDir()
	h := handler(t, s, Options{Store: OpenStore(dir), Authorize: approve(nil)}, nil)
	if err := h.Login(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := func(s Server) string { return filepath.Join(dir, s.key()+".json") }
	b, err := os.ReadFile(file(h.server))
	if err != nil {
		t.Fatal(err)
	}
	other := Server{Name: "other", URL: "https://other.example.com/mcp"}
	if err := os.WriteFile(file(other), b, 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := OpenStore(dir).State(other)
	if err != nil || state.LoggedIn {
		t.Errorf("a copied file counts as a login: %+v, %v", state, err)
	}
	if err := os.WriteFile(file(other), b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(dir).State(other); err == nil || !strings.Contains(err.Error(), "delete it to reset") {
		t.Errorf("damaged file: got %v, want an error with a remedy", err)
	}
	for _, server := range []Server{
		{URL: s.URL + "/"}, {URL: s.URL, ClientID: "x"}, {URL: s.URL, Resource: "x"}, {URL: s.URL, MetadataURL: "x"}, {URL: s.URL, Issuer: "x"},
		{URL: s.URL, ClientCredentials: true}, {URL: s.URL + "?x"},
	} {
		if server.key() == h.server.key() {
			t.Errorf("%+v shares a login with another", server)
		}
	}
	if (&Server{Name: "renamed", URL: s.URL + "#x", Scopes: []string{"a"}}).key() != h.server.key() {
		t.Error("renaming a server loses its login")
	}
}
