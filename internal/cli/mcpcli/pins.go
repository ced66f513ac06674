package mcpcli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/pin"
	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// pins returns the store of the tools that were used; nil if servers are trusted by flag,
// or if a recording answers.
func (a *app) pins() (*pin.Store, error) {
	if a.flags.trust || a.recording != nil {
		return nil, nil
	}
	path, err := a.state("tools.json")
	if err != nil {
		return nil, err
	}
	return pin.Open(path), nil
}

// reviewCommand returns the command that shows the changed tools of a server.
func (a *app) reviewCommand(server string) string { return a.lineFor("trust --tools", server) }

// unpinCommand returns the command that accepts all changes of a server's tools.
func (a *app) unpinCommand(server string) string { return a.lineFor("trust --no-pin", server) }

// unpin asks whether to accept all changes of a server's tools, now and later.
func (a *app) unpin(ctx context.Context, server string, yes bool) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	m, err := a.open(cfg, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	s, err := m.Session(server) // connects to nothing
	if err != nil {
		return err
	}
	path, err := a.state("tools.json")
	if err != nil {
		return err
	}
	if !yes {
		if !a.terminal() {
			return usage("use --yes", "no terminal to ask about the tools of mcp server %q", server)
		}
		fmt.Fprintf(a.person(), "Accept all changes of the tools of the MCP server %s, now and later, without a review? [y/N] ", oneLine(server))
		if err := a.approved(server); err != nil {
			return err
		}
	}
	if err := pin.Open(path).AcceptAny(ctx, s.Definition().Hash()); err != nil {
		return err
	}
	a.note("glovebox: changes of the tools of %s are accepted without asking; %s compares them again", server, a.reviewCommand(server))
	return nil
}

// changedTools returns the names of the tools that have changed since they were first
// used.
func (a *app) changedTools(ctx context.Context, s *mcpjson.Server, tools []*mcp.Tool) ([]string, error) {
	pins, err := a.pins()
	if pins == nil || err != nil {
		return nil, err
	}
	return pins.Changed(ctx, s.Hash(), tools)
}

// reviewTools shows the tools of a server that have changed, and asks whether to use
// them.
func (a *app) reviewTools(ctx context.Context, server string, yes bool) error {
	return a.with(ctx, server, nil, func(s *mcpkit.Session) error {
		tools, err := s.Tools(ctx)
		if err != nil {
			return err
		}
		path, err := a.state("tools.json")
		if err != nil {
			return err
		}
		pins := pin.Open(path)
		changed, err := pins.Review(ctx, s.Definition().Hash(), tools)
		switch {
		case err != nil:
			return err
		case len(changed) == 0:
			if err := pins.Accept(ctx, s.Definition().Hash(), tools); err != nil { // ends --no-pin
				return err
			}
			a.note("glovebox: the tools of %s have not changed", server)
			return nil
		case !yes && !a.terminal():
			return usage("use --yes", "no terminal to ask about the tools of mcp server %q", server)
		}
		w := a.Err
		if !yes {
			w = a.person()
		}
		fmt.Fprintf(w, "These tools of the MCP server %s have changed since they were first used:\n", oneLine(server))
		for _, t := range tools {
			if slices.Contains(changed, t.Name) {
				showTool(w, t)
				showDefinition(w, t)
			}
		}
		if !yes {
			fmt.Fprint(w, "Use them? [y/N] ")
			if err := a.approved(server); err != nil {
				return err
			}
		}
		if err := pins.Accept(ctx, s.Definition().Hash(), tools); err != nil {
			return err
		}
		a.cacheTools(ctx, s.Definition(), tools) // an older listing would count as changed
		return nil
	})
}

// approved reads the answer to a question about a server's tools. It returns an error
// unless the user approves.
func (a *app) approved(server string) error {
	ok, err := a.yes()
	if err == nil && !ok {
		err = &Error{Code: ExitRefused, Err: fmt.Errorf("the tools of mcp server %q were not approved", server)}
	}
	return err
}

// maxShownMember bounds a member of a tool's definition, in characters.
const maxShownMember = 16 << 10

// showDefinition prints everything else that the pin of a tool covers, as JSON.
func showDefinition(w io.Writer, t *mcp.Tool) {
	c := *t
	c.Description, c.Meta, c.Icons = "", nil, nil
	var members map[string]any
	if b, err := json.Marshal(c); err != nil || json.Unmarshal(b, &members) != nil {
		return // not reached: it was decoded from JSON
	}
	delete(members, "name")
	for _, name := range slices.Sorted(maps.Keys(members)) {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("    ", " ")
		if enc.Encode(members[name]) != nil {
			continue // not reached
		}
		text := []rune(shortSpaces(string(visible.JSON([]byte(strings.TrimSpace(b.String()))))))
		if more := len(text) - maxShownMember; more > 0 {
			text = append(text[:maxShownMember], []rune(fmt.Sprintf("\n    … %d more characters: glovebox mcp tools -o json shows all", more))...)
		}
		fmt.Fprintf(w, "  %s: %s\n", oneLine(name), string(text))
	}
	fmt.Fprintln(w)
}
