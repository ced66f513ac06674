//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/login"
)

// mixedUpResponse has the browser bring a response that is not of this login, or not of
// its authorization server. The code in it must go nowhere.
func mixedUpResponse(ctx context.Context, t *trial) error {
	for name, forge := range map[string]func(a *login.AuthorizationResponse){
		"another server's":   func(a *login.AuthorizationResponse) { a.Issuer = "https://evil.example" },
		"nobody's":           func(a *login.AuthorizationResponse) { a.Issuer = "" },
		"another login's":    func(a *login.AuthorizationResponse) { a.State = "x" + a.State },
		"one without state":  func(a *login.AuthorizationResponse) { a.State = "" },
		"one like the right": func(a *login.AuthorizationResponse) { a.Issuer += "/" },
	} {
		var tokens atomic.Int32
		var self string
		address, done := listener(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case strings.Contains(r.URL.Path, "oauth-protected-resource"):
				fmt.Fprintf(w, `{"resource": %q, "authorization_servers": [%q]}`, self+"/mcp", self)
			case strings.Contains(r.URL.Path, "well-known"):
				fmt.Fprintf(w, `{"issuer": %q, "authorization_endpoint": %q, "token_endpoint": %q, "registration_endpoint": %q,
					"code_challenge_methods_supported": ["S256"], "authorization_response_iss_parameter_supported": true}`,
					self, self+"/authorize", self+"/token", self+"/register")
			case r.URL.Path == "/register":
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, `{"client_id": "x"}`)
			case r.URL.Path == "/token":
				tokens.Add(1)
				fmt.Fprint(w, `{"access_token": "x", "token_type": "Bearer"}`)
			default:
				w.WriteHeader(http.StatusUnauthorized)
			}
		})
		self = address
		asked := false
		h, err := login.New(login.Options{RedirectURL: "http://127.0.0.1:1/callback", Authorize: func(_ context.Context, _, page string) (login.AuthorizationResponse, error) {
			asked = true
			u, err := url.Parse(page)
			if err != nil {
				return login.AuthorizationResponse{}, err
			}
			a := login.AuthorizationResponse{Code: t.nonce, State: u.Query().Get("state"), Issuer: self}
			if t.cfg.mcp.shown == nil {
				forge(&a)
			}
			return a, nil
		}}).Handler(login.Server{Name: "x", URL: address + "/mcp"}, nil)
		if err != nil {
			done()
			return err
		}
		err = h.Login(ctx)
		h.Close()
		done()
		if !asked {
			return fmt.Errorf("the user was not asked: %w", err)
		}
		t.check(err != nil && tokens.Load() == 0, "a response that is %s is used: %v", name, err)
	}
	return nil
}

// strangeCallbacks has pages and programs of this machine send requests to the listener that
// waits for the browser. It is the only listener of glovebox mcp beside the gateway.
func strangeCallbacks(ctx context.Context, t *trial) error {
	l, err := login.Listen("")
	if err != nil {
		return err
	}
	defer l.Close()
	waiting, cancel := context.WithTimeout(ctx, mcpTimeout)
	defer cancel()
	type outcome struct {
		a   login.AuthorizationResponse
		err error
	}
	got := make(chan outcome, 1)
	go func() {
		a, err := l.Await(waiting, "https://login.example/?state="+t.nonce)
		got <- outcome{a, err}
	}()
	u, err := url.Parse(l.RedirectURL())
	if err != nil {
		return err
	}
	addr := u.Host
	if t.cfg.target != "" {
		addr = t.cfg.target
	}
	s := &server{addr: addr}
	mark := filepath.Join("/tmp", markName(t.nonce))
	const answer = "/callback?code=stolen&state="
	for _, r := range []request{
		{path: answer + "wrong"}, {path: answer}, {path: "/callback"}, {path: answer + t.nonce, host: "evil.example"}, {path: answer + t.nonce, host: "0.0.0.0:80"},
		{path: answer + t.nonce, method: http.MethodPost}, {path: "/x" + answer + t.nonce}, {path: "//callback?code=stolen&state=" + t.nonce},
		{path: "/stdio?transportType=stdio&command=touch&args=" + url.QueryEscape(mark)}, {path: "/sse?transportType=stdio&command=touch&args=" + url.QueryEscape(mark)},
	} {
		if r.method == "" {
			r.method = http.MethodGet
		}
		res, err := s.send(ctx, r)
		t.expect(r.method+" "+r.path+" to the listener of a login", res, err, 400, 404)
		t.check(!strings.Contains(res.body, t.nonce), "the listener tells the state of the login")
	}
	select {
	case o := <-got:
		t.broke("the listener takes %+v, %v", o.a, o.err)
	case <-time.After(100 * time.Millisecond):
		t.held(1)
	}
	if t.cfg.target != "" {
		return nil
	}
	if _, err := s.send(ctx, request{method: http.MethodGet, path: "/callback?code=right&state=" + t.nonce}); err != nil {
		return fmt.Errorf("bring the right response: %w", err)
	}
	if o := <-got; o.a.Code != "right" {
		return fmt.Errorf("the right response does not arrive: %w", errors.Join(o.err, fmt.Errorf("%+v", o.a)))
	}
	return nil
}

// programRequests sends requests that make proxies of other projects start a program: the
// one of the MCP Inspector took it from the URL, without authentication.
func programRequests(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	mark := "/tmp/" + markName(t.nonce)
	query := "transportType=stdio&command=" + url.QueryEscape("/usr/bin/touch") + "&args=" + url.QueryEscape(mark)
	for _, path := range []string{"/sse?" + query, "/stdio?" + query, "/mcp?" + query, "/proxy?" + query, "/message?" + query, "/?" + query, "/api/run?cmd=touch+" + url.QueryEscape(mark), "/cgi-bin/sh?" + query} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			body := ""
			if method == http.MethodPost {
				body = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"command":"/usr/bin/touch","args":["` + mark + `"],"transportType":"stdio"}}`
			}
			if _, err := s.send(ctx, request{method: method, path: path, body: body, headers: map[string]string{"Accept": "application/json"}}); err != nil {
				return fmt.Errorf("%s %s: %w", method, path, err)
			}
			t.held(1) // the judge looks for the file
		}
	}
	s.works(ctx, t, "")
	return nil
}

// pageAtGateway attacks a gateway over HTTP, which runs the user's servers, as web pages do.
func pageAtGateway(ctx context.Context, t *trial) error {
	c, done, err := t.client()
	if err != nil {
		return err
	}
	defer done()
	if t.cfg.Program == "" && t.cfg.target == "" {
		return skip("the run has no program to start")
	}
	if err := c.write("mcp.json", `{"mcpServers": {"x": {"command": "sh", "args": ["-c", "cat"]}}}`); err != nil {
		return err
	}
	s := &server{addr: t.cfg.target}
	if t.cfg.target == "" {
		s.cmd = t.rig.server.program(context.WithoutCancel(ctx), c.dir, "mcp", "serve", "--config", c.path("mcp.json"), "--trust", "--listen", "127.0.0.1:0")
		if err := s.begin(ctx); err != nil {
			return err
		}
		defer s.stop()
	}
	call := tool("x__y", nil)
	for name, r := range map[string]request{
		"a rebound name": {host: "evil.example"}, "a foreign origin": {headers: map[string]string{"Origin": "https://evil.example"}},
		"no origin of its own": {headers: map[string]string{"Origin": "null"}}, "a simple request": {headers: map[string]string{"Content-Type": "text/plain"}},
		"0.0.0.0": {host: "0.0.0.0:" + port(s), headers: map[string]string{"Origin": "http://0.0.0.0:" + port(s)}},
	} {
		r.body = call
		res, err := s.send(ctx, r)
		t.expect("a page with "+name, res, err, 400, 403, 415)
	}
	s.works(ctx, t, "")
	return nil
}
