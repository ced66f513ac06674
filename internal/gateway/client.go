package gateway

import (
	"encoding/json"
	"reflect"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

// A client is who made a request. Two requests are of one client if they came over
// one session; of a modern client over HTTP each is by itself.
type client struct {
	session *mcp.ServerSession
	owner   string                  // of the token, if one was asked for
	caps    *mcp.ClientCapabilities // what it can answer
	modern  bool                    // it is asked by an answer, not by a request
}

func clientOf(session *mcp.ServerSession, meta mcp.Meta, extra *mcp.RequestExtra) client {
	c := client{session: session, caps: &mcp.ClientCapabilities{}}
	if extra != nil && extra.TokenInfo != nil {
		c.owner = extra.TokenInfo.UserID
	}
	version, _ := meta[mcp.MetaKeyProtocolVersion].(string)
	if c.modern = revision.IsModern(version); c.modern {
		c.caps = able(meta[mcp.MetaKeyClientCapabilities])
	} else if session != nil {
		if p := session.InitializeParams(); p != nil && p.Capabilities != nil {
			c.caps = p.Capabilities
		}
	}
	return c
}

// able is what a modern request says that its client can answer. What is wrong with
// it has been refused before.
func able(meta any) *mcp.ClientCapabilities {
	caps := &mcp.ClientCapabilities{}
	b, err := json.Marshal(meta)
	if err != nil {
		return caps
	}
	var said struct {
		Roots       *mcp.RootCapabilities        `json:"roots"`
		Sampling    *mcp.SamplingCapabilities    `json:"sampling"`
		Elicitation *mcp.ElicitationCapabilities `json:"elicitation"`
	}
	if json.Unmarshal(b, &said) == nil {
		caps.RootsV2, caps.Sampling, caps.Elicitation = said.Roots, said.Sampling, said.Elicitation
	}
	return caps
}

// takes reports whether the client takes a question, and what it lacks if not.
func (c *client) takes(q mcp.InputRequest) (lacks string, ok bool) {
	switch q := q.(type) {
	case *mcp.CreateMessageParams:
		return "sampling", c.caps.Sampling != nil
	case *mcp.ListRootsParams:
		return "roots", c.caps.RootsV2 != nil
	case *mcp.ElicitParams:
		e := c.caps.Elicitation
		if q.Mode == "url" || q.Mode == "" && q.URL != "" {
			return "elicitation by a page to open", e != nil && e.URL != nil
		}
		return "elicitation by a form", e != nil && (e.Form != nil || e.URL == nil)
	}
	return "such questions", false
}

// modernRequest reports whether a request claims a revision without sessions. The params
// of a request that came without any are a nil pointer in a non-nil interface.
func modernRequest(req mcp.Request) bool {
	p := req.GetParams()
	if p == nil || reflect.ValueOf(p).IsNil() {
		return false
	}
	version, _ := p.GetMeta()[mcp.MetaKeyProtocolVersion].(string)
	return revision.IsModern(version)
}
