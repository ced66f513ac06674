package mcpserver

import "net/http"

// shareAnswer lets pages of other origins read the answer.
func (s *Server) shareAnswer(w http.ResponseWriter) {
	if s.opts.CORS {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, Retry-After")
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
