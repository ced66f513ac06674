package mcpcli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

func (a *app) exportCommand() *cobra.Command {
	var to, out string
	cmd := &cobra.Command{
		Use:   "export [SERVER…]",
		Short: "Write servers in another client's dialect, to standard output or into a file",
		Long: `Export writes servers of the configuration, all if none is named, in the dialect of
--to. With --out they go into that file: what else is in it stays, comments
included, and the file as it was is kept beside it. What the dialect cannot say is
told. References to secrets are written as references.`,
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(func(_ context.Context, args []string) error { return a.export(args, to, out) }),
	}
	cmd.Flags().StringVar(&to, "to", "", "the `dialect`: v1, claude-code, claude-desktop, cursor, vscode, codex, gemini, opencode, opencode2, windsurf, cline or mcp")
	cmd.Flags().StringVar(&out, "out", "", "the `file` to write into, in place of standard output")
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(dialects(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

func dialects() (names []string) {
	for _, d := range mcpjson.Dialects {
		names = append(names, string(d))
	}
	return names
}

func (a *app) export(names []string, to, out string) error {
	if to == "" {
		return usage("say --to claude-code, cursor, vscode, codex or another", "the dialect to export to is missing")
	}
	dialect, err := mcpjson.ParseDialect(to)
	if err != nil {
		return usage("", "%v", err)
	}
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if cfg, err = only(cfg, names); err != nil {
		return err
	}
	if out != "" {
		return a.update(out, cfg, dialect)
	}
	data, losses, err := mcpjson.Export(cfg, dialect)
	if err != nil {
		return err
	}
	a.tellLosses(losses)
	_, err = a.Out.Write(data)
	return err
}

func (a *app) importCommand() *cobra.Command {
	var from, into string
	var force bool
	cmd := &cobra.Command{
		Use:   "import FILE [SERVER…]",
		Short: "Take servers over from another client's file",
		Long: `Import adds servers of another client's file, all if none is named, to the
configuration. A server that is there under the same name and is another one is left
alone, unless --force says so. The file as it was is kept beside it.`,
		Args: atLeast(1),
		RunE: a.run(func(_ context.Context, args []string) error {
			return a.importFrom(args[0], args[1:], from, into, force)
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "the `dialect` of the file (default: told from its name and content)")
	cmd.Flags().StringVar(&into, "into", "", "the `file` to add to (default: the configuration, or .mcp.json)")
	cmd.Flags().BoolVar(&force, "force", false, "replace servers of the same name")
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(dialects(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

func (a *app) importFrom(file string, names []string, from, into string, force bool) error {
	dialect := mcpjson.Auto
	if from != "" {
		var err error
		if dialect, err = mcpjson.ParseDialect(from); err != nil {
			return usage("", "%v", err)
		}
	}
	cfg, err := mcpjson.LoadFile(file, mcpjson.Options{Dialect: dialect, Import: true})
	if err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		a.note("glovebox: warning: %v", w)
	}
	if cfg, err = only(cfg, names); err != nil {
		return err
	}
	into, there, err := a.target(into)
	if err != nil {
		return err
	}
	if !force {
		for _, s := range cfg.Servers {
			if old := there.Server(s.Name); old != nil && old.Hash() != s.Hash() {
				return usage("name the servers to import, or say --force", "%s has another server of the name %q", into, s.Name)
			}
		}
	}
	target := there.Dialect
	if target == mcpjson.Auto {
		target = mcpjson.ClaudeCode
	}
	return a.update(into, cfg, target)
}

// target is the file that an import goes to, and what is in it.
func (a *app) target(into string) (string, *mcpjson.Config, error) {
	if into == "" {
		into = a.flags.config
	}
	if into == "" {
		cfg, err := mcpjson.Load(mcpjson.Options{Root: a.flags.root, Import: true})
		if err != nil {
			return "", nil, err
		}
		if cfg.Path != "" {
			return cfg.Path, cfg, nil
		}
		return filepath.Join(a.flags.root, ".mcp.json"), cfg, nil
	}
	if _, err := os.Lstat(into); os.IsNotExist(err) {
		return into, &mcpjson.Config{}, nil
	}
	cfg, err := mcpjson.LoadFile(into, mcpjson.Options{Import: true})
	return into, cfg, err
}

// update writes servers into a file, and says what it did.
func (a *app) update(file string, cfg *mcpjson.Config, d mcpjson.Dialect) error {
	done, err := mcpjson.Update(file, cfg, d)
	if err != nil {
		return err
	}
	a.tellLosses(done.Losses)
	switch {
	case !done.Changed:
		a.note("glovebox: %s says all of it already", file)
	case done.Backup != "":
		a.note("glovebox: wrote %s; as it was: %s", file, done.Backup)
	default:
		a.note("glovebox: wrote %s", file)
	}
	return nil
}

func (a *app) tellLosses(losses []mcpjson.Loss) {
	for _, l := range losses {
		a.note("glovebox: warning: %v", l)
	}
}

// only is a configuration with some of its servers, or all if none is named.
func only(cfg *mcpjson.Config, names []string) (*mcpjson.Config, error) {
	if len(names) == 0 {
		return cfg, nil
	}
	some := *cfg
	some.Servers = nil
	for _, name := range names {
		s := cfg.Server(name)
		if s == nil {
			return nil, &mcpkit.UnknownServer{Name: name, Known: serverNames(cfg)}
		}
		some.Servers = append(some.Servers, s)
	}
	return &some, nil
}

func (a *app) findCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "find",
		Short: "List the files in which clients on this machine keep servers",
		Args:  exactly(0),
		RunE:  a.run(a.find),
	}
}

// found is a file of a client.
type found struct {
	Path    string   `json:"path"`
	Dialect string   `json:"dialect"`
	Servers []string `json:"servers"`
	Error   string   `json:"error,omitempty"`
}

func (a *app) find(context.Context, []string) error {
	root, err := filepath.Abs(a.flags.root)
	if err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	config, err := os.UserConfigDir()
	if err != nil {
		config = ""
	}
	all := []found{}
	for _, p := range mcpjson.Places(root, home, config) {
		if _, err := os.Lstat(p.Path); err != nil {
			continue
		}
		f := found{Path: p.Path, Dialect: string(p.Dialect)}
		cfg, err := mcpjson.LoadFile(p.Path, mcpjson.Options{Dialect: p.Dialect, Import: true})
		if err != nil {
			f.Error = err.Error()
		} else {
			f.Dialect, f.Servers = string(cfg.Dialect), serverNames(cfg)
		}
		all = append(all, f)
	}
	if a.flags.output == "json" {
		return a.json(map[string]any{"files": all})
	}
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	for _, f := range all {
		what := fmt.Sprint(f.Servers)
		if f.Error != "" {
			what = f.Error
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", oneLine(f.Path), f.Dialect, oneLine(what))
	}
	return w.Flush()
}
