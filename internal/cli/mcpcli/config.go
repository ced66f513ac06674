package mcpcli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Explain the configuration, import servers from other clients and export them",
		Args:  exactly(0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:               "explain [SERVER…]",
		Short:             "Show each field and where it is set; secrets are masked, variables not expanded",
		ValidArgsFunction: a.completeServers,
		RunE:              a.run(a.explain),
	}, a.exportCommand(), a.importCommand(), a.findCommand())
	return cmd
}

// explained is a field in the output of config explain.
type explained struct {
	Field string `json:"field"`
	Value string `json:"value"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Key   string `json:"key,omitempty"`
	Note  string `json:"note,omitempty"`
}

func (a *app) explain(_ context.Context, names []string) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	if cfg, err = only(cfg, names); err != nil {
		return err
	}
	servers := cfg.Servers
	all := make(map[string][]explained)
	for _, s := range servers {
		for _, f := range s.Explain() {
			all[s.Name] = append(all[s.Name], explained{f.Path, f.Value, f.Origin.File, f.Origin.Line, f.Origin.Key, f.Origin.Note})
		}
	}
	if a.flags.output == "json" {
		return a.json(map[string]any{"config_path": cfg.Path, "dialect": cfg.Dialect, "servers": all})
	}
	for _, s := range servers {
		fmt.Fprintf(a.Out, "%s\n", oneLine(s.Name))
		w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
		for _, f := range all[s.Name] {
			where := f.Note
			if f.File != "" {
				where = f.File
				if f.Line > 0 {
					where += fmt.Sprintf(":%d", f.Line)
				}
				if f.Note != "" {
					where += ", " + f.Note
				}
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\n", oneLine(f.Field), oneLine(f.Value), oneLine(where))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func serverNames(cfg *mcpjson.Config) (names []string) {
	for _, s := range cfg.Servers {
		names = append(names, s.Name)
	}
	return names
}
