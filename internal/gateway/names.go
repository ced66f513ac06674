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
	servers  []string             // configured, in order
	exposed  map[[2]string]string // by server and tool
	original map[string][2]string // server and tool by exposed name
}

func newNames(servers []string) names {
	return names{servers: servers, exposed: make(map[[2]string]string), original: make(map[string][2]string)}
}

// assign returns the exposed name of a tool: the same name for each call, and never one
// that another tool has. It returns "" if there is no such name, which takes an effort
// of the server.
func (n *names) assign(server, tool string) string {
	key := [2]string{server, tool}
	if name, ok := n.exposed[key]; ok {
		return name
	}
	name := n.nameFor(server, tool)
	if n.has(name) {
		name = withHash(name, server, tool)
	}
	if n.has(name) {
		return ""
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

// nameFor returns server__tool, limited to characters that all clients accept. A name
// that belongs to another server gets a hash.
func (n *names) nameFor(server, tool string) string {
	name := sanitize(server) + "__" + sanitize(tool)
	if len(name) > maxName || n.serverOf(name, server) != server {
		return withHash(name, server, tool)
	}
	return name
}

// serverOf returns the configured server that a name belongs to: the one with the
// longest matching prefix, then one whose name needs no sanitizing, then the first. It
// does not depend on which server answers first, so that no server can take a name, and
// the approvals that a client remembers for it, from another.
func (n *names) serverOf(name, otherwise string) string {
	best, length := otherwise, -1
	for _, s := range n.servers {
		clean := sanitize(s)
		if !strings.HasPrefix(name, clean+"__") {
			continue
		}
		if better := len(clean) > length || len(clean) == length && clean == s && sanitize(best) != best; better {
			best, length = s, len(clean)
		}
	}
	return best
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
