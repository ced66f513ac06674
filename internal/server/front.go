package server

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// Handler returns the whole HTTP surface: the endpoint, which also answers on
// "/", /health, /ready and /metrics.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

// serveHTTP checks the Host and the Origin of every request, then sets the headers of CORS and
// answers preflight requests, and then dispatches on the path. It authenticates requests of
// the endpoint and of /metrics only: /health, /ready, the protected resource metadata and the
// refusal of unknown paths need no token.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
		s.log.Error("panic while serving HTTP", logkey.Path, r.URL.Path, logkey.Panic, fmt.Sprint(p), logkey.Stack, string(debug.Stack()))
		writeRefusal(w, http.StatusInternalServerError, nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error"})
	}()
	if lengthInDoubt(r) {
		w.Header().Set("Connection", "close")
	}
	rc := http.NewResponseController(w)
	s.setWriteDeadline(rc)
	defer s.setWriteDeadline(rc) // for what net/http has buffered
	if r.Body != http.NoBody {
		// net/http reads the rest of a body before it sends the answer.
		_ = rc.SetReadDeadline(time.Now().Add(refusedLimit))
	}
	if !s.hostAllowed(r) {
		s.refuse(w, http.StatusForbidden, nil, codeRefused, fmt.Sprintf("Forbidden: Host header %.100q does not name this server; its operator can add names with --allowed-hosts", r.Host))
		return
	}
	origin := r.Header.Get("Origin")
	if origin != "" && !s.originAllowed(origin) {
		s.refuse(w, http.StatusForbidden, nil, codeRefused, fmt.Sprintf("Forbidden: origin %q is not allowed", origin))
		return
	}
	if s.cors(w, r, origin) {
		return
	}
	if s.serveMetadata(w, r) {
		return
	}
	switch path := r.URL.Path; {
	case path == s.opts.Path || path == "/":
		isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
		r, ok := s.identify(w, r, isRead && !parseAccept(r.Header.Values("Accept")).stream)
		if !ok {
			return
		}
		leave, ok := s.countRequest(w, r)
		if !ok {
			return
		}
		defer leave()
		if s.countConnection(w, r) && !s.refuseCodeModeValue(w, r) {
			s.serveEndpoint(w, r)
		}
	case path == "/health":
		s.serveHealth(w, r)
	case path == "/ready":
		s.serveReady(w, r)
	case path == "/metrics" && s.opts.Metrics != nil:
		r, ok := s.identify(w, r, true)
		if ok && s.countConnection(w, r) && s.permit(w, r, nil, auth.Metrics) {
			s.serveMetrics(w, r)
		}
	default:
		s.refuse(w, http.StatusNotFound, nil, codeRefused, "Not found: the endpoint is "+s.opts.Path)
	}
}

// lengthInDoubt reports whether a proxy in front may disagree about where a request ends,
// and could take the rest of its body for the next request of another client (request
// smuggling). net/http ignores a Content-Length beside Transfer-Encoding, and
// Transfer-Encoding in HTTP/1.0, without telling the handler. RFC 9112, section 6.1, asks
// for the end of the connection after such a request; it ends after every request that
// may be one.
func lengthInDoubt(r *http.Request) bool {
	return r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0)
}

// setWriteDeadline limits the time for writing the response from now on. Code that
// waits before it writes first calls clearWriteDeadline: the deadline is the connection's with
// HTTP/1 and ends the request with HTTP/2; a [response] bounds each write by itself.
func (s *Server) setWriteDeadline(rc *http.ResponseController) {
	_ = rc.SetWriteDeadline(time.Now().Add(s.opts.Limits.Write)) // not every writer has one
}

func clearWriteDeadline(rc *http.ResponseController) { _ = rc.SetWriteDeadline(time.Time{}) }

func (s *Server) serveEndpoint(w http.ResponseWriter, r *http.Request) {
	s.log.Debug("request received", logkey.Method, r.Method, logkey.Path, s.opts.Path,
		logkey.MCPSession, r.Header.Get(headerSession), logkey.Protocol, r.Header.Get(headerVersion))
	switch r.Method {
	case http.MethodOptions:
		w.Header().Set("Allow", methods)
		w.WriteHeader(http.StatusNoContent)
	case http.MethodGet, http.MethodHead:
		s.serveGET(w, r)
	case http.MethodDelete:
		s.serveDELETE(w, r)
	case http.MethodPost:
		s.servePOST(w, r)
	default:
		s.refuseMethod(w, methods)
	}
}
