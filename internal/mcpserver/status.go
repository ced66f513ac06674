package mcpserver

import (
	"encoding/json"
	"maps"
	"net/http"
)

// serveStatus answers a GET that does not ask for a stream.
func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request) {
	status, code := s.health()
	page := map[string]any{
		"status":          status,
		"name":            s.opts.Name,
		"version":         s.opts.Version,
		"endpoint":        s.opts.Path,
		"tools_count":     len(s.names),
		"available_tools": s.names,
		"wrapper_started": true,
		"mcp_sessions":    s.Sessions(),
		"calls":           s.calls.counted.value(),
	}
	if s.opts.Status != nil {
		maps.Copy(page, s.opts.Status(r.Context()))
	}
	writeJSON(w, code, page)
}

func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	default:
		w.Header().Set("Allow", "GET")
		s.refuse(w, http.StatusMethodNotAllowed, nil, codeRefused, "Method Not Allowed")
		return
	}
	status, code := s.health()
	writeJSON(w, code, map[string]any{"status": status, "wrapper_started": true, "server_started": true})
}

func (s *Server) health() (string, int) {
	if s.draining.Load() {
		return "draining", http.StatusServiceUnavailable
	}
	return "healthy", http.StatusOK
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
