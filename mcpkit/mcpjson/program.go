package mcpjson

import (
	"context"
	"path/filepath"
	"strings"
)

// A Program is what a definition of TransportStdio runs.
type Program struct {
	Argv    []string // the command and its arguments
	Dir     string   // the working directory
	EnvFile string   // the file of variables; empty for none
}

// Program returns what the definition runs, expanded as far as r can without asking the
// user and without Schemes. A part that r cannot expand is empty. Use it to find the
// files that the program consists of; Resolve expands a definition to start it.
func (s *Server) Program(ctx context.Context, r Resolver) Program {
	r.Input, r.Schemes = nil, nil
	e := expansion{ctx: ctx, r: r, s: s, out: &Resolved{Server: s}}
	p := Program{Argv: []string{e.text("command", s.Command)}, Dir: s.Dir}
	for i, a := range s.Args {
		p.Argv = append(p.Argv, e.text(indexed("args", i), a))
	}
	if len(s.Cwd) > 0 {
		p.Dir = e.path("cwd", s.Cwd)
	}
	if len(s.EnvFile) > 0 {
		p.EnvFile = e.path("envFile", s.EnvFile)
	}
	return p
}

// programName returns the name of a program without directory, version and suffix:
// "python" for /usr/bin/python3.13.
func programName(command string) string {
	name := strings.ToLower(filepath.Base(filepath.ToSlash(command)))
	if i := strings.LastIndexByte(name, '\\'); i >= 0 {
		name = name[i+1:]
	}
	for _, suffix := range []string{".exe", ".cmd", ".bat"} {
		name = strings.TrimSuffix(name, suffix)
	}
	if bare := strings.TrimRight(name, "0123456789.-"); bare != "" {
		name = bare
	}
	return name
}
