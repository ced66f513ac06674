package login

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// callbackPath is the default path of the redirect address.
	callbackPath = "/callback"
	// pageTimeout bounds a request of the browser, which is a line or two.
	pageTimeout = 10 * time.Second
	// maxPageConns bounds the open connections. A new one closes the oldest: the browser
	// needs one for a moment only.
	maxPageConns = 16
	// maxPageHeader bounds the header of a request. Its first line contains the
	// authorization response.
	maxPageHeader = 2 * maxResponse
)

// A Loopback receives the browser's redirect on this machine. Await may be called once
// at a time.
type Loopback struct {
	redirect *url.URL
	server   *http.Server
	serving  sync.WaitGroup

	mu    sync.Mutex
	state string                     // guarded by mu: of the awaited response; empty for none
	found chan AuthorizationResponse // guarded by mu: has room for one
}

// Listen listens on the loopback interface for a redirect to an address such as
// http://localhost:8123/callback. It takes host, port and path from it; the defaults
// are 127.0.0.1, any free port and /callback. The caller closes the Loopback.
func Listen(redirect string) (*Loopback, error) {
	u, err := url.Parse(redirect)
	if err == nil && redirect != "" && (u.Scheme != "http" || !loopback(u.Hostname()) || u.RawQuery != "" || u.Fragment != "") {
		err = errors.New("it is not an http address of this machine")
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s for the browser: %w", showURL(redirect), err)
	}
	u.Scheme = "http"
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "0"
	}
	if u.Path == "" {
		u.Path = callbackPath
	}
	// Either address family may be used for a name.
	addresses := []string{host}
	if net.ParseIP(host) == nil {
		addresses = []string{"127.0.0.1", "::1"}
	}
	l := &Loopback{redirect: u}
	var open connections
	l.server = &http.Server{
		Handler: http.HandlerFunc(l.serve), ReadTimeout: pageTimeout, WriteTimeout: pageTimeout, MaxHeaderBytes: maxPageHeader,
		ConnState: open.track,
	}
	l.server.SetKeepAlivesEnabled(false)
	for i, address := range addresses {
		ln, err := net.Listen("tcp", net.JoinHostPort(address, port))
		switch {
		case err != nil && i == 0:
			return nil, fmt.Errorf("listen at %s for the browser: %w", net.JoinHostPort(address, port), err)
		case err != nil:
			continue // no IPv6, or the port is in use there
		}
		port = strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
		l.serving.Go(func() { _ = l.server.Serve(ln) }) // ends with Close
	}
	u.Host = net.JoinHostPort(host, port)
	return l, nil
}

// RedirectURL returns the address to redirect to.
func (l *Loopback) RedirectURL() string { return l.redirect.String() }

// Close stops listening.
func (l *Loopback) Close() error {
	err := l.server.Close()
	l.serving.Wait()
	return err
}

// Await returns the response to the authorization at page when the browser delivers it.
// It refuses all other requests.
func (l *Loopback) Await(ctx context.Context, page string) (AuthorizationResponse, error) {
	u, err := url.Parse(page)
	if err != nil || u.Query().Get("state") == "" {
		return AuthorizationResponse{}, errors.New("await the browser: the page has no state")
	}
	found := make(chan AuthorizationResponse, 1)
	l.mu.Lock()
	l.state, l.found = u.Query().Get("state"), found
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.state, l.found = "", nil
		l.mu.Unlock()
	}()
	select {
	case a := <-found:
		return a, nil
	case <-ctx.Done():
		return AuthorizationResponse{}, fmt.Errorf("await the browser at %s: %w", showURL(l.RedirectURL()), context.Cause(ctx))
	}
}

func (l *Loopback) serve(w http.ResponseWriter, req *http.Request) {
	host, _, err := net.SplitHostPort(req.Host)
	if err != nil || !loopback(host) || req.URL.Path != l.redirect.Path || req.Method != http.MethodGet {
		http.Error(w, "Not found.", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	a, err := ParseAuthorizationResponse(req.URL.String())
	if err != nil || !l.deliver(a) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(w, "No login is waiting for this response.")
		return
	}
	if a.Error != "" {
		fmt.Fprintln(w, "The login was refused. You can close this page; the program shows the details.")
		return
	}
	fmt.Fprintln(w, "You can close this page and go back to the program.")
}

func (l *Loopback) deliver(a AuthorizationResponse) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found == nil || a.State != l.state {
		return false
	}
	l.found <- a // has room: there is only one
	l.found = nil
	return true
}

// connections are the open connections of a server, oldest first.
type connections struct {
	mu   sync.Mutex
	list []net.Conn // guarded by mu
}

// track is the server's ConnState. It closes the oldest of more than maxPageConns.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.list = append(c.list, conn)
		if len(c.list) > maxPageConns {
			c.list[0].Close() // the server then reports it as closed
			c.list = slices.Delete(c.list, 0, 1)
		}
	case http.StateHijacked, http.StateClosed:
		c.list = slices.DeleteFunc(c.list, func(open net.Conn) bool { return open == conn })
	}
}
