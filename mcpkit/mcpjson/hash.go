package mcpjson

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// hashVersion changes when the same definition would get another hash, so that
// whoever remembers hashes asks again instead of comparing apples with pears.
const hashVersion = "glovebox-mcp-server-1"

// Hash identifies the definition: what a person who consented has consented to.
// It is of the unexpanded fields, so computing it reads no secret, and it does
// not depend on the dialect that they were written in. It leaves out what
// changes nothing that is done: titles, descriptions, switches, places in
// files. Dir is part of it where relative paths can matter.
func (s *Server) Hash() string {
	d := *s
	d.Title, d.Description = "", ""
	d.Disabled, d.Required = false, false
	d.Dialect, d.File, d.Origins = "", "", nil
	if !s.usesDir() {
		d.Dir = ""
	}
	// What is marked as secret follows from names and values.
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
		// Only an Extra that is no JSON gets here, and only from a program's
		// own hands: the loader makes none.
		panic("mcpjson: hash server " + s.Name + ": " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// usesDir reports whether the definition means different things in different
// directories.
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
