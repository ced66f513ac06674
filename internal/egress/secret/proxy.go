package secret

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	// keepAlive is how long connections to the host without a request stay open.
	keepAlive = 60 * time.Second
	// dialTimeout bounds the handshake with the host.
	dialTimeout = 10 * time.Second
	// maxAnswer bounds the headers of a response.
	maxAnswer = 256 << 10
	// maxStreams bounds the concurrent requests of an HTTP/2 connection, and maxConns
	// the connections to the host for those of one connection of a program.
	maxStreams = 16
	maxConns   = 8
	// Buffers for the request bodies of one HTTP/2 connection, of one request, and for an answer
	// that the program does not read.
	connBuffer   = 1 << 20
	streamBuffer = 256 << 10
	answerBuffer = 128 << 10
	// maxRequests bounds the requests of an owner to hosts with a secret that are in progress,
	// streams included: an answer that its program does not read takes up to 0.7 MB.
	maxRequests = 128
)

// ErrNotWanted means that there is no secret for the host, because it was removed
// meanwhile.
var ErrNotWanted = errors.New("there is no secret for this host")

// errStatus means that a host answers with a status that is none of HTTP.
var errStatus = errors.New("the status of the answer is invalid")

// Serve implements egress.Interceptor. It speaks HTTP/1.1 and HTTP/2 with the program as
// host, and with the host as the program. It closes c.
func (i *Interceptor) Serve(ctx context.Context, b egress.Box, host string, port uint16, c net.Conn, dial func(context.Context) (net.Conn, error), note func(why policy.Reason, text string)) error {
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{i: i, box: b, host: host, port: port, dial: dial, note: note, ctx: ctx}
	o, load, done := i.begin(b, host, func() {
		s.noteChanged()
		cancel()
	})
	s.load = load
	defer done()
	if o == nil {
		return fmt.Errorf("intercept %s: %w", host, ErrNotWanted)
	}
	a, err := i.authority(b, o.names)
	if err != nil {
		return fmt.Errorf("intercept %s: %w", host, err)
	}
	cert, err := a.Leaf(host)
	if err != nil {
		return fmt.Errorf("intercept %s: %w", host, err)
	}
	served := make(chan struct{})
	defer context.AfterFunc(ctx, func() { s.closeSoon(c, served) })()
	transport := &http.Transport{
		DialContext:       s.dialHost,
		TLSClientConfig:   &tls.Config{ServerName: host, RootCAs: i.opts.Roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true, DisableCompression: true,
		TLSHandshakeTimeout: dialTimeout, IdleConnTimeout: keepAlive, ExpectContinueTimeout: time.Second,
		MaxConnsPerHost: maxConns, MaxResponseHeaderBytes: maxAnswer,
		// A program that does not read makes answers wait here, and Go's defaults are 4 MiB a stream.
		// Answers that wait leave room for those of the other requests.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: maxStreams * answerBuffer, MaxReceiveBufferPerStream: answerBuffer},
	}
	s.proxy = &httputil.ReverseProxy{
		Rewrite: s.rewrite, ModifyResponse: s.modifyResponse, ErrorHandler: s.failed,
		Transport: transport, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0), // errors of programs and hosts are not errors of the server
	}
	server := &http.Server{
		Handler:                      s,
		DisableGeneralOptionsHandler: true,
		TLSConfig:                    &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12},
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: connBuffer, MaxReceiveBufferPerStream: streamBuffer},
	}
	webserve.Serve(server, c)
	close(served)
	s.wait() // also for a handler that hijacked the connection
	transport.CloseIdleConnections()
	s.closeConns()
	return nil
}

// session is one connection of a program.
type session struct {
	i     *Interceptor
	box   egress.Box
	host  string
	port  uint16
	ctx   context.Context
	dial  func(context.Context) (net.Conn, error)
	note  func(why policy.Reason, text string)
	proxy *httputil.ReverseProxy
	load  *ownerLoad // of the owner

	rangesNoted atomic.Bool

	mu       sync.Mutex
	closed   bool                   // guarded by mu: no request begins any more
	requests sync.WaitGroup         // Add is guarded by mu
	active   int                    // guarded by mu: requests in progress
	idle     time.Time              // guarded by mu: when the last one ended
	conns    map[*hostConn]struct{} // guarded by mu; nil: all are closed
	done     bool                   // guarded by mu: no connection to the host is kept any more
}

// begin reports whether a request may begin; then the caller calls s.requests.Done.
func (s *session) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.requests.Add(1)
	s.active++
	return true
}

// end ends a request that begin has begun.
func (s *session) end() {
	s.mu.Lock()
	s.active--
	s.idle = time.Now()
	s.mu.Unlock()
	s.requests.Done()
}

// noteChanged notes that requests end because the secrets of the host have changed: the program
// sees only that the answers are incomplete.
func (s *session) noteChanged() {
	s.mu.Lock()
	active := s.active
	s.mu.Unlock()
	if active > 0 {
		s.note(egress.Cut, fmt.Sprintf("Glovebox ended a connection to %s: the operator has changed a secret of this host. What it transferred is incomplete; connect again.", s.authority()))
	}
}

// abortTime is how long the server waits to tell a program that its requests have failed, before it
// closes their connection: over HTTP/2, some clients take the end of the connection for that of the answer.
const abortTime = 500 * time.Millisecond

// closeSoon closes the connection of a session that ends. served is closed when it has ended.
func (s *session) closeSoon(c net.Conn, served <-chan struct{}) {
	defer c.Close()
	s.mu.Lock()
	quiet := s.active == 0 && time.Since(s.idle) > abortTime
	s.mu.Unlock()
	if quiet {
		return
	}
	timer := time.NewTimer(abortTime)
	defer timer.Stop()
	select {
	case <-served:
	case <-timer.C:
	}
}

// wait waits for the requests, and lets no other begin.
func (s *session) wait() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.requests.Wait()
}

// hostConn is a connection to the host, closed at the latest with the session.
type hostConn struct {
	net.Conn
	s *session
}

func (c *hostConn) Close() error {
	c.s.mu.Lock()
	delete(c.s.conns, c)
	c.s.mu.Unlock()
	return c.Conn.Close()
}

// dialError is an error of connecting to the host, as opposed to one of talking to it. Its
// text has nothing from the host.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// dialHost connects to the host. The transport may call it in a goroutine that outlives
// the request, but not the session.
func (s *session) dialHost(context.Context, string, string) (net.Conn, error) {
	c, err := s.dial(s.ctx)
	if err != nil {
		return nil, dialError{err}
	}
	h := &hostConn{c, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		c.Close()
		return nil, dialError{context.Canceled}
	}
	if s.conns == nil {
		s.conns = make(map[*hostConn]struct{})
	}
	s.conns[h] = struct{}{}
	return h, nil
}

func (s *session) closeConns() {
	s.mu.Lock()
	s.done = true
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
}

// authority returns the host as it is in the Host header.
func (s *session) authority() string {
	if s.port == 443 {
		return s.host
	}
	return net.JoinHostPort(s.host, strconv.Itoa(int(s.port)))
}

// upload is the body of a request. It knows whether it was read to its end.
type upload struct {
	io.ReadCloser
	ended atomic.Bool
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err == io.EOF {
		u.ended.Store(true)
	}
	return n, err
}

// exchange is what serves a request.
type exchange struct {
	host  *hostSecrets
	out   *response
	parts bool // the program asked for a part
}

type exchangeKey struct{}

// exchangeOf returns what serves the request of a context.
func exchangeOf(ctx context.Context) exchange { return ctx.Value(exchangeKey{}).(exchange) }

// ServeHTTP serves one request.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.end()
	r, done := s.i.bounds.Begin(w, r)
	defer done()
	// Other secrets for this host end the session, which may still read a request.
	h := s.i.host(s.box, s.host)
	switch authority := strings.ToLower(r.Host); {
	case h == nil:
		refuse(w, http.StatusMisdirectedRequest, "the secrets for "+s.host+" have changed; connect again.")
		return
	case authority != s.host && authority != net.JoinHostPort(s.host, strconv.Itoa(int(s.port))):
		refuse(w, http.StatusMisdirectedRequest, fmt.Sprintf("this connection is for %s, the request for %q; connect to that host.", s.authority(), visible.Line(cut(r.Host))))
		return
	case r.URL.IsAbs() && !strings.EqualFold(r.URL.Scheme, "https"):
		refuse(w, http.StatusBadRequest, "the URL of the request has another scheme than https.")
		return
	case r.URL.Opaque != "":
		refuse(w, http.StatusBadRequest, "the URL of the request is neither a path nor absolute.")
		return
	case r.Method == http.MethodTrace || r.Method == http.MethodConnect:
		// TRACE returns the request with the secret in a form that the host chooses.
		w.Header().Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		refuse(w, http.StatusMethodNotAllowed, "hosts with a secret get no "+r.Method+" requests.")
		return
	case s.load.requests.Add(1) > maxRequests:
		s.load.requests.Add(-1)
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("%d requests to hosts with a secret are in progress; wait for some to end.", maxRequests))
		return
	}
	defer s.load.requests.Add(-1)
	if r.ContentLength != 0 {
		// After an upgrade, the connection would have two readers, of which one panics.
		r.Header.Del("Upgrade")
	}
	out := newResponse(w, s.i.bounds, h.mask, s)
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, exchange{h, out, asksForPart(r)}))
	if r.Body != nil && r.Body != http.NoBody {
		out.upload = &upload{ReadCloser: r.Body}
		r.Body = out.upload
	}
	defer func() {
		if n := out.end(); n > 0 {
			s.report(Event{Kind: Masked, Secrets: h.names(), Count: n})
		}
	}()
	s.proxy.ServeHTTP(out, r)
	out.finish()
}

func (s *session) report(e Event) {
	e.Box, e.Host = s.box, s.host
	s.i.report(e)
}

// report reports an event, unless the owner had too many of its kind and secrets.
func (i *Interceptor) report(e Event) {
	keys := make([]lineKey, len(e.Secrets))
	for j, name := range e.Secrets {
		keys[j] = lineKey{e.Box.Owner, name, e.Kind}
	}
	var ok bool
	if e.Omitted, ok = i.lines.Allow(keys...); ok {
		i.opts.Report(e)
	}
}

func (h *hostSecrets) names() []string {
	names := make([]string, len(h.secrets))
	for i, s := range h.secrets {
		names[i] = s.Name
	}
	return names
}

// cut shortens text from a request.
func cut(text string) string { return text[:min(len(text), 80)] }

// refuse answers a request that is not forwarded. If that is the fault of the request, the
// connection ends, so that the limit of new connections also limits refusals.
func refuse(w http.ResponseWriter, status int, text string) {
	if status < http.StatusInternalServerError {
		w.Header().Set("Connection", "close")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "Glovebox: "+text+"\n") // the program may have left
}

// removed are request headers with which a program could get pieces of a response, or a
// coding that hides the value. Programs work without them.
var removed = []string{"Range", "If-Range", "Request-Range", "X-Ms-Range", "A-Im", "Sec-Websocket-Extensions", "Accept-Charset"}

// identity are request headers that name the codings in which a program takes a response, or its
// messages. The server asks for none.
var identity = []string{"Accept-Encoding", "Grpc-Accept-Encoding", "Connect-Accept-Encoding"}

// rewrite prepares the request to the host. ReverseProxy has removed hop-by-hop headers,
// apart from those of an upgrade.
func (s *session) rewrite(pr *httputil.ProxyRequest) {
	h := exchangeOf(pr.In.Context()).host
	out := pr.Out
	out.URL.Scheme, out.URL.Host, out.URL.User = "https", s.authority(), nil
	out.URL.RawQuery = pr.In.URL.RawQuery // ReverseProxy removes what it cannot parse
	out.Host = s.authority()
	for _, name := range removed {
		out.Header.Del(name)
	}
	for _, name := range identity {
		if name == identity[0] || out.Header.Get(name) != "" {
			out.Header.Set(name, "identity")
		}
	}
	withoutCharset(out.Header)
	if !strings.EqualFold(out.Header.Get("Upgrade"), "websocket") {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	for _, secret := range h.secrets {
		if where := secret.misplaced(out.URL, out.Header); where != "" {
			s.report(Event{Kind: Misplaced, Secrets: []string{secret.Name}, Where: where})
			s.note(egress.Misplaced, fmt.Sprintf("Glovebox sent the placeholder of the secret %s to %s as it is, in its %s: the secret goes out in the header %s only.",
				secret.Name, s.host, visible.Line(cut(where)), strings.Join(secret.Headers, " or ")))
		}
	}
	if used := h.swap(out.Header, s.i.opts.Key, s.box.Owner); len(used) > 0 {
		s.report(Event{Kind: Swapped, Secrets: used})
	}
}

// modifyResponse prepares a response, before the masking of response.
func (s *session) modifyResponse(res *http.Response) error {
	res.Header.Del("Alt-Svc")       // other protocols and ports do not come here
	res.Header.Del("Accept-Ranges") // requests lose theirs: a client would resume in vain
	if res.StatusCode == http.StatusSwitchingProtocols {
		return checkUpgrade(res)
	}
	if res.StatusCode < http.StatusOK || res.StatusCode > 999 {
		return errStatus // net/http would not write it, and its headers would not be masked
	}
	if res.Request.Method == http.MethodHead || res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified {
		return nil // there is no body
	}
	if err := checkWhole(res); err != nil {
		return err
	}
	s.noteRanges(res)
	if res.ContentLength < 0 && len(res.TransferEncoding) == 0 && res.ProtoMajor == 1 {
		exchangeOf(res.Request.Context()).out.unframed = true
	}
	return nil
}

// failed answers a request for which the host gave no usable response. err may quote the
// host, so its text is shown only where it cannot.
func (s *session) failed(w http.ResponseWriter, r *http.Request, err error) {
	var dial dialError
	var form formError
	var cert *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the program has left
	case errors.As(err, &dial):
		refuse(w, http.StatusBadGateway, fmt.Sprintf("%s cannot be reached: %s", s.authority(), visible.Line(dial.Error())))
	case errors.As(err, &form):
		refuse(w, http.StatusBadGateway, fmt.Sprintf("%s answered with %s. A secret in the answer could not be masked.", s.authority(), form))
	case errors.As(err, &unknown):
		refuse(w, http.StatusBadGateway, fmt.Sprintf("the certificate of %s is signed by an authority that the server of this box does not know, so it got no secret: the operator can name the authority with --egress-ca.", s.authority()))
	case errors.As(err, &cert):
		refuse(w, http.StatusBadGateway, fmt.Sprintf("the certificate of %s is not valid for it, or has expired, so it got no secret.", s.authority()))
	default:
		refuse(w, http.StatusBadGateway, fmt.Sprintf("the connection to %s broke, or its answer is not valid HTTP.", s.authority()))
	}
}
