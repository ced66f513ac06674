package mcpcli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/mcpkit/consent"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// listed is a server in the output of ls. It has no secrets.
type listed struct {
	Name        string   `json:"name"`
	Transport   string   `json:"transport"`
	Target      string   `json:"target"` // command or URL, secrets masked
	Trust       string   `json:"trust"`
	Login       string   `json:"login,omitempty"`
	Error       string   `json:"error,omitempty"` // why Trust is "error"
	Disabled    bool     `json:"disabled,omitempty"`
	Description string   `json:"description,omitempty"`
	Env         []string `json:"env_keys,omitempty"`
	Headers     []string `json:"header_keys,omitempty"`
	File        string   `json:"file"`
}

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the servers of the configuration, without connecting",
		Args:    exactly(0),
		RunE:    a.run(a.ls),
	}
}

func (a *app) ls(ctx context.Context, _ []string) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	store, err := a.consents()
	if err != nil {
		return err
	}
	if _, err := store.Grants(); err != nil {
		return err
	}
	servers := make([]listed, len(cfg.Servers))
	for i, s := range cfg.Servers {
		state, problem := "", ""
		if state, err = a.trustState(ctx, s); err != nil { // its files cannot be read
			state, problem = "error", err.Error()
		}
		login, err := a.loginState(ctx, s, a.flags.trust || state == "trusted")
		if err != nil {
			return err
		}
		servers[i] = listed{
			Name: s.Name, Error: problem, Transport: string(s.Transport), Target: targetOf(s), Trust: state, Login: login,
			Disabled: s.Disabled, Description: s.Description, File: source(s),
		}
		for _, p := range s.Env {
			servers[i].Env = append(servers[i].Env, p.Name)
		}
		for _, p := range s.Headers {
			servers[i].Headers = append(servers[i].Headers, p.Name)
		}
	}
	if a.flags.output == "json" {
		return a.json(map[string]any{"config_path": cfg.Path, "dialect": cfg.Dialect, "servers": servers})
	}
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	for _, s := range servers {
		name := s.Name
		if s.Disabled {
			name += " (disabled)"
		}
		target := oneLine(s.Target)
		if s.Login != "" {
			target += "\t" + s.Login
		}
		if s.Error != "" {
			target += "\t" + oneLine(s.Error)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", oneLine(name), s.Transport, s.Trust, target)
	}
	return w.Flush()
}

// trustState returns "trusted", "ask", "changed", or "open" for a server that needs no
// approval.
func (a *app) trustState(ctx context.Context, s *mcpjson.Server) (string, error) {
	store, err := a.consents()
	if err != nil {
		return "", err
	}
	q, err := a.question(ctx, store, s)
	if err != nil {
		return "", err
	}
	switch {
	case q.state == consent.Granted:
		return "trusted", nil
	case !wants(s) && a.barred(ctx, s) == nil:
		return "open", nil
	case q.state == consent.Changed:
		return "changed", nil
	}
	return "ask", nil
}

// targetOf returns the command or URL of a server, with secrets masked.
func targetOf(s *mcpjson.Server) string {
	text := ""
	for _, f := range s.Explain() {
		switch {
		case f.Path == "command", f.Path == "url", f.Path == "socket":
			text = f.Value
		case len(f.Path) > 5 && f.Path[:5] == "args[":
			text += " " + f.Value
		}
	}
	return text
}

// exactly requires n arguments.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usage(cmd.CommandPath()+" --help shows its arguments", "%s takes %s, got %d", cmd.CommandPath(), plural.N(n, "argument"), len(args))
		}
		return nil
	}
}

// atLeast requires n or more arguments.
func atLeast(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usage(cmd.CommandPath()+" --help shows its arguments", "%s takes at least %s, got %d", cmd.CommandPath(), plural.N(n, "argument"), len(args))
		}
		return nil
	}
}
