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

// trustOf decides on a server: by flag, by an earlier approval, or by asking the user.
// A server that needs no approval is used without.
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
		return mcpkit.Untrusted, nil // connecting returns the refusal
	}
	if !a.terminal() {
		why := "you have not approved it"
		if state == consent.Changed {
			why = "its definition has changed since you approved it"
		}
		return mcpkit.Untrusted, &Error{Code: ExitRefused,
			Err:    &notAsked{s.Name, why},
			HintTo: a.lineFor("trust", s.Name) + ", or --trust for this command only"}
	}
	yes, err := a.consent(ctx, s, state)
	if err != nil || !yes {
		if err == nil {
			err = &Error{Code: ExitRefused, Err: fmt.Errorf("mcp server %q was not approved", s.Name)}
		}
		return mcpkit.Untrusted, err
	}
	return mcpkit.Trusted, store.Grant(ctx, s.Name, source(s), s.Hash())
}

// source returns the absolute path of the file with a definition; "-" if there is none.
func source(s *mcpjson.Server) string {
	switch {
	case s.File == "":
		return "-"
	case filepath.IsAbs(s.File):
		return s.File
	}
	return filepath.Join(s.Dir, s.File) // shown relative to the root, which is Dir
}

// notAsked is the error for a server that needs the user's approval when there is no
// terminal.
type notAsked struct{ server, why string }

func (e *notAsked) Error() string {
	return fmt.Sprintf("refusing to use mcp server %q: %s, and there is no terminal to ask at", e.server, e.why)
}

// Is reports whether target is [mcpkit.ErrUntrusted].
func (e *notAsked) Is(target error) bool { return target == mcpkit.ErrUntrusted }

// lineFor returns the command "glovebox mcp VERB SERVER" for this configuration, valid
// in any working directory.
func (a *app) lineFor(verb, server string) string {
	line := "glovebox mcp " + verb + " "
	for _, f := range []struct{ flag, path string }{{"--config", a.flags.config}, {"--root", a.flags.root}} {
		if path, err := filepath.Abs(f.path); err == nil && f.path != "" {
			line += f.flag + " " + shellWord(path) + " "
		}
	}
	return line + shellWord(server)
}

// shellWord quotes a word for a shell if necessary.
func shellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./:@%+,=", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// barred returns why the URL of a server requires approval, as far as it is known
// without DNS lookups; nil if it does not.
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

// wants reports whether a definition needs more than a connection over https.
func wants(s *mcpjson.Server) bool {
	n := s.Needs()
	secret := s.OAuth != nil && len(s.OAuth.ClientSecret) > 0
	return n.Spawn || n.Socket || n.Secrets() || len(n.SensitiveHeaders) > 0 || secret
}

// consent shows a definition and asks the user. Any answer but yes means no.
func (a *app) consent(ctx context.Context, s *mcpjson.Server, state consent.State) (bool, error) {
	w := a.person()
	if state == consent.Changed {
		fmt.Fprintf(w, "The definition of the MCP server %q has changed since you approved it.\n", s.Name)
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

// describe shows everything that a definition does.
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
		{n.Spawn, "It runs a program on this machine, as your user."},
		{n.Socket, "It connects to a socket on this machine."},
		{n.InheritEnv, "It gets all of your environment variables."},
		{len(n.Env) > 0, "It gets these environment variables: " + strings.Join(n.Env, ", ")},
		{n.EnvFile, "It gets the variables in a file."},
		{len(n.Inputs) > 0, "It will ask you for: " + strings.Join(n.Inputs, ", ")},
	} {
		if fact.is {
			fmt.Fprintln(w, printable(fact.text))
		}
	}
	if refusal := a.barred(ctx, s); refusal != nil {
		fmt.Fprintf(w, "It connects to %s, %s.\n", oneLine(refusal.Target), refusal.Why())
	}
}

// oneLine makes text safe to print within a line.
func oneLine(s string) string {
	return strings.ReplaceAll(printable(s), "\n", "\uFFFD")
}
