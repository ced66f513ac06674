package mcpkit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// Trust is what a server's definition may make this machine do.
type Trust int

const (
	// Untrusted definitions may connect to where the outbound policy allows, and
	// nothing else: no program, no socket, no secret. It is the default.
	Untrusted Trust = iota
	// Trusted ones may do all that they say. It is the user's to give.
	Trusted
)

// ErrUntrusted is what every [*Refusal] is, for [errors.Is].
var ErrUntrusted = errors.New("the server is not trusted")

// A Reason says what an untrusted definition asked for. The set is closed.
type Reason string

// The reasons.
const (
	Spawn       Reason = "spawn"
	Socket      Reason = "socket"
	Stream      Reason = "stream"
	Header      Reason = "header"
	Environment Reason = "environment"
	EnvFile     Reason = "env_file"
	Inherit     Reason = "inherit"
	Ask         Reason = "ask"
	Lookup      Reason = "lookup"
	Login       Reason = "login"
)

var asked = map[Reason]string{
	Spawn:       "spawn mcp server %q in untrusted mode: it runs %s",
	Socket:      "connect mcp server %q in untrusted mode to the unix socket %s",
	Stream:      "use a custom connection for mcp server %q in untrusted mode%s",
	Header:      "send mcp server %q in untrusted mode the header %s",
	Environment: "read for mcp server %q in untrusted mode the environment variables %s",
	EnvFile:     "read for mcp server %q in untrusted mode the file of variables %s",
	Inherit:     "hand mcp server %q in untrusted mode the whole environment%s",
	Ask:         "ask for mcp server %q in untrusted mode for the inputs %s",
	Lookup:      "look up for mcp server %q in untrusted mode %s",
	Login:       "log in to mcp server %q in untrusted mode with the client secret of its definition%s",
}

// A Refusal says what was not done for a server that is not trusted. What names the
// thing, such as a program or a header; never a value.
type Refusal struct {
	Server string
	Reason Reason
	What   string
}

// Error says what was refused and what would allow it.
func (r *Refusal) Error() string {
	return "refusing to " + fmt.Sprintf(asked[r.Reason], r.Server, r.What) + "; trust the server if you know it"
}

// Is reports whether target is [ErrUntrusted].
func (r *Refusal) Is(target error) bool { return target == ErrUntrusted }

// check refuses what only trusted definitions may ask for.
func (t Trust) check(s *mcpjson.Server) error {
	if t == Trusted {
		return nil
	}
	n := s.Needs()
	list := func(names []string) string { return strings.Join(names, ", ") }
	var others []string
	for _, src := range n.Other {
		others = append(others, string(src.Scheme)+":"+src.Name)
	}
	for _, rule := range []struct {
		broken bool
		reason Reason
		what   string
	}{
		{n.Spawn, Spawn, fmt.Sprintf("%q", s.Command.String())},
		{n.Socket, Socket, s.Socket.String()},
		{n.EnvFile, EnvFile, s.EnvFile.String()},
		{n.InheritEnv, Inherit, ""},
		{len(n.SensitiveHeaders) > 0, Header, list(n.SensitiveHeaders)},
		{len(n.Env) > 0, Environment, list(n.Env)},
		{len(n.Inputs) > 0, Ask, list(n.Inputs)},
		{len(others) > 0, Lookup, list(others)},
		{s.OAuth != nil && len(s.OAuth.ClientSecret) > 0, Login, ""},
	} {
		if rule.broken {
			return &Refusal{s.Name, rule.reason, rule.what}
		}
	}
	return nil
}
