package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
)

const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"

	// headerLimit and bodyLimit end clients that trickle a request.
	headerLimit = 10 * time.Second
	bodyLimit   = 2 * time.Minute
	idleLimit   = 2 * time.Minute
	// firstBody is what is set aside for a body before its bytes are here.
	firstBody = 64 << 10
	// refusedBody and refusedLimit bound what is read, and thrown away, of a body
	// that is too large: most clients do not look for an answer while they send,
	// and would meet a reset connection in place of the reason.
	refusedBody  = 512 << 20
	refusedLimit = 10 * time.Second
	// afterGrace is what cancelled calls have to send their answer.
	afterGrace = 2 * time.Second
)

// openHTTP makes the SDK's handlers. One accepts only revisions with
// sessions, another only those without; both serve the one server.
func (s *Server) openHTTP() {
	get := func(*http.Request) *mcp.Server { return s.mcp }
	l := s.opts.Limits
	log := slog.New(quiet{s.log.Handler()})
	s.stateful = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		EventStore: newReplay(l.Replay), SessionTimeout: l.SessionIdle, Logger: log,
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true, // the front has done both
	})
	s.stateless = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, Logger: log,
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
	})
	s.statelessJSON = mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, Logger: log,
		MaxRequestBodyBytes: -1, DisableLocalhostProtection: true,
	})
}

// Handler returns the whole HTTP surface: the endpoint, which also answers on
// "/", and /health.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// Serve accepts connections on ln until ctx ends or [Server.Shutdown] is
// called, then finishes what runs and returns nil.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerLimit,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.mu.Lock()
	s.http = append(s.http, srv)
	s.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	select {
	case err := <-ended:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Limits.Grace)
	defer cancel()
	err := s.Shutdown(grace)
	<-ended
	return err
}

// Shutdown refuses what is new, waits for what runs until ctx ends, cancels
// the rest and closes sessions and connections. It may be called again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.stop.Do(func() { close(s.stopping) })
	idle := s.calls.counted.wait(ctx) && s.posts.wait(ctx)
	if !idle {
		s.log.Warn("cancel calls that outlast the shutdown", "calls", s.calls.counted.value())
	}
	s.calls.cancel(nil, errShutdown) // also the streams that only listen

	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterGrace)
	defer cancel()
	s.calls.counted.wait(last)
	s.posts.wait(last)
	for session := range s.mcp.Sessions() {
		go session.Close() // waits for handlers; ours are cancelled
	}
	s.mu.Lock()
	servers := s.http
	s.http = nil
	s.mu.Unlock()
	var errs []error
	for _, srv := range servers {
		if err := srv.Shutdown(last); err != nil {
			errs = append(errs, srv.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
		s.log.Error("panic while serving HTTP", "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		writeRefusal(w, http.StatusInternalServerError, nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"})
	}()
	if !s.hostAllowed(r) {
		s.refuse(w, http.StatusForbidden, nil, codeRefused, fmt.Sprintf("Forbidden: invalid Host header %q", r.Host))
		return
	}
	origin := r.Header.Get("Origin")
	if origin != "" && !s.originAllowed(origin) {
		s.refuse(w, http.StatusForbidden, nil, codeRefused, fmt.Sprintf("Forbidden: origin %q is not allowed", origin))
		return
	}
	if s.opts.CORS {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, Retry-After")
	}
	switch r.URL.Path {
	case "/health":
		s.serveHealth(w, r)
	case s.opts.Path, "/":
		s.serveEndpoint(w, r)
	default:
		s.refuse(w, http.StatusNotFound, nil, codeRefused, "Not found: the endpoint is "+s.opts.Path)
	}
}

func (s *Server) refuse(w http.ResponseWriter, status int, id json.RawMessage, code int64, text string) {
	s.log.Debug("refuse request", "status", status, "err", text)
	writeRefusal(w, status, id, &jsonrpc.Error{Code: code, Message: text})
}

// hostAllowed refuses requests that reach us over loopback under another
// name: a web page that had its name resolved to 127.0.0.1.
func (s *Server) hostAllowed(r *http.Request) bool {
	if loopbackHost(r.Host) || slices.Contains(s.opts.AllowedHosts, r.Host) {
		return true
	}
	if name, _, err := net.SplitHostPort(r.Host); err == nil && slices.Contains(s.opts.AllowedHosts, name) {
		return true
	}
	if len(s.opts.AllowedHosts) > 0 {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return !ok || !loopbackHost(local.String())
}

func (s *Server) originAllowed(origin string) bool {
	if s.opts.CORS || slices.Contains(s.opts.AllowedOrigins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && loopbackHost(u.Host)
}

func loopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func (s *Server) serveEndpoint(w http.ResponseWriter, r *http.Request) {
	s.log.Debug("request_received", "method", r.Method, "path", s.opts.Path,
		"session", r.Header.Get(headerSession), "protocol", r.Header.Get(headerVersion))
	switch r.Method {
	case http.MethodOptions:
		s.serveOptions(w)
	case http.MethodGet, http.MethodHead:
		s.serveGET(w, r)
	case http.MethodDelete:
		s.serveDELETE(w, r)
	case http.MethodPost:
		s.servePOST(w, r)
	default:
		w.Header().Set("Allow", "GET, POST, DELETE, OPTIONS")
		s.refuse(w, http.StatusMethodNotAllowed, nil, codeRefused, "Method Not Allowed")
	}
}

func (s *Server) serveOptions(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Allow", "GET, POST, DELETE, OPTIONS")
	if s.opts.CORS {
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Accept, Authorization, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name")
		h.Set("Access-Control-Max-Age", "86400")
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) serveGET(w http.ResponseWriter, r *http.Request) {
	accept := parseAccept(r.Header.Values("Accept"))
	switch {
	case accept.stream && r.Method == http.MethodGet:
	case accept.none || accept.any || accept.json || accept.html:
		s.serveStatus(w, r)
		return
	default:
		s.refuse(w, http.StatusNotAcceptable, nil, jsonrpc.CodeInvalidRequest, "Not Acceptable: use text/event-stream for the stream or application/json for the status")
		return
	}
	if s.draining.Load() {
		s.refuseDraining(w, nil)
		return
	}
	next := s.stateful
	if r.Header.Get(headerVersion) >= envelope.Modern {
		next = s.stateless
	}
	res := newResponse(w, nil, s.opts.Limits.Heartbeat)
	defer res.finish()
	next.ServeHTTP(res, r.WithContext(r.Context()))
}

// serveDELETE ends a session at once: the SDK would wait for its calls.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) {
	if id := r.Header.Get(headerSession); id != "" {
		s.calls.cancel(func(of mcp.Session) bool { return of != nil && of.ID() == id }, errors.New("the client ended the session"))
	}
	res := newResponse(w, nil, 0)
	defer res.finish()
	s.stateful.ServeHTTP(res, r.WithContext(r.Context()))
}

func (s *Server) refuseDraining(w http.ResponseWriter, id json.RawMessage) {
	w.Header().Set("Retry-After", "5")
	w.Header().Set("Connection", "close")
	s.refuse(w, http.StatusServiceUnavailable, id, codeRefused, "The server is shutting down")
}

func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) {
	if mediaType(r.Header.Get("Content-Type")) != "application/json" {
		s.refuse(w, http.StatusUnsupportedMediaType, nil, jsonrpc.CodeInvalidRequest, "Invalid request: Content-Type must be application/json")
		return
	}
	body, ok := s.readBody(w, r)
	if !ok {
		return
	}
	m, ok := s.peek(w, r, body)
	if !ok {
		return
	}
	if m.Method != listen {
		s.posts.add(1) // before the look, so that Shutdown misses none
		defer s.posts.add(-1)
	}
	if s.draining.Load() {
		s.refuseDraining(w, m.ID)
		return
	}
	next, json, ok := s.route(w, r, m)
	if !ok {
		return
	}
	beat := s.opts.Limits.Heartbeat
	if json {
		beat = 0
	}
	res := newResponse(w, m.ID, beat)
	defer res.finish()
	if call, ok := s.direct(r, &m); ok {
		s.serveDirect(res, r, &m, call)
		return
	}
	// A copy: the SDK assigns the body while net/http may look at it.
	to := r.WithContext(r.Context())
	to.Body = io.NopCloser(bytes.NewReader(body))
	to.ContentLength = int64(len(body))
	if json {
		to.Header = r.Header.Clone()
		to.Header.Set("Accept", "application/json, "+eventStream)
	}
	next.ServeHTTP(res, to)
}

func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	limit := s.opts.Limits.Body
	rc := http.NewResponseController(w)
	tooLarge := func() ([]byte, bool) {
		_ = rc.SetReadDeadline(time.Now().Add(refusedLimit))
		_, _ = io.CopyN(io.Discard, r.Body, refusedBody)
		w.Header().Set("Connection", "close") // there may be more of the body
		s.refuse(w, http.StatusRequestEntityTooLarge, nil, jsonrpc.CodeInvalidRequest,
			fmt.Sprintf("Request too large: the body exceeds %d bytes", limit))
		return nil, false
	}
	if r.ContentLength > limit {
		return tooLarge()
	}
	_ = rc.SetReadDeadline(time.Now().Add(bodyLimit)) // not every writer has one
	var buf bytes.Buffer
	if r.ContentLength > 0 {
		buf.Grow(int(min(r.ContentLength, firstBody)) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1))
	if n > limit {
		return tooLarge()
	}
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		s.refuse(w, http.StatusBadRequest, nil, jsonrpc.CodeInvalidRequest, "Invalid request: the body ended early")
		return nil, false
	}
	return buf.Bytes(), true
}

// known are the methods that the SDK serves; another one makes it refuse the
// whole POST in plain text.
var known = map[string]bool{
	"initialize": true, "ping": true, "server/discover": true,
	"tools/list": true, "tools/call": true,
	"prompts/list": true, "prompts/get": true, "completion/complete": true,
	"resources/list": true, "resources/templates/list": true, "resources/read": true,
	"resources/subscribe": true, "resources/unsubscribe": true,
	"logging/setLevel": true, listen: true,
	"notifications/initialized": true, "notifications/cancelled": true,
	"notifications/progress": true, "notifications/roots/list_changed": true,
}

// peek reads what decides where a body goes. What is no message, or no method
// of ours, it answers itself.
func (s *Server) peek(w http.ResponseWriter, r *http.Request, body []byte) (envelope.Envelope, bool) {
	modern := r.Header.Get(headerVersion) >= envelope.Modern
	if envelope.IsBatch(body) {
		return s.peekBatch(w, body)
	}
	m, refused := envelope.Parse(body)
	if refused != nil {
		s.refuse(w, http.StatusBadRequest, m.ID, refused.Code, refused.Message)
		return m, false
	}
	if !modern && !m.IsModern() && m.Method != "" && !known[m.Method] && s.opts.Extend == nil {
		if m.Kind == envelope.Notification {
			w.WriteHeader(http.StatusAccepted)
			return m, false
		}
		s.refuse(w, http.StatusOK, m.ID, jsonrpc.CodeMethodNotFound, "Method not found: "+m.Method)
		return m, false
	}
	return m, true
}

// peekBatch returns an envelope that stands for the batch: its method is
// initialize if any message's is.
func (s *Server) peekBatch(w http.ResponseWriter, body []byte) (all envelope.Envelope, ok bool) {
	elements, refused := envelope.Split(body)
	if refused != nil {
		s.refuse(w, http.StatusBadRequest, nil, refused.Code, refused.Message)
		return all, false
	}
	ids := make(map[string]bool)
	all.Kind = envelope.Notification
	for _, element := range elements {
		m, refused := envelope.Parse(element)
		if refused == nil && m.Method != "" && !known[m.Method] && s.opts.Extend == nil {
			refused = &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found: " + m.Method}
		}
		if refused == nil && m.Kind == envelope.Request && ids[string(m.ID)] {
			refused = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: two requests of the batch have one id"}
		}
		if refused != nil {
			s.refuse(w, http.StatusBadRequest, m.ID, refused.Code, refused.Message)
			return all, false
		}
		if m.Kind == envelope.Request {
			all.Kind = envelope.Request
			ids[string(m.ID)] = true
		}
		if all.Method != "initialize" {
			all.Method = m.Method
		}
		all.Version = max(all.Version, m.Version)
	}
	return all, true
}

// route chooses the handler; json says that it answers in one JSON body.
//
// A request of an older revision without a session is answered without one,
// unless it begins one: clients of the first generation know no handshake.
func (s *Server) route(w http.ResponseWriter, r *http.Request, m envelope.Envelope) (next http.Handler, json, ok bool) {
	accept := parseAccept(r.Header.Values("Accept"))
	modern := r.Header.Get(headerVersion) >= envelope.Modern || m.IsModern()
	bare := !modern && r.Header.Get(headerSession) == "" && m.Method != "initialize"
	switch {
	case accept.none || accept.any:
		accept.json, accept.stream = true, true
		if bare {
			return s.statelessJSON, true, true
		}
	case bare && accept.json && !accept.stream:
		return s.statelessJSON, true, true
	}
	if !accept.json || !accept.stream {
		s.refuse(w, http.StatusNotAcceptable, m.ID, jsonrpc.CodeInvalidRequest, "Not Acceptable: Accept must contain both application/json and text/event-stream")
		return nil, false, false
	}
	if modern || bare {
		return s.stateless, false, true
	}
	return s.stateful, false, true
}

type accept struct{ none, any, json, stream, html bool }

func parseAccept(values []string) (a accept) {
	a.none = true
	for _, value := range values {
		for part := range strings.SplitSeq(value, ",") {
			switch mediaType(part) {
			case "":
				continue
			case "*/*":
				a.any = true
			case "application/json", "application/*":
				a.json = true
			case eventStream, "text/*":
				a.stream = true
			case "text/html":
				a.html = true
			}
			a.none = false
		}
	}
	return a
}

func mediaType(v string) string {
	v, _, _ = strings.Cut(v, ";")
	return strings.ToLower(strings.TrimSpace(v))
}
