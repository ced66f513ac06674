package mcpcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
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
	barred := a.barred(ctx, s) != nil
	if !wants(s) && (!barred || !a.terminal()) {
		return mcpkit.Untrusted, nil // a connection says why it is refused
	}
	if !a.terminal() {
		why := "you have not been asked about it"
		if state == consent.Changed {
			why = "its definition has changed since you allowed it"
		}
		return mcpkit.Untrusted, &Error{Code: ExitRefused,
			Err:    &notAsked{s.Name, why},
			HintTo: a.lineFor("trust", s.Name) + ", or --trust for this time"}
	}
	yes, err := a.consent(ctx, s, state)
	if err != nil || !yes {
		if err == nil {
			err = &Error{Code: ExitRefused, Err: fmt.Errorf("mcp server %q is not used: you said no", s.Name)}
		}
		return mcpkit.Untrusted, err
	}
	return mcpkit.Trusted, store.Grant(ctx, s.Name, source(s), s.Hash())
}

// source is the absolute path of the file that a definition is in, whatever the
// working directory is; "-" for a definition that is in no file.
func source(s *mcpjson.Server) string {
	switch {
	case s.File == "":
		return "-"
	case filepath.IsAbs(s.File):
		return s.File
	}
	return filepath.Join(s.Dir, s.File) // shown relative to the root, which is Dir
}

// notAsked is a server that the user would have to be asked about.
type notAsked struct{ server, why string }

func (e *notAsked) Error() string {
	return fmt.Sprintf("refusing to use mcp server %q: %s, and there is no terminal to ask at", e.server, e.why)
}

// Is reports whether target is [mcpkit.ErrUntrusted].
func (e *notAsked) Is(target error) bool { return target == mcpkit.ErrUntrusted }

// lineFor is the command "glovebox mcp VERB SERVER" for this configuration, to be
// typed in any working directory.
func (a *app) lineFor(verb, server string) string {
	line := "glovebox mcp " + verb + " "
	for _, f := range []struct{ flag, path string }{{"--config", a.flags.config}, {"--root", a.flags.root}} {
		if path, err := filepath.Abs(f.path); err == nil && f.path != "" {
			line += f.flag + " " + shellWord(path) + " "
		}
	}
	return line + shellWord(server)
}

// shellWord is a word as a shell takes it.
func shellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./:@%+,=", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// barred is why a server may not be connected to without consent because of where its
// URL leads; nil if it may, as far as that can be told without looking up names.
func (a *app) barred(ctx context.Context, s *mcpjson.Server) *outbound.Refusal {
	if s.Transport != mcpjson.TransportHTTP && s.Transport != mcpjson.TransportSSE {
		return nil
	}
	m := mcpkit.New(mcpkit.Options{Config: &mcpjson.Config{Servers: []*mcpjson.Server{s}}, Outbound: a.outbound()})
	session, err := m.Session(s.Name)
	if err != nil {
		return nil
	}
	refusal, _ := errors.AsType[*outbound.Refusal](session.Allowed(ctx))
	return refusal
}

// wants reports whether a definition asks for more than to be connected to over https.
func wants(s *mcpjson.Server) bool {
	n := s.Needs()
	secret := s.OAuth != nil && len(s.OAuth.ClientSecret) > 0
	return n.Spawn || n.Socket || n.Secrets() || len(n.SensitiveHeaders) > 0 || secret
}

// consent shows a definition and asks. Whatever is not a yes is a no.
func (a *app) consent(ctx context.Context, s *mcpjson.Server, state consent.State) (bool, error) {
	w := a.person()
	if state == consent.Changed {
		fmt.Fprintf(w, "The definition of the MCP server %q has changed since you allowed it.\n", s.Name)
	}
	a.describe(ctx, w, s)
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
func (a *app) describe(ctx context.Context, w io.Writer, s *mcpjson.Server) {
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
	if refusal := a.barred(ctx, s); refusal != nil {
		fmt.Fprintf(w, "It leads to %s, %s.\n", oneLine(refusal.Target), refusal.Why())
	}
}

// oneLine shows a value so that it cannot pass for other lines.
func oneLine(s string) string {
	return strings.ReplaceAll(printable(s), "\n", "\uFFFD")
}
