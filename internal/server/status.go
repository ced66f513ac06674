package server

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/auth"
	"github.com/glovebox-dev/glovebox/internal/server/statuspage"
)

// Stats is a snapshot of the server's counters.
type Stats struct {
	Connections int // of HTTP
	Sessions    int // MCP sessions, over all transports
	Streams     int // GET and subscription streams over HTTP
	Calls       int // requests that are being handled
	Dropped     int // connections that were closed before they sent a valid request, to make room for others
	Unread      int // bytes of answers that clients have not read yet, small ones not counted
}

// Stats returns the counters. It may be called at any time.
func (s *Server) Stats() Stats {
	open, dropped := s.connections.counts()
	return Stats{
		Connections: open, Dropped: dropped, Unread: s.answers.value(), Sessions: s.Sessions(), Streams: s.streams.value(), Calls: s.calls.counted.value(),
	}
}

// serveStatus answers a GET that does not ask for a stream: with a page for
// people, or as JSON.
func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request, html bool) {
	why := s.unready()
	if html {
		s.servePage(w, r, why)
		return
	}
	st := s.Stats()
	status := map[string]any{
		"status":          s.health(),
		"ready":           len(why) == 0,
		"name":            s.opts.Name,
		"version":         s.opts.Version,
		"endpoint":        s.opts.Path,
		"tools_count":     len(s.names),
		"available_tools": s.names,
		"wrapper_started": true,
		"mcp_sessions":    st.Sessions,
		"sse_streams":     st.Streams,
		"calls":           st.Calls,
	}
	if s.opts.Status != nil {
		maps.Copy(status, s.opts.Status(r.Context()))
	}
	writeJSON(w, s.statusCode(), status)
}

// statusCode returns the HTTP status of the status page: 503 while the server drains.
func (s *Server) statusCode() int {
	if s.draining.Load() {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

func (s *Server) servePage(w http.ResponseWriter, r *http.Request, why []string) {
	p := &statuspage.Page{Name: title, Version: s.opts.Version, Endpoint: s.opts.Path, State: statuspage.Ready, Why: why, Errors: s.faults.list()}
	who := callerIn(r)
	p.Subject, p.NoBoxes = who.owner(), !who.has(auth.Read)
	if len(why) > 0 {
		p.State = statuspage.Degraded
	}
	st := s.Stats()
	if s.opts.Page != nil {
		s.opts.Page(r.Context(), p)
	}
	p.Tiles = append(p.Tiles,
		statuspage.Tile{Label: "MCP sessions", Value: st.Sessions},
		statuspage.Tile{Label: "calls under way", Value: st.Calls},
	)
	if s.draining.Load() {
		p.State = statuspage.Draining
	}
	if err := statuspage.Write(w, s.statusCode(), p); err != nil {
		s.log.Debug("status page not sent", logkey.Error, err)
	}
}

// serveHealth answers that the process is alive, also while it drains: a supervisor must
// not kill it before running calls end.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	if s.onlyGET(w, r) {
		writeJSON(w, http.StatusOK, map[string]any{"status": s.health(), "wrapper_started": true, "server_started": true})
	}
}

// serveReady answers whether the server is ready for new clients, and if not, why.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	if !s.onlyGET(w, r) {
		return
	}
	why := s.unready()
	if len(why) == 0 {
		writeJSON(w, http.StatusOK, map[string]any{"ready": true})
		return
	}
	w.Header().Set("Retry-After", "5")
	writeJSON(w, http.StatusServiceUnavailable, map[string]any{"ready": false, "reasons": why})
}

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if s.onlyGET(w, r) {
		s.opts.Metrics.ServeHTTP(w, r)
	}
}

// onlyGET reports whether the method is GET or HEAD, and refuses any other.
func (s *Server) onlyGET(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	s.refuse(w, http.StatusMethodNotAllowed, nil, codeRefused, "Method Not Allowed")
	return false
}

// health returns the word for the state of the process.
func (s *Server) health() string {
	if s.draining.Load() {
		return "draining"
	}
	return "healthy"
}

// Ready reports whether the server takes new clients: [Options.Ready] has no reason
// against it and the server is not draining.
func (s *Server) Ready() bool { return len(s.unready()) == 0 }

func (s *Server) unready() []string {
	var why []string
	if s.draining.Load() {
		why = append(why, "the server is stopping")
	}
	if s.opts.Ready != nil {
		why = append(why, s.opts.Ready()...)
	}
	return why
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // a client that is gone does not miss it
}
