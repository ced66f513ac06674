package mcpcli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/login"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// clientName is what authorization servers show of us to people.
const clientName = "Glovebox"

func (a *app) loginCommand() *cobra.Command {
	var noBrowser bool
	cmd := &cobra.Command{
		Use:   "login SERVER",
		Short: "Log in to a server that wants OAuth",
		Long: `Login has you say yes to a server's login in your browser, and keeps what comes of
it in files that only you may read. All commands use it, and refresh it; it lasts
until the server ends it or you log out.

The browser comes back to an address of this machine: that of oauth.redirectUri or
of oauth.callbackPort, if the configuration has one. Where the browser is on another
machine, use --no-browser: open the page that is shown, say yes, and paste the
address that the browser cannot open then.`,
		Args:              exactly(1),
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(func(ctx context.Context, args []string) error { return a.login(ctx, args[0], noBrowser) }),
	}
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "show the page and open nothing; the address that it leads back to may be pasted")
	return cmd
}

// logins is where logins are kept.
func (a *app) logins() (*login.Store, error) {
	dir, err := a.state("logins")
	if err != nil {
		return nil, err
	}
	return login.OpenStore(dir), nil
}

func (a *app) login(ctx context.Context, name string, noBrowser bool) error {
	store, err := a.logins()
	if err != nil {
		return err
	}
	w := &waiting{a: a, noBrowser: noBrowser}
	defer w.close()
	var s login.Server
	err = a.withLogin(ctx, name, func(r *mcpjson.Resolved, p *outbound.Policy) (auth.OAuthHandler, error) {
		s = login.ServerFor(r)
		state, err := store.State(s)
		if err == nil {
			err = w.listen(r.Server.OAuth, state.Redirect)
		}
		if err != nil {
			return nil, err
		}
		return login.New(login.Options{Store: store, Authorize: w.authorize, RedirectURL: w.redirect, ClientName: clientName}).Handler(s, p)
	}, func(h *login.Handler) error { return h.Login(ctx) })
	if err != nil {
		if e := a.classify(err); e.Code == ExitFailure {
			return &Error{Code: ExitRefused, Err: err, HintTo: e.HintTo}
		}
		return err
	}
	state, err := store.State(s)
	if err != nil {
		return err
	}
	if a.flags.output == "json" {
		return a.json(map[string]any{"server": name, "issuer": state.Issuer, "scopes": state.Scopes})
	}
	for_ := ""
	if len(state.Scopes) > 0 {
		for_ = " for " + strings.Join(state.Scopes, " ")
	}
	a.note("glovebox: logged in to %s at %s%s", name, state.Issuer, for_)
	return nil
}

// withLogin does something with what logs in to a server, made by handlers.
func (a *app) withLogin(ctx context.Context, name string, handlers func(*mcpjson.Resolved, *outbound.Policy) (auth.OAuthHandler, error), f func(*login.Handler) error) (err error) {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	m, err := a.open(cfg, func(o *mcpkit.Options) error { o.OAuth = handlers; return nil })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	s, err := m.Session(name) // connects to nothing
	if err != nil {
		return err
	}
	return s.OAuth(ctx, func(h auth.OAuthHandler) error { return f(h.(*login.Handler)) })
}

// waiting is for the browser to come back, or for somebody to say where it went.
type waiting struct {
	a         *app
	noBrowser bool
	redirect  string
	loopback  *login.Loopback // nil if the browser goes elsewhere
}

// listen finds the address for the browser to come back to: that of the definition,
// or the one that is registered.
func (w *waiting) listen(o *mcpjson.OAuth, registered string) (err error) {
	configured := ""
	switch {
	case o != nil && o.RedirectURL != "":
		configured = o.RedirectURL
		if !strings.HasPrefix(configured, "http://") {
			w.redirect = configured
			return nil
		}
	case o != nil && o.CallbackPort != 0:
		configured = "http://" + net.JoinHostPort("localhost", strconv.Itoa(o.CallbackPort)) + "/callback"
	}
	if configured != "" {
		w.loopback, err = login.Listen(configured)
	} else if w.loopback, err = login.Listen(registered); err != nil {
		w.loopback, err = login.Listen("") // somebody else has the port
	}
	if err != nil {
		return err
	}
	w.redirect = w.loopback.RedirectURL()
	return nil
}

func (w *waiting) close() {
	if w.loopback != nil {
		_ = w.loopback.Close() // nobody comes any more
	}
}

// authorize shows the page and waits.
func (w *waiting) authorize(ctx context.Context, server, page string) (login.AuthorizationResponse, error) {
	opened := !w.noBrowser && browse(page) == nil
	if opened {
		w.a.note("glovebox: your browser asks whether %s may be used. If it does not, open this page:", server)
	} else {
		w.a.note("glovebox: open this page in a browser to log in to %s:", server)
	}
	w.a.note("\n  %s\n", page)
	type result struct {
		answer login.AuthorizationResponse
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, 2)
	if w.loopback != nil {
		go func() { // ends with ctx
			answer, err := w.loopback.Await(ctx, page)
			results <- result{answer, err}
		}()
	}
	if w.noBrowser || w.loopback == nil || w.a.terminal() {
		w.a.note("If the browser is on another machine, paste the address that it ends at:")
		go func() { // ends with the input; nothing can end the wait for a person's words
			lines := bufio.NewScanner(w.a.In)
			lines.Buffer(nil, maxAnswer)
			for lines.Scan() {
				answer, err := login.ParseAuthorizationResponse(strings.TrimSpace(lines.Text()))
				if err == nil {
					results <- result{answer, nil}
					return
				}
				w.a.note("glovebox: %v; paste all of it", err)
			}
			if w.loopback == nil {
				results <- result{err: errors.Join(errors.New("the input ended before an address came"), lines.Err())}
			}
		}()
	}
	select {
	case r := <-results:
		return r.answer, r.err
	case <-ctx.Done():
		return login.AuthorizationResponse{}, context.Cause(ctx)
	}
}

// advising says what to type where nobody sees the hint of an error: to clients of
// the gateway, and in its log.
type advising struct {
	*login.Handler
	classify func(error) *Error
}

// Authorize implements [auth.OAuthHandler].
func (h advising) Authorize(ctx context.Context, req *http.Request, res *http.Response) error {
	err := h.Handler.Authorize(ctx, req, res)
	if errors.Is(err, login.ErrRequired) {
		return fmt.Errorf("%w; %s", err, h.classify(err).HintTo)
	}
	return err
}

// advised makes the handlers that give advice.
func (a *app) advised(l *login.Logins) func(*mcpjson.Resolved, *outbound.Policy) (auth.OAuthHandler, error) {
	return func(r *mcpjson.Resolved, p *outbound.Policy) (auth.OAuthHandler, error) {
		h, err := l.Handler(login.ServerFor(r), p)
		if err != nil {
			return nil, err
		}
		return advising{h, a.classify}, nil
	}
}

// browse opens a page in the user's browser. The address is an argument of its own,
// which no shell sees.
func browse(page string) error {
	argv := []string{"xdg-open"}
	switch runtime.GOOS {
	case "darwin":
		argv = []string{"open"}
	case "windows":
		argv = []string{"rundll32", "url.dll,FileProtocolHandler"}
	default:
		if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			return errors.New("there is no screen")
		}
	}
	cmd := exec.Command(argv[0], append(argv[1:], page)...)
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release() // it may be the browser itself, and stays
}
