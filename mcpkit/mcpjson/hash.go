package mcpjson

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// hashVersion changes when the hash of an unchanged definition would change, so that
// users are asked again.
const hashVersion = "glovebox-mcp-server-1"

// Hash returns a hash that identifies the definition that a user approves. It covers
// the unexpanded fields, so it reads no secrets and does not depend on the dialect. It
// omits fields without effect: titles, descriptions, switches, origins. Dir is part of
// it if relative paths matter.
func (s *Server) Hash() string {
	d := *s
	d.Title, d.Description = "", ""
	d.Disabled, d.Required = false, false
	d.Dialect, d.File, d.Origins = "", "", nil
	if !s.usesDir() {
		d.Dir = ""
	}
	// Secret follows from names and values.
	unmarked := func(pairs []Pair) []Pair {
		out := make([]Pair, len(pairs))
		for i, p := range pairs {
			out[i] = Pair{Name: p.Name, Value: p.Value}
		}
		return out
	}
	d.Env, d.Headers = unmarked(s.Env), unmarked(s.Headers)
	b, err := json.Marshal(struct {
		Version string
		Server  *Server
	}{hashVersion, &d})
	if err != nil {
		// Only an invalid Extra set by a program gets here; the loader creates none.
		panic("mcpjson: hash server " + s.Name + ": " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// usesDir reports whether the meaning of the definition depends on the directory.
func (s *Server) usesDir() bool {
	if s.Transport == TransportStdio || s.Transport == TransportUnix {
		return true
	}
	found := false
	s.texts(func(_ string, t *Text) {
		for _, src := range t.Sources() {
			found = found || src.Scheme == SchemeDir || src.Scheme == SchemeFile || src.Scheme == SchemeCommand
		}
	})
	return found
}
