package mcpcli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// trustOf decides about a server: by flag, by what was consented to, or by asking.
// What wants nothing that needs trust is used without it.
func (a *app) trustOf(ctx context.Context, s *mcpjson.Server) (mcpkit.Trust, error) {
	if a.flags.trust {
		return mcpkit.Trusted, nil
	}
	store, err := a.consents()
	if err != nil {
		return mcpkit.Untrusted, err
	}
	state, err := store.State(s.Name, source(s), s.Hash())
	if err != nil {
		return mcpkit.Untrusted, err
	}
	if state == consent.Granted {
		return mcpkit.Trusted, nil
	}
	if !wants(s) {
		return mcpkit.Untrusted, nil
	}
	if !a.terminal() {
		why := "you have not been asked about it"
		if state == consent.Changed {
			why = "its definition has changed since you allowed it"
		}
		return mcpkit.Untrusted, &Error{Code: ExitRefused,
			Err:    fmt.Errorf("refusing to use mcp server %q: %s, and there is no terminal to ask at", s.Name, why),
			HintTo: fmt.Sprintf("glovebox mcp trust %s, or --trust for this time", s.Name)}
	}
	yes, err := a.consent(s, state)
	if err != nil || !yes {
		if err == nil {
			err = &Error{Code: ExitRefused, Err: fmt.Errorf("mcp server %q is not used: you said no", s.Name)}
		}
		return mcpkit.Untrusted, err
	}
	return mcpkit.Trusted, store.Grant(ctx, s.Name, source(s), s.Hash())
}

// source is where a definition stands, for this program wherever it is started.
func source(s *mcpjson.Server) string {
	if path, err := filepath.Abs(s.File); err == nil && s.File != "" {
		return path
	}
	return "-"
}

// wants reports whether a definition asks for more than to be connected to over https.
func wants(s *mcpjson.Server) bool {
	n := s.Needs()
	secret := s.OAuth != nil && len(s.OAuth.ClientSecret) > 0
	return n.Spawn || n.Socket || n.Secrets() || len(n.SensitiveHeaders) > 0 || secret
}

// consent shows a definition and asks. Whatever is not a yes is a no.
func (a *app) consent(s *mcpjson.Server, state consent.State) (bool, error) {
	w := a.person()
	if state == consent.Changed {
		fmt.Fprintf(w, "The definition of the MCP server %q has changed since you allowed it.\n", s.Name)
	}
	a.describe(w, s)
	fmt.Fprintf(w, "Use it? [y/N] ")
	line, err := a.line(false)
	if err != nil {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// describe shows all that a definition does.
func (a *app) describe(w io.Writer, s *mcpjson.Server) {
	n := s.Needs()
	fmt.Fprintf(w, "MCP server %s of %s\n", printable(s.Name), printable(source(s)))
	for _, f := range s.Explain() {
		fmt.Fprintf(w, "  %-16s %s\n", printable(f.Path), oneLine(f.Value))
	}
	for _, fact := range []struct {
		is   bool
		text string
	}{
		{n.Spawn, "It runs a program on this machine, with your rights."},
		{n.Socket, "It connects to a socket of this machine."},
		{n.InheritEnv, "It gets your whole environment."},
		{len(n.Env) > 0, "It gets from your environment: " + strings.Join(n.Env, ", ")},
		{n.EnvFile, "It gets what is in a file of variables."},
		{len(n.Inputs) > 0, "You will be asked for: " + strings.Join(n.Inputs, ", ")},
	} {
		if fact.is {
			fmt.Fprintln(w, printable(fact.text))
		}
	}
}

// oneLine shows a value so that it cannot pass for other lines.
func oneLine(s string) string {
	return strings.ReplaceAll(printable(s), "\n", "\uFFFD")
}
