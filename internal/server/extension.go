package server

import (
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/server/tasks"
)

// An Extension adds to the catalogue of a server. The zero value adds nothing.
type Extension struct {
	// Instructions are added to those of the catalogue.
	Instructions string
	// Tools are added to those of the catalogue, under other names.
	Tools []Tool
	// Middleware goes around every request, whichever way it is served; the
	// first is outermost.
	Middleware []mcp.Middleware
	// Capabilities declares more than tools; may be nil. A modern request for
	// a family that is not declared is refused.
	Capabilities *mcp.ServerCapabilities
	// Configure may set handlers in the options of the SDK's server; may be nil.
	Configure func(*mcp.ServerOptions)
	// Server may add prompts and resources before the server serves; may be nil.
	Server func(*mcp.Server)
	// Alone leaves the catalogue out.
	Alone bool
	// Offers reports whether Server offers a tool of a name now; nil: it adds none.
	Offers func(tool string) bool
	// Schema returns the input schema of a tool that Server offers now, which may ask
	// for headers that repeat arguments; nil: none does.
	Schema func(tool string) any
	// Names are the tools that Server offers now, for the answer to a name that is
	// none of them; may be nil.
	Names func() []string
}

// A Tool is a tool of an [Extension].
type Tool struct {
	Def     *mcp.Tool
	Handler mcp.ToolHandler
	// Direct says that the handler does without a session, and its schema
	// without headers for parameters: then a plain call is done as one of the
	// catalogue's is, past the SDK.
	Direct bool
	// Task says how calls become tasks, if it is not nil; only with Direct.
	Task *tasks.Policy
}
