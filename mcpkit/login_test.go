package mcpkit_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/oauth2"

	"github.com/glovebox-dev/glovebox/internal/logintest"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// guarded starts a server that requires a login, and returns it with the logins of a
// user who approves.
func guarded(t *testing.T) (*logintest.Server, *login.Logins) {
	t.Helper()
	s := logintest.New()
	s.Start()
	t.Cleanup(s.Close)
	return s, login.New(login.Options{RedirectURL: "http://127.0.0.1:7/callback", Authorize: func(ctx context.Context, _, page string) (login.AuthorizationResponse, error) {
		back, err := logintest.Approve(ctx, page)
		if err != nil {
			return login.AuthorizationResponse{}, err
		}
		return login.ParseAuthorizationResponse(back)
	}})
}

func loginSession(t *testing.T, def *mcpjson.Server, change func(*mcpkit.Options)) *mcpkit.Session {
	t.Helper()
	def.Name = "srv"
	o := mcpkit.Options{Config: &mcpjson.Config{Servers: []*mcpjson.Server{def}},
		Trust: func(context.Context, *mcpjson.Server) (mcpkit.Trust, error) { return mcpkit.Trusted, nil }}
	if change != nil {
		change(&o)
	}
	m := mcpkit.New(o)
	t.Cleanup(func() { m.Close() })
	s, err := m.Session("srv")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The token is sent over every transport over HTTP, with every message.
func TestLogin_EveryTransport(t *testing.T) {
	for name, c := range map[string]struct {
		path      string
		transport mcpjson.Transport
		fallback  bool
		era       mcpkit.Era
	}{
		"modern":            {"/mcp", mcpjson.TransportHTTP, false, mcpkit.Auto},
		"legacy":            {"/mcp", mcpjson.TransportHTTP, false, mcpkit.Legacy},
		"older transport":   {"/sse", mcpjson.TransportSSE, false, mcpkit.Auto},
		"fallback to older": {"/sse", mcpjson.TransportHTTP, true, mcpkit.Auto},
	} {
		t.Run(name, func(t *testing.T) {
			srv, logins := guarded(t)
			at := strings.TrimSuffix(srv.URL, "/mcp") + c.path
			s := loginSession(t, &mcpjson.Server{Transport: c.transport, URL: mcpjson.Literal(at), SSEFallback: c.fallback}, func(o *mcpkit.Options) {
				o.OAuth, o.Era = logins.OAuth, c.era
			})
			call := func(tool string) {
				t.Helper()
				res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool})
				if err != nil || len(res.Content) != 1 || res.Content[0].(*mcp.TextContent).Text != "done by "+tool {
					t.Fatalf("got %+v, %v", res, err)
				}
			}
			call("hello")
			call("admin")
			srv.Expire()
			call("hello")
			if err := s.Notify(t.Context(), "notifications/roots/list_changed", nil); err != nil {
				t.Error("a notification:", err)
			}
			if n := srv.Count("/authorize"); n != 2 {
				t.Errorf("asked %d times, want once for each scope", n)
			}
		})
	}
}

func TestLogin_Required(t *testing.T) {
	srv, _ := guarded(t)
	def := &mcpjson.Server{Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(srv.URL)}
	s := loginSession(t, def, func(o *mcpkit.Options) { o.OAuth = login.New(login.Options{}).OAuth })
	_, err := s.Tools(t.Context())
	var needed *login.RequiredError
	if !errors.As(err, &needed) || needed.Server != "srv" {
		t.Errorf("got %v, want a login.RequiredError", err)
	}
	none := loginSession(t, def, nil)
	if err := none.OAuth(t.Context(), func(auth.OAuthHandler) error { return nil }); !errors.Is(err, mcpkit.ErrNoLogin) {
		t.Errorf("without logins: %v, want ErrNoLogin", err)
	}
}

// A token is sent only to its server, wherever that redirects.
func TestLogin_TokenStaysAtTheServer(t *testing.T) {
	srv, logins := guarded(t)
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s with %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	elsewhere := strings.Replace(thief.URL, "127.0.0.1", "localhost", 1)
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				http.Redirect(w, r, elsewhere+"/mcp", status)
				return
			}
			if r.Method == http.MethodGet {
				logintest.WriteJSON(w, http.StatusOK, map[string]any{"resource": "http://" + r.Host + "/mcp", "authorization_servers": []string{srv.Issuer}})
				return
			}
			w.WriteHeader(http.StatusUnauthorized)
		}))
		s := loginSession(t, &mcpjson.Server{Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(redirecting.URL + "/mcp")}, func(o *mcpkit.Options) { o.OAuth = logins.OAuth })
		if _, err := s.Tools(t.Context()); err == nil || !strings.Contains(err.Error(), "a redirect to another origin") {
			t.Errorf("%d: got %v, want a refusal", status, err)
		}
		redirecting.Close()
	}
}

// unwilling is a login handler that fails.
type unwilling struct{ err error }

func (u unwilling) TokenSource(context.Context) (oauth2.TokenSource, error) { return nil, nil }

func (u unwilling) Authorize(_ context.Context, _ *http.Request, res *http.Response) error {
	res.Body.Close()
	return u.err
}

// A modern server that requires a login also gets the legacy handshake, which it does
// not know. The error is that of the login.
func TestLogin_FailureIsTheError(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") == "2026-07-28" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		http.Error(w, "no such handshake", http.StatusBadRequest)
	}))
	t.Cleanup(srv.Close)
	why := errors.New("nobody said yes")
	s := loginSession(t, &mcpjson.Server{Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(srv.URL)}, func(o *mcpkit.Options) {
		o.OAuth = func(*mcpjson.Resolved, *outbound.Policy) (auth.OAuthHandler, error) { return unwilling{why}, nil }
	})
	if _, err := s.Tools(t.Context()); !errors.Is(err, why) || strings.Contains(err.Error(), "handshake") {
		t.Errorf("got %v, want %v", err, why)
	}
}
