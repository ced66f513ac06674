package login

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

const (
	// callbackPath is where the browser comes back to, if nothing else is said.
	callbackPath = "/callback"
	// pageTimeout bounds a request of the browser, which sends a line or two.
	pageTimeout = 10 * time.Second
	// maxPageHeader bounds the header of one, with the answer in its first line.
	maxPageHeader = 2 * maxAnswer
)

// Loopback awaits the browser on this machine. Await may be called once at a time.
type Loopback struct {
	redirect *url.URL
	server   *http.Server
	serving  sync.WaitGroup

	mu    sync.Mutex
	state string                     // guarded by mu: of the answer that is awaited; "" for none
	found chan AuthorizationResponse // guarded by mu: takes one
}

// Listen awaits the browser at an address of this machine, which listens to nobody
// else. Of redirect, such as http://localhost:8123/callback, the host, the port and
// the path are taken; "" and what is left out are for 127.0.0.1, any free port and
// /callback. The caller closes it.
func Listen(redirect string) (*Loopback, error) {
	u, err := url.Parse(redirect)
	if err == nil && redirect != "" && (u.Scheme != "http" || !loopback(u.Hostname()) || u.RawQuery != "" || u.Fragment != "") {
		err = errors.New("it is no http address of this machine")
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s for the browser: %w", shown(redirect), err)
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
	// A name may be looked up as either, by whoever does.
	addresses := []string{host}
	if net.ParseIP(host) == nil {
		addresses = []string{"127.0.0.1", "::1"}
	}
	l := &Loopback{redirect: u}
	l.server = &http.Server{
		Handler: http.HandlerFunc(l.serve), ReadTimeout: pageTimeout, WriteTimeout: pageTimeout, MaxHeaderBytes: maxPageHeader,
		IdleTimeout: pageTimeout,
	}
	for i, address := range addresses {
		ln, err := net.Listen("tcp", net.JoinHostPort(address, port))
		switch {
		case err != nil && i == 0:
			return nil, fmt.Errorf("listen at %s for the browser: %w", net.JoinHostPort(address, port), err)
		case err != nil:
			continue // without IPv6, or in use there
		}
		port = strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
		l.serving.Go(func() { _ = l.server.Serve(ln) }) // ends with Close
	}
	u.Host = net.JoinHostPort(host, port)
	return l, nil
}

// RedirectURL is the address.
func (l *Loopback) RedirectURL() string { return l.redirect.String() }

// Close stops listening.
func (l *Loopback) Close() error {
	err := l.server.Close()
	l.serving.Wait()
	return err
}

// Await returns the answer to the authorization at page, once the browser brings
// it. Whatever else comes meanwhile is turned away.
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
		return AuthorizationResponse{}, fmt.Errorf("await the browser at %s: %w", shown(l.RedirectURL()), context.Cause(ctx))
	}
}

func (l *Loopback) serve(w http.ResponseWriter, req *http.Request) {
	host, _, err := net.SplitHostPort(req.Host)
	if err != nil || !loopback(host) || req.URL.Path != l.redirect.Path || req.Method != http.MethodGet {
		http.Error(w, "There is nothing here.", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Connection", "close")
	a, err := ParseAuthorizationResponse(req.URL.String())
	if err != nil || !l.deliver(a) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(w, "This is not the answer to a login that is under way here.")
		return
	}
	if a.Error != "" {
		fmt.Fprintln(w, "The login was refused. You can close this page; the program says more.")
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
	l.found <- a // has room: the first is the only one
	l.found = nil
	return true
}
