package mcpcli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
		Short: "Write servers in another client's format",
		Long: `Export writes servers of the configuration, by default all, in the format --to. With
--out, it adds them to that file: other contents and comments stay, and a backup is
kept beside it. Export warns about settings that the format does not support. It does
not resolve references to secrets.`,
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(func(_ context.Context, args []string) error { return a.export(args, to, out) }),
	}
	cmd.Flags().StringVar(&to, "to", "", "`format` to write: v1, claude-code, claude-desktop, cursor, vscode, codex, gemini, opencode, opencode2, windsurf, cline, zed, amp or mcp")
	cmd.Flags().StringVar(&out, "out", "", "add the servers to this `file` instead of writing to standard output")
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
		return usage("use --to claude-code, cursor, vscode, codex or another", "the format to export to is missing")
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
	a.noteLosses(losses)
	_, err = a.Out.Write(data)
	return err
}

func (a *app) importCommand() *cobra.Command {
	var from, into string
	var force, drop bool
	cmd := &cobra.Command{
		Use:   "import FILE [SERVER…]",
		Short: "Import servers from another client's file",
		Long: `Import adds servers from another client's file, by default all, to the configuration.
Existing servers stay unchanged; --force replaces those that differ. Lists of allowed
and denied tools are imported and enforced. If the target format does not support
them, the import fails unless --drop-tool-lists is set. A backup of the changed file
is kept beside it.`,
		Args: atLeast(1),
		RunE: a.run(func(_ context.Context, args []string) error {
			return a.importFrom(args[0], args[1:], from, into, force, drop)
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "`format` of the file (default: detected from its name and content)")
	cmd.Flags().StringVar(&into, "into", "", "`file` to add to (default: the configuration, or .mcp.json)")
	cmd.Flags().BoolVar(&force, "force", false, "replace different servers of the same name")
	cmd.Flags().BoolVar(&drop, "drop-tool-lists", false, "import servers without tool lists that the target format does not support, which allows all their tools")
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(dialects(), cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

func (a *app) importFrom(file string, names []string, from, into string, force, drop bool) error {
	dialect := mcpjson.Auto
	if from != "" {
		var err error
		if dialect, err = mcpjson.ParseDialect(from); err != nil {
			return usage("", "%v", err)
		}
	}
	cfg, err := mcpjson.LoadFile(file, mcpjson.Options{Dialect: dialect, Import: true})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Code: ExitUsage, Err: err, HintTo: "glovebox mcp config find lists the configuration files of clients on this machine"}
	case err != nil:
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
	target := there.Dialect
	if target == mcpjson.Auto {
		target = mcpjson.ClaudeCode
	}
	add := *cfg
	add.Servers, add.KeepTools = nil, true
	for _, s := range cfg.Servers {
		old := there.Server(s.Name)
		same, err := isThere(cfg, s, old, target)
		switch {
		case err != nil:
			return err
		case same:
			a.note("glovebox: %s already has the server %q", into, s.Name)
		case old == nil || force:
			add.Servers = append(add.Servers, s)
		case len(names) > 0:
			return usage("--force replaces it", "%s has a different server %q", into, s.Name)
		default:
			a.note("glovebox: warning: %s has a different server %q, which stays unchanged; --force replaces it", into, s.Name)
		}
	}
	if len(add.Servers) == 0 {
		return nil
	}
	if !drop {
		if err := keepsTools(&add, target); err != nil {
			return err
		}
	}
	return a.update(into, &add, target)
}

// isThere reports whether a file has the server s, ignoring the location of the files.
func isThere(cfg *mcpjson.Config, s, old *mcpjson.Server, d mcpjson.Dialect) (bool, error) {
	if old == nil {
		return false, nil
	}
	one := *cfg
	one.Servers, one.KeepTools = []*mcpjson.Server{s}, true
	data, _, err := mcpjson.Export(&one, d)
	if err != nil {
		return false, err
	}
	back, err := mcpjson.Parse(d, data)
	if err != nil {
		return false, err
	}
	written := back.Server(s.Name)
	if written == nil { // the format does not support it
		return false, nil
	}
	written.Dir = old.Dir
	return written.Hash() == old.Hash() && written.Disabled == old.Disabled, nil
}

// keepsTools returns an error if exporting would lose lists of tools that restrict a
// server.
func keepsTools(cfg *mcpjson.Config, d mcpjson.Dialect) error {
	_, losses, err := mcpjson.Export(cfg, d)
	if err != nil {
		return err
	}
	for _, l := range losses {
		if l.Field == "tools.allow" || l.Field == "tools.deny" {
			return usage("import into a file of another format with --into, or allow all tools with --drop-tool-lists",
				"import server %q: the target format does not support its tool list (%s), and would allow more tools than before", l.Server, l.Field)
		}
	}
	return nil
}

// target returns the file that an import changes, and its contents.
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

// update adds servers to a file and reports the result.
func (a *app) update(file string, cfg *mcpjson.Config, d mcpjson.Dialect) error {
	done, err := mcpjson.Update(file, cfg, d)
	if err != nil {
		return err
	}
	a.noteLosses(done.Losses)
	switch {
	case !done.Changed:
		a.note("glovebox: %s is up to date", file)
	case done.Backup != "":
		a.note("glovebox: wrote %s; backup: %s", file, done.Backup)
	default:
		a.note("glovebox: wrote %s", file)
	}
	return nil
}

func (a *app) noteLosses(losses []mcpjson.Loss) {
	for _, l := range losses {
		a.note("glovebox: warning: %v", l)
	}
}

// only returns the configuration with the named servers; with all if there are no
// names.
func only(cfg *mcpjson.Config, names []string) (*mcpjson.Config, error) {
	if len(names) == 0 {
		return cfg, nil
	}
	some := *cfg
	some.Servers = nil
	for _, name := range names {
		s := cfg.Server(name)
		if s == nil {
			return nil, &mcpkit.UnknownServerError{Name: name, Known: serverNames(cfg)}
		}
		some.Servers = append(some.Servers, s)
	}
	return &some, nil
}

func (a *app) findCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "find",
		Short: "List the configuration files of clients on this machine",
		Args:  exactly(0),
		RunE:  a.run(a.find),
	}
}

// found is a configuration file of a client.
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
	for _, p := range mcpjson.Locations(root, home, config) {
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
