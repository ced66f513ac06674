// Package revision names the revisions of the MCP specification at which the
// protocol changed, and says which of them a request has. Revisions are dates, so they
// compare as strings.
package revision

import (
	"reflect"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// NoBatch is the first revision without JSON-RPC batches.
	NoBatch = "2025-06-18"
	// ResourceLinks is the first revision with content of type resource_link.
	ResourceLinks = NoBatch
	// Resumable is the first revision whose streams begin with an event that
	// carries an id only, so that clients can resume them from the start.
	Resumable = "2025-11-25"
	// LastLegacy is the last revision with sessions and the initialize handshake.
	LastLegacy = "2025-11-25"
	// Modern is the first revision without sessions: each request carries its
	// revision and the client's capabilities.
	Modern = "2026-07-28"
)

// IsModern reports whether version is a revision without sessions.
func IsModern(version string) bool { return version >= Modern }

// IsModernRequest reports whether a request claims a revision without sessions. The params
// of a request that came without any are a nil pointer in a non-nil interface.
func IsModernRequest(req mcp.Request) bool {
	p := req.GetParams()
	if p == nil || reflect.ValueOf(p).IsNil() {
		return false
	}
	version, _ := p.GetMeta()[mcp.MetaKeyProtocolVersion].(string)
	return IsModern(version)
}
