package server

import "net/http"

const methods = "GET, POST, DELETE, OPTIONS"

// cors sets the headers with which browsers let the pages of allowed origins read the
// answer. It answers preflight requests, and then reports true; they carry no
// credentials, so that comes before authentication.
func (s *Server) cors(w http.ResponseWriter, r *http.Request, origin string) (done bool) {
	h := w.Header()
	share := ""
	switch {
	case s.opts.CORS:
		share = "*" // the server uses no credentials of browsers
	case len(s.opts.AllowedOrigins) > 0:
		h.Add("Vary", "Origin")
		if s.originListed(origin) {
			share = origin
		}
	}
	if share != "" {
		h.Set("Access-Control-Allow-Origin", share)
		h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, Mcp-Protocol-Version, WWW-Authenticate, Retry-After, Allow")
	}
	if r.Method != http.MethodOptions || origin == "" || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	if share != "" {
		h.Set("Access-Control-Allow-Methods", methods)
		h.Set("Access-Control-Allow-Headers", "Content-Type, Accept, Authorization, Last-Event-ID, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name")
		h.Set("Access-Control-Max-Age", "86400")
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}
