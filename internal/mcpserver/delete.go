package mcpserver

import (
	"errors"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serveDELETE ends a session at once: the SDK would wait for its calls.
func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) {
	if id := r.Header.Get(headerSession); id != "" {
		s.calls.cancel(func(of mcp.Session) bool { return of != nil && of.ID() == id }, errors.New("the client ended the session"))
	}
	res := newResponse(w, nil, 0)
	defer res.finish()
	s.stateful.ServeHTTP(res, r.WithContext(r.Context()))
}
