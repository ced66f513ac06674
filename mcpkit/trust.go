package mcpkit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// Trust tells what the definition of a server may make this machine do.
type Trust int

const (
	// Untrusted definitions may connect where the outbound policy allows. They may not
	// start programs, open sockets, use secrets or learn paths of this machine. This is
	// the default.
	Untrusted Trust = iota
	// Trusted definitions may do everything they say. Only the user should grant this.
	Trusted
)

// ErrUntrusted matches every [*Refusal] in [errors.Is].
var ErrUntrusted = errors.New("the server is not trusted")

// ErrChanged is for errors of Options.Trust that also match [ErrUntrusted]: the user has trusted
// the server, and its definition or a file that it runs has changed since.
var ErrChanged = errors.New("the server has changed since it was trusted")

// A Reason is the kind of thing that an untrusted definition requires. The set is
// closed.
type Reason string

// The reasons.
const (
	ReasonSpawn       Reason = "spawn"
	ReasonSocket      Reason = "socket"
	ReasonStream      Reason = "stream"
	ReasonHeader      Reason = "header"
	ReasonEnvironment Reason = "environment"
	ReasonEnvFile     Reason = "env_file"
	ReasonInherit     Reason = "inherit"
	ReasonInput       Reason = "ask"
	ReasonDirectory   Reason = "directory"
	ReasonLookup      Reason = "lookup"
	ReasonLogin       Reason = "login"
)

var refusals = map[Reason]string{
	ReasonSpawn:       "spawn mcp server %q in untrusted mode: it runs %s",
	ReasonSocket:      "connect mcp server %q in untrusted mode to the unix socket %s",
	ReasonStream:      "use a custom connection for mcp server %q in untrusted mode%s",
	ReasonHeader:      "send mcp server %q in untrusted mode the header %s",
	ReasonEnvironment: "read for mcp server %q in untrusted mode the environment variables %s",
	ReasonEnvFile:     "read for mcp server %q in untrusted mode the file of variables %s",
	ReasonInherit:     "hand mcp server %q in untrusted mode the whole environment%s",
	ReasonInput:       "resolve for mcp server %q in untrusted mode the inputs %s",
	ReasonDirectory:   "tell mcp server %q in untrusted mode paths of this machine: %s",
	ReasonLookup:      "look up for mcp server %q in untrusted mode %s",
	ReasonLogin:       "log in to mcp server %q in untrusted mode with the client secret of its definition%s",
}

// A Refusal reports what was refused to an untrusted server. The field What
// names the thing, such as a program or a header; never a value.
type Refusal struct {
	Server string
	Reason Reason
	What   string
}

// Error describes what was refused and what would allow it.
func (r *Refusal) Error() string {
	return "refusing to " + fmt.Sprintf(refusals[r.Reason], r.Server, r.What) + "; trust the server if you know it"
}

// Is reports whether target is [ErrUntrusted].
func (r *Refusal) Is(target error) bool { return target == ErrUntrusted }

// check refuses what only trusted definitions may require.
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
		{n.Spawn, ReasonSpawn, fmt.Sprintf("%q", s.Command.String())},
		{n.Socket, ReasonSocket, s.Socket.String()},
		{n.EnvFile, ReasonEnvFile, s.EnvFile.String()},
		{n.InheritEnv, ReasonInherit, ""},
		{len(n.SensitiveHeaders) > 0, ReasonHeader, list(n.SensitiveHeaders)},
		{len(n.Env) > 0, ReasonEnvironment, list(n.Env)},
		{len(n.Inputs) > 0, ReasonInput, list(n.Inputs)},
		{len(n.Dirs) > 0, ReasonDirectory, list(n.Dirs)},
		{len(others) > 0, ReasonLookup, list(others)},
		{s.OAuth != nil && len(s.OAuth.ClientSecret) > 0, ReasonLogin, ""},
	} {
		if rule.broken {
			return &Refusal{s.Name, rule.reason, rule.what}
		}
	}
	return nil
}
