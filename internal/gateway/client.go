package gateway

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

// A client identifies the origin of a request. Requests of one session have one client;
// each request of a modern client over HTTP has its own.
type client struct {
	session *mcp.ServerSession
	owner   string                  // from the access token, if there is one
	caps    *mcp.ClientCapabilities // for requests for input
	modern  bool                    // input is requested by a result, not by a request
	program bool                    // it is a program, from which nothing can be requested
}

func clientOf(session *mcp.ServerSession, meta mcp.Meta, extra *mcp.RequestExtra) client {
	c := client{session: session, caps: &mcp.ClientCapabilities{}}
	if extra != nil && extra.TokenInfo != nil {
		c.owner = extra.TokenInfo.UserID
	}
	version, _ := meta[mcp.MetaKeyProtocolVersion].(string)
	if c.modern = revision.IsModern(version); c.modern {
		c.caps = requestCapabilities(meta[mcp.MetaKeyClientCapabilities])
	} else if session != nil {
		if p := session.InitializeParams(); p != nil && p.Capabilities != nil {
			c.caps = p.Capabilities
		}
	}
	return c
}

// requestCapabilities parses the client capabilities in a modern request's _meta. The
// server has refused invalid ones before.
func requestCapabilities(meta any) *mcp.ClientCapabilities {
	caps := &mcp.ClientCapabilities{}
	b, err := json.Marshal(meta)
	if err != nil {
		return caps
	}
	var declared struct {
		Roots       *mcp.RootCapabilities        `json:"roots"`
		Sampling    *mcp.SamplingCapabilities    `json:"sampling"`
		Elicitation *mcp.ElicitationCapabilities `json:"elicitation"`
	}
	if json.Unmarshal(b, &declared) == nil {
		caps.RootsV2, caps.Sampling, caps.Elicitation = declared.Roots, declared.Sampling, declared.Elicitation
	}
	return caps
}

// supports reports whether the client supports a request for input, and which
// capability is missing if not.
func (c *client) supports(q mcp.InputRequest) (missing string, ok bool) {
	switch q := q.(type) {
	case *mcp.CreateMessageParams:
		return "sampling", c.caps.Sampling != nil
	case *mcp.ListRootsParams:
		return "roots", c.caps.RootsV2 != nil
	case *mcp.ElicitParams:
		e := c.caps.Elicitation
		if q.Mode == "url" || q.Mode == "" && q.URL != "" {
			return "elicitation in URL mode", e != nil && e.URL != nil
		}
		return "elicitation in form mode", e != nil && (e.Form != nil || e.URL == nil)
	}
	return "this request", false
}

// InputSchema returns the input schema of a tool that is offered now, or nil.
func (g *Gateway) InputSchema(tool string) any {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.names.original[tool]
	if !ok || g.published[at[0]] == nil {
		return nil
	}
	for _, t := range g.published[at[0]].Tools {
		if t.Name == at[1] {
			return t.InputSchema
		}
	}
	return nil
}
