package mcpkit

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// Each requirement of an untrusted definition is refused with an error of its own,
// before anything is started, read or connected to.
func TestD4_Untrusted(t *testing.T) {
	env := mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeEnv, Name: "MY_TOKEN"})
	const url = "https://mcp.example.com/mcp"
	with := func(change func(*mcpjson.Server)) *mcpjson.Server {
		s := endpoint("srv", url)
		change(s)
		return s
	}
	marker := filepath.Join(t.TempDir(), "started")
	for _, tt := range []struct {
		name string
		def  *mcpjson.Server
		want string
	}{
		{"stdio", &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportStdio, Command: mcpjson.Literal("touch"), Args: []mcpjson.Text{mcpjson.Literal(marker)}},
			`refusing to spawn mcp server "srv" in untrusted mode: it runs "touch"; trust the server if you know it`},
		{"unix", &mcpjson.Server{Name: "srv", Transport: mcpjson.TransportUnix, Socket: mcpjson.Literal("/run/x.sock")},
			`refusing to connect mcp server "srv" in untrusted mode to the unix socket /run/x.sock; trust the server if you know it`},
		{"authorization", with(func(s *mcpjson.Server) {
			s.Headers = []mcpjson.Pair{{Name: "AUTHORIZATION", Value: mcpjson.Literal("Bearer hunter2")}}
		}), `refusing to send mcp server "srv" in untrusted mode the header authorization; trust the server if you know it`},
		{"cookie", with(func(s *mcpjson.Server) {
			s.Headers = []mcpjson.Pair{{Name: "Cookie", Value: mcpjson.Literal("hunter2")}}
		}), `the header cookie;`},
		{"bearer token", with(func(s *mcpjson.Server) { s.BearerTokenEnv = "MY_TOKEN" }), `the header authorization;`},
		{"environment", with(func(s *mcpjson.Server) { s.Headers = []mcpjson.Pair{{Name: "X-Key", Value: env}} }),
			`refusing to read for mcp server "srv" in untrusted mode the environment variables MY_TOKEN;`},
		{"input", with(func(s *mcpjson.Server) {
			s.Headers = []mcpjson.Pair{{Name: "X-Key", Value: mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeInput, Name: "key"})}}
		}), `refusing to resolve for mcp server "srv" in untrusted mode the inputs key;`},
		{"command", with(func(s *mcpjson.Server) {
			s.Headers = []mcpjson.Pair{{Name: "X-Key", Value: mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeCommand, Name: "touch " + marker})}}
		}), `refusing to look up for mcp server "srv" in untrusted mode command:touch`},
		{"workspace in the URL", with(func(s *mcpjson.Server) {
			s.Dir, s.URL = "/home/ann/work", mcpjson.Text{{Literal: "https://mcp.example.com/?w="}, {Sources: []mcpjson.Source{{Scheme: mcpjson.SchemeDir, Name: mcpjson.DirRoot}}}}
		}),
			`refusing to tell mcp server "srv" in untrusted mode paths of this machine: root;`},
		{"name of the workspace in a header", with(func(s *mcpjson.Server) {
			s.Headers = []mcpjson.Pair{{Name: "X-Where", Value: mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeDir, Name: mcpjson.DirRootName})}}
		}), `paths of this machine: rootName;`},
		{"home as a default", with(func(s *mcpjson.Server) {
			s.Headers = []mcpjson.Pair{{Name: "X-Where", Value: mcpjson.Ref(mcpjson.Source{Scheme: mcpjson.SchemeValue}, mcpjson.Source{Scheme: mcpjson.SchemeDir, Name: mcpjson.DirHome})}}
		}), `paths of this machine: home;`},
		{"client secret", with(func(s *mcpjson.Server) { s.OAuth = &mcpjson.OAuth{ClientSecret: mcpjson.Literal("hunter2")} }),
			`refusing to log in to mcp server "srv" in untrusted mode with the client secret of its definition;`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asked := false
			m := manager(t, Options{
				Trust:    func(context.Context, *mcpjson.Server) (Trust, error) { return Untrusted, nil },
				Resolver: mcpjson.Resolver{Env: func(string) (string, bool) { asked = true; return "hunter2", true }},
			}, tt.def)
			_, err := session(t, m, "srv").Initialize(t.Context())
			if !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if asked {
				t.Error("a secret was read")
			}
		})
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a program was started")
	}
	// The outbound policy.
	for url, want := range map[string]outbound.Reason{
		"http://mcp.example.com/": outbound.Unencrypted, "https://localhost/": outbound.Localhost,
		"https://192.168.1.1/": outbound.Private, "https://u:p@mcp.example.com/": outbound.Credentials,
	} {
		m := manager(t, Options{Trust: func(context.Context, *mcpjson.Server) (Trust, error) { return Untrusted, nil }}, endpoint("srv", url))
		_, err := session(t, m, "srv").Initialize(t.Context())
		var r *outbound.Refusal
		if !errors.As(err, &r) || r.Reason != want || r.Server != "srv" {
			t.Errorf("%s: %v, want %s", url, err, want)
		}
	}
	m := manager(t, Options{Trust: func(context.Context, *mcpjson.Server) (Trust, error) { return Untrusted, nil }})
	here, _ := net.Pipe()
	if _, err := m.ConnectIO(t.Context(), "mine", here); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "custom connection") {
		t.Errorf("a custom connection: %v", err)
	}
}

// By default a Manager trusts no definition.
func TestTrust_DefaultIsUntrusted(t *testing.T) {
	m := New(Options{Config: &mcpjson.Config{Servers: []*mcpjson.Server{program("srv", "good")}}})
	defer m.Close()
	if _, err := session(t, m, "srv").Initialize(t.Context()); !errors.Is(err, ErrUntrusted) {
		t.Errorf("got %v", err)
	}
	no := errors.New("the user said no")
	m = manager(t, Options{Trust: func(context.Context, *mcpjson.Server) (Trust, error) { return Trusted, no }}, program("srv", "good"))
	if _, err := session(t, m, "srv").Initialize(t.Context()); !errors.Is(err, no) {
		t.Errorf("got %v, want %v", err, no)
	}
}

// The headers of a definition are sent with every request to its server, and not to the
// target of a redirect.
func TestHeaders_StayAtTheServer(t *testing.T) {
	var missing, leaked atomic.Int32
	key := func(r *http.Request) string { return r.Header.Get("X-Api-Key") }
	elsewhere := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if key(r) != "" {
			leaked.Add(1)
		}
	})
	redirects := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer() }, nil)
	checked := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if key(r) != "k" {
			missing.Add(1)
		}
		handler.ServeHTTP(w, r)
	})
	good, bad := endpoint("good", checked), endpoint("bad", redirects)
	for _, s := range []*mcpjson.Server{good, bad} {
		s.Headers = []mcpjson.Pair{{Name: "X-Api-Key", Value: mcpjson.Literal("k")}}
	}
	m := manager(t, Options{}, good, bad)
	wantCall(t, session(t, m, "good"), "echo", map[string]any{"text": "x"}, "x")
	if err := session(t, m, "good").Close(); err != nil {
		t.Error(err)
	}
	if n := missing.Load(); n != 0 {
		t.Errorf("%d requests came without the header", n)
	}
	if _, err := session(t, m, "bad").Initialize(t.Context()); !errors.Is(err, outbound.ErrRefused) {
		t.Errorf("a redirect: %v", err)
	}
	if n := leaked.Load(); n != 0 {
		t.Errorf("the header went elsewhere %d times", n)
	}
}
