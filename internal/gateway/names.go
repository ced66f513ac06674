package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName bounds tool names; many model APIs allow no more than 64 characters.
const maxName = 64

// names assigns unique exposed names to tools or prompts.
type names struct {
	exposed  map[[2]string]string // by server and tool
	original map[string][2]string // server and tool by exposed name
}

func newNames() names {
	return names{exposed: make(map[[2]string]string), original: make(map[string][2]string)}
}

// assign returns the exposed name of a tool: the same name for each call, and never one
// that another tool has.
func (n *names) assign(server, tool string) string {
	key := [2]string{server, tool}
	if name, ok := n.exposed[key]; ok {
		return name
	}
	name := exposedName(server, tool)
	if _, taken := n.original[name]; taken {
		name = withHash(name, server, tool)
	}
	n.exposed[key], n.original[name] = name, key
	return name
}

// release frees the name of a tool and returns it.
func (n *names) release(server, tool string) string {
	key := [2]string{server, tool}
	name := n.exposed[key]
	delete(n.exposed, key)
	delete(n.original, name)
	return name
}

func (n *names) has(name string) bool {
	_, ok := n.original[name]
	return ok
}

// exposedName returns server__tool, limited to characters that all clients accept.
func exposedName(server, tool string) string {
	name := sanitize(server) + "__" + sanitize(tool)
	if len(name) > maxName {
		return withHash(name, server, tool)
	}
	return name
}

// withHash appends a hash of server and tool to a name and shortens it to maxName.
func withHash(name, server, tool string) string {
	sum := sha256.Sum256([]byte(server + "\x00" + tool))
	suffix := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

func sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, s)
}
