package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxName is what clients take; many models' interfaces allow no more than 64.
const maxName = 64

// names are the names of tools as clients see them.
type names struct {
	of map[[2]string]string // server and tool to name
	to map[string][2]string // and back
}

func newNames() names {
	return names{of: make(map[[2]string]string), to: make(map[string][2]string)}
}

// give returns the name of a tool, the same each time. Two tools never have one.
func (n *names) give(server, tool string) string {
	key := [2]string{server, tool}
	if name, ok := n.of[key]; ok {
		return name
	}
	name := exposed(server, tool)
	if _, taken := n.to[name]; taken {
		name = marked(name, server, tool)
	}
	n.of[key], n.to[name] = name, key
	return name
}

// take gives a name back.
func (n *names) take(server, tool string) string {
	key := [2]string{server, tool}
	name := n.of[key]
	delete(n.of, key)
	delete(n.to, name)
	return name
}

func (n *names) has(name string) bool {
	_, ok := n.to[name]
	return ok
}

// exposed is server__tool in the letters that all clients take.
func exposed(server, tool string) string {
	name := plain(server) + "__" + plain(tool)
	if len(name) > maxName {
		return marked(name, server, tool)
	}
	return name
}

// marked is a name that ends in a mark of what it stands for.
func marked(name, server, tool string) string {
	sum := sha256.Sum256([]byte(server + "\x00" + tool))
	mark := "_" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxName-len(mark))] + mark
}

func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, s)
}
