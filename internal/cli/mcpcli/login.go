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

// clientName is the name that authorization servers show to the user.
const clientName = "Glovebox"

func (a *app) loginCommand() *cobra.Command {
	var noBrowser bool
	cmd := &cobra.Command{
		Use:   "login SERVER",
		Short: "Log in to a server with OAuth",
		Long: `Login opens a server's login page in your browser, and stores the tokens in files
that only you can read. All commands use and refresh them, until they expire or you
log out.

The browser returns to an address of this machine: that of oauth.redirectUri or
oauth.callbackPort, if the configuration sets one. If your browser is on another
machine, use --no-browser: open the page that login shows, log in, and paste the
address that the browser then fails to open.`,
		Args:              exactly(1),
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(func(ctx context.Context, args []string) error { return a.login(ctx, args[0], noBrowser) }),
	}
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "print the login page's URL instead of opening it, and read the final URL from standard input")
	return cmd
}

// logins returns the store of logins.
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

// withLogin calls f with the login handler of a server, which handlers creates.
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

// waiting waits for the browser's return, or for its final URL from the user.
type waiting struct {
	a         *app
	noBrowser bool
	redirect  string
	loopback  *login.Loopback // nil if the browser returns elsewhere
}

// listen listens at the address that the browser returns to: that of the definition, or
// the registered one.
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
		w.loopback, err = login.Listen("") // the port is in use
	}
	if err != nil {
		return err
	}
	w.redirect = w.loopback.RedirectURL()
	return nil
}

func (w *waiting) close() {
	if w.loopback != nil {
		_ = w.loopback.Close() // no one returns any more
	}
}

// authorize shows the login page and waits.
func (w *waiting) authorize(ctx context.Context, server, page string) (login.AuthorizationResponse, error) {
	opened := !w.noBrowser && browse(page) == nil
	if opened {
		w.a.note("glovebox: log in to %s in your browser. If no page opened, open this one:", server)
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
		w.a.note("If the browser is on another machine, paste the final address here:")
		go func() { // ends with the input; a read of a terminal cannot be cancelled
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
				results <- result{err: errors.Join(errors.New("the input ended without an address"), lines.Err())}
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

// advising adds the command to type to errors, for clients and log of the gateway,
// where no hint is shown.
type advising struct {
	*login.Handler
	classify func(error) *Error
}

// Authorize implements [auth.OAuthHandler].
func (a advising) Authorize(ctx context.Context, req *http.Request, res *http.Response) error {
	err := a.Handler.Authorize(ctx, req, res)
	if errors.Is(err, login.ErrRequired) {
		return fmt.Errorf("%w; %s", err, a.classify(err).HintTo)
	}
	return err
}

// advised returns handlers with advice.
func (a *app) advised(l *login.Logins) func(*mcpjson.Resolved, *outbound.Policy) (auth.OAuthHandler, error) {
	return func(r *mcpjson.Resolved, p *outbound.Policy) (auth.OAuthHandler, error) {
		h, err := l.Handler(login.ServerFor(r), p)
		if err != nil {
			return nil, err
		}
		return advising{h, a.classify}, nil
	}
}

// browse opens a page in the user's browser. The URL is an argument of its own, which
// no shell parses.
func browse(page string) error {
	argv := []string{"xdg-open"}
	switch runtime.GOOS {
	case "darwin":
		argv = []string{"open"}
	case "windows":
		argv = []string{"rundll32", "url.dll,FileProtocolHandler"}
	default:
		if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			return errors.New("no display")
		}
	}
	cmd := exec.Command(argv[0], append(argv[1:], page)...)
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release() // it may be the browser itself
}
