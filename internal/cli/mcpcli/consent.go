package mcpcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
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
	q, err := a.question(ctx, store, s)
	if err != nil {
		return mcpkit.Untrusted, &Error{Code: ExitRefused, Err: err}
	}
	if q.state == consent.Granted {
		return mcpkit.Trusted, nil
	}
	barred := a.barred(ctx, s) != nil
	if !wants(s) && (!barred || !a.terminal()) {
		return mcpkit.Untrusted, nil // connecting returns the refusal
	}
	if !a.terminal() {
		why := "you have not approved it"
		if q.state == consent.Changed {
			why = q.changed() + " has changed since you approved it"
		}
		return mcpkit.Untrusted, &Error{Code: ExitRefused,
			Err:    &notAsked{s.Name, why, q.state == consent.Changed},
			HintTo: a.lineFor("trust", s.Name) + ", or --trust for this command only"}
	}
	if q.Files, err = a.files(ctx, s); err != nil {
		return mcpkit.Untrusted, &Error{Code: ExitRefused, Err: err}
	}
	yes, err := a.consent(ctx, s, q)
	if err != nil || !yes {
		if err == nil {
			err = &Error{Code: ExitRefused, Err: fmt.Errorf("mcp server %q was not approved", s.Name)}
		}
		return mcpkit.Untrusted, err
	}
	return mcpkit.Trusted, store.Grant(ctx, q.Definition)
}

// A question is a definition that may need the user's approval. It has no files if the
// user has not approved the definition: call app.files before you show it.
type question struct {
	consent.Definition
	state consent.State
	files []string // that have changed since the user approved the definition
}

// question returns the state of a definition. It reads the files that the definition
// runs only if the user has approved the definition.
func (a *app) question(ctx context.Context, store *consent.Store, s *mcpjson.Server) (q question, err error) {
	q.Definition = consent.Definition{Server: s.Name, Source: source(s), Hash: s.Hash()}
	if q.state, err = store.Match(q.Definition); err != nil || q.state != consent.Granted {
		return q, err
	}
	if q.Files, err = a.files(ctx, s); err != nil {
		return q, err
	}
	q.state, q.files, err = store.State(q.Definition)
	return q, err
}

// files returns the files that a definition runs.
func (a *app) files(ctx context.Context, s *mcpjson.Server) ([]consent.File, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	return a.hashes.Files(ctx, s, mcpjson.Resolver{Env: a.Lookup, Root: s.Dir, Home: home})
}

// changed names what has changed since the user approved the definition.
func (q *question) changed() string {
	switch len(q.files) {
	case 0:
		return "its definition"
	case 1:
		if !filepath.IsAbs(q.files[0]) {
			return "one of its files" // of those that are one entry
		}
		return "its file " + strconv.Quote(q.files[0])
	}
	return fmt.Sprintf("its file %q, with %s,", q.files[0], plural.N(len(q.files)-1, "other"))
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
type notAsked struct {
	server, why string
	changed     bool // since the user approved it
}

func (e *notAsked) Error() string {
	return fmt.Sprintf("refusing to use mcp server %q: %s, and there is no terminal to ask at", e.server, e.why)
}

// Is reports whether target is [mcpkit.ErrUntrusted] or, for a server that has changed,
// [mcpkit.ErrChanged].
func (e *notAsked) Is(target error) bool {
	return target == mcpkit.ErrUntrusted || e.changed && target == mcpkit.ErrChanged
}

// lineFor returns the command "glovebox mcp VERB SERVER" for this configuration, valid
// in any working directory.
func (a *app) lineFor(verb, server string) string {
	line := a.Prefix + "glovebox mcp " + verb + " "
	for _, f := range []struct{ flag, path string }{{"--config", a.flags.config}, {"--root", a.flags.root}} {
		if path, err := filepath.Abs(f.path); err == nil && f.path != "" {
			line += f.flag + " " + ShellWord(path) + " "
		}
	}
	if a.flags.owner != "" {
		line += "--owner " + ShellWord(a.flags.owner) + " "
	}
	return line + ShellWord(server)
}

// ShellWord quotes a word for a shell if necessary.
func ShellWord(s string) string {
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

// consent shows a definition and asks the user.
func (a *app) consent(ctx context.Context, s *mcpjson.Server, q question) (bool, error) {
	w := a.person()
	if q.state == consent.Changed {
		fmt.Fprintf(w, "The MCP server %s needs your approval again: %s has changed since you approved it.\n", visible.Line(s.Name), visible.Line(q.changed()))
	}
	a.describe(ctx, w, s, q.Files)
	fmt.Fprint(w, "Use it? [y/N] ")
	return a.yes()
}

// yes reads the user's answer. Any answer but yes means no.
func (a *app) yes() (bool, error) {
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

const (
	// maxShownText bounds a title or description, which have no effect.
	maxShownText = 300
	// valueColumn is the column at which values begin.
	valueColumn = 19
	// valueWidth is the width of a line of a value. Longer values continue on lines that
	// begin with a bar, so that they cannot imitate another field.
	valueWidth = 100
)

// describe shows everything that a definition does. All of it was written by others.
func (a *app) describe(ctx context.Context, w io.Writer, s *mcpjson.Server, files []consent.File) {
	n := s.Needs()
	fmt.Fprintf(w, "MCP server %s of %s\n", visible.Line(s.Name), visible.Line(source(s)))
	for _, f := range s.Explain() {
		if f.Path == "title" || f.Path == "description" {
			f.Value = truncate.Runes(f.Value, maxShownText)
		}
		fmt.Fprintf(w, "  %-*s %s\n", valueColumn-3, visible.Line(f.Path), wrapped(f.Value))
	}
	for _, fact := range []struct {
		is   bool
		text string
	}{
		{n.Spawn, "It runs a program on this machine, as your user, in " + s.Program(ctx, mcpjson.Resolver{Root: s.Dir}).Dir + "."},
		{n.Socket, "It connects to a socket on this machine."},
		{n.InheritEnv, "It gets all of your environment variables."},
		{len(n.Env) > 0, "It gets these environment variables: " + strings.Join(n.Env, ", ")},
		{n.EnvFile, "It gets the variables in a file."},
		{len(n.Inputs) > 0, "It will ask you for: " + strings.Join(n.Inputs, ", ")},
		{len(n.Dirs) > 0 && !n.Spawn, "It learns paths of this machine: " + strings.Join(n.Dirs, ", ")},
	} {
		if fact.is {
			fmt.Fprintln(w, visible.Line(fact.text))
		}
	}
	if refusal := a.barred(ctx, s); refusal != nil {
		fmt.Fprintf(w, "It connects to %s, %s.\n", visible.Line(refusal.Target), refusal.Why())
	}
	a.describeFiles(w, n.Spawn, files)
	for _, r := range s.Risks() {
		fmt.Fprintf(w, "Note: %s %s.\n", visible.Line(r.Path), visible.Line(r.Text))
	}
}

// describeFiles shows which files an approval covers, and that it covers no others.
func (a *app) describeFiles(w io.Writer, spawns bool, files []consent.File) {
	shown := 0
	for _, f := range files {
		switch {
		case f.Hashed():
			fmt.Fprintf(w, "  %-*s %s  sha256 %s\n", valueColumn-3, "file", visible.Line(f.Path), f.SHA256)
		case f.SHA256 != "":
			fmt.Fprintf(w, "  %-*s %s  content not compared: %s\n", valueColumn-3, "file", visible.Line(f.Path), f.SHA256)
		default:
			continue // it does not exist
		}
		shown++
	}
	switch {
	case shown > 0:
		fmt.Fprintln(w, "If these files change, or others take their place, Glovebox asks again. It does not\nwatch what they load, nor packages that are downloaded: these can change at any time.")
	case len(files) > 0:
		fmt.Fprintln(w, "If a local file appears that would run instead, Glovebox asks again. It does not watch\nprograms of the system, nor packages that are downloaded: these can change at any time.")
	case spawns:
		fmt.Fprintln(w, "The program, and what it loads or downloads, can change at any time after you approve it.")
	}
}

// wrapped returns a value on one or more lines of which only the first can be taken for
// a field.
func wrapped(value string) string {
	rest := []rune(shortSpaces(visible.Line(value)))
	var b strings.Builder
	for len(rest) > valueWidth {
		b.WriteString(string(rest[:valueWidth]) + "\n" + strings.Repeat(" ", valueColumn-2) + "| ")
		rest = rest[valueWidth:]
	}
	return b.String() + string(rest)
}

// maxSpaces is the length of the longest run of spaces that is shown as it is. Longer
// ones would push text out of the window.
const maxSpaces = 8

var manySpaces = lazyregexp.New(fmt.Sprintf(" {%d,}", maxSpaces+1))

// shortSpaces replaces long runs of spaces by their number.
func shortSpaces(s string) string {
	return manySpaces().ReplaceAllStringFunc(s, func(run string) string { return fmt.Sprintf(" (%d spaces) ", len(run)) })
}

// oneLine makes text safe to print within a line.
func oneLine(s string) string { return visible.Line(s) }
