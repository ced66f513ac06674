package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

// A forwarding is a request on its way to another server.
type forwarding struct {
	client  context.Context // ends when the client is gone
	server  string
	why     string          // of headerForwarded
	id      json.RawMessage // of the request; nil: none
	body    []byte
	version string   // of the protocol, if the request names none
	leave   []string // headers that are left out
}

// forward sends a request to another server as soon as that is reached, and copies its answer.
// It reports false, without an answer, if that server is gone.
//
// The request keeps the client's token: the other server authenticates it as this one has.
// The address comes from the fleet alone. Nothing is locked meanwhile.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, f fleet.Fleet, to *forwarding) (served bool) {
	begun := time.Now()
	rc := http.NewResponseController(w)
	clearWriteDeadline(rc)
	for {
		other, err := f.Server(r.Context(), to.server)
		switch {
		case r.Context().Err() != nil:
			s.giveUp(w, r.Context(), r, to)
			return true
		case err != nil:
			s.unseen.Do(func() { s.log.Warn("cannot look for another server", logkey.Error, err) })
		case other.Gone:
			return false
		case other.Address.IsValid() && s.send(w, r, f, other.Address.String(), to):
			return true
		}
		if time.Since(begun) >= reachFor {
			s.setWriteDeadline(rc)
			w.Header().Set("Retry-After", "5")
			s.refuse(w, http.StatusServiceUnavailable, to.id, codeRefused, "The server that has this session does not answer: try again in a moment. The call did not run.")
			return true
		}
		timer := time.NewTimer(reachEvery)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			s.giveUp(w, r.Context(), r, to)
			return true
		}
	}
}

var (
	// errStopping is the cause of the end of a forwarding by a server that stops.
	errStopping = errors.New("the server is stopping")
	// errOtherGone is the cause of the end of a forwarding to a server that is gone, though
	// the connection to it lasts.
	errOtherGone = errors.New("the other server is gone")
)

// giveUp answers a request whose forwarding, the context of which is ctx, has ended before the
// other server has answered. A client that is gone gets nothing, and a call that the client has
// cancelled no answer.
func (s *Server) giveUp(w http.ResponseWriter, ctx context.Context, r *http.Request, to *forwarding) {
	if to.client.Err() != nil {
		return
	}
	s.setWriteDeadline(http.NewResponseController(w))
	switch context.Cause(ctx) {
	case errCancelled:
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
	case errSessionEnded:
		s.refuseEnded(w, r, to.id, unknownSession)
	case errStopping:
		s.refuseDraining(w, r, to.id)
	default:
		s.refuseWith(w, http.StatusBadGateway, to.id, errStopped)
	}
}

// watch ends a forwarding when the other server is gone: twice in a row, since a server that
// has stopped may have sent its answer just before. That the cluster does not answer proves
// nothing.
func (s *Server) watch(ctx context.Context, f fleet.Fleet, server string, end context.CancelCauseFunc) {
	tick := time.NewTicker(s.watchEvery)
	defer tick.Stop()
	for gone := 0; gone < 2; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if other, err := f.Server(ctx, server); err == nil && other.Gone {
			gone++
		} else {
			gone = 0
		}
	}
	end(errOtherGone)
}

// A dialError says that nothing was sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// openForwarding makes the transport to other servers. Each request has a connection of its
// own: on one that was in use before, the end of the other server looks like that of a
// request which it has begun to serve.
func (s *Server) openForwarding() {
	s.watchEvery = watchEvery
	s.unseen.Interval = warnInterval
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: dialFor}).DialContext(ctx, network, address)
		if err != nil {
			return nil, &dialError{err}
		}
		return conn, nil
	}
	s.forwards = &http.Transport{
		DialContext: dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, dialFor)
			defer cancel()
			secure := tls.Client(conn, s.opts.PeersTLS)
			if err := secure.HandshakeContext(ctx); err != nil {
				conn.Close()
				return nil, &dialError{err}
			}
			return secure, nil
		},
	}
}

// send sends a request to an address. It reports false, without an answer, if nothing could
// be sent, or the other server has not served it.
func (s *Server) send(w http.ResponseWriter, r *http.Request, f fleet.Fleet, address string, to *forwarding) bool {
	sent := true
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	go s.watch(ctx, f, to.server, end)
	target := &url.URL{Scheme: "http", Host: address, Path: s.opts.Path}
	if callerIn(r).declinesCode { // nothing else in the URL counts
		target.RawQuery = codeModeParam + "=false"
	}
	if s.opts.PeersTLS != nil {
		target.Scheme = "https"
	}
	proxy := &httputil.ReverseProxy{
		Transport:     s.forwards,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = target, p.In.Host
			p.Out.TransferEncoding, p.Out.Trailer = nil, nil                   // the body is here
			for _, name := range []string{"Expect", "Connection", "Upgrade"} { // it is no proxy for another protocol
				p.Out.Header.Del(name)
			}
			p.Out.Header.Set(headerForwarded, to.why)
			p.Out.Header.Set("X-Forwarded-For", callerIn(r).remote)
			p.Out.Header.Set(headerRequest, callerIn(r).request)
			for _, name := range to.leave {
				p.Out.Header.Del(name)
			}
			if to.version != "" && p.Out.Header.Get(headerVersion) == "" {
				p.Out.Header.Set(headerVersion, to.version)
			}
			p.Out.Body, p.Out.ContentLength = http.NoBody, 0
			if len(to.body) > 0 {
				p.Out.Body, p.Out.ContentLength = io.NopCloser(bytes.NewReader(to.body)), int64(len(to.body))
			}
		},
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusServiceUnavailable && res.Header.Get(headerStopping) != "" {
				return errOtherStops
			}
			for name := range res.Header {
				w.Header().Del(name) // the answer has one of its own
			}
			b := &stoppedStream{ReadCloser: res.Body, client: to.client, ctx: ctx}
			if mediaType(res.Header.Get("Content-Type")) == "text/event-stream" {
				b.id = to.id
			}
			res.Body = b
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if _, unsent := errors.AsType[*dialError](err); unsent || errors.Is(err, errOtherStops) {
				s.log.Debug("another server is not reached", logkey.Endpoint, address, logkey.Error, err)
				sent = false
				return
			}
			if r.Context().Err() == nil {
				s.log.Warn("another server ended during a request that was forwarded to it", logkey.Endpoint, address, logkey.Error, err)
			}
			s.giveUp(w, ctx, r, to)
		},
	}
	proxy.ServeHTTP(&boundedWriter{ResponseWriter: w, s: s}, r.WithContext(ctx))
	return sent
}

// errOtherStops means that the other server is stopping, and has not served the request.
var errOtherStops = errors.New("the other server is stopping")

// errStopped is the answer to a call whose server ended.
var errStopped = &jsonrpc.Error{Code: codeRefused, Message: "The server that has this session ended during the call: whether the call ran is unknown. " +
	"A sandbox usually outlives its server: call again with its session_id or context_id and check its variables and files."}

// A stoppedStream is the body of an answer. A stream of events that breaks ends with an
// answer: a client that cannot resume it would wait for the answer until its time-out.
type stoppedStream struct {
	io.ReadCloser
	client context.Context // ends when the client is gone
	ctx    context.Context // of the forwarding
	id     json.RawMessage // nil: no answer is missing
	last   io.Reader       // nil: the stream has not broken
}

func (s *stoppedStream) Read(p []byte) (int, error) {
	if s.last != nil {
		return s.last.Read(p)
	}
	n, err := s.ReadCloser.Read(p)
	if err == nil || err == io.EOF || s.client.Err() != nil {
		return n, err
	}
	switch cause := context.Cause(s.ctx); {
	case cause == errCancelled || cause == errSessionEnded || cause == errStopping:
		return n, io.EOF // as of streams that this server serves itself
	case s.id != nil:
		var event strings.Builder
		event.WriteString("\n\nevent: message\ndata: ") // a line may be incomplete
		event.Write(envelope.ErrorReply(s.id, errStopped))
		event.WriteString("\n\n")
		s.last, err = strings.NewReader(event.String()), nil
	}
	return n, err
}

// A boundedWriter gives the client a time for each write, however long the answer takes.
type boundedWriter struct {
	http.ResponseWriter
	s *Server

	err error // of FlushError, which nobody else looks at
}

func (b *boundedWriter) Write(p []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	b.bounded(func(*http.ResponseController) { n, err = b.ResponseWriter.Write(p) })
	return n, err
}

// FlushError is for [http.ResponseController]. Small events reach the connection here.
func (b *boundedWriter) FlushError() error {
	b.bounded(func(rc *http.ResponseController) { b.err = rc.Flush() })
	return b.err
}

func (b *boundedWriter) bounded(write func(*http.ResponseController)) {
	rc := http.NewResponseController(b.ResponseWriter)
	b.s.setWriteDeadline(rc)
	defer clearWriteDeadline(rc)
	write(rc)
}

// Unwrap is for [http.ResponseController].
func (b *boundedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }
