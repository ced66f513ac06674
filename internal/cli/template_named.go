package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/recipe"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// namedTemplate is a named template with how it was made.
type namedTemplate struct {
	catalog.Template
	catalog.Details
}

// info describes the template in the output of template ls --output json.
func (t *namedTemplate) info() templateInfo {
	return templateInfo{
		Key: t.ID, Name: t.Name, Language: t.language(), Flavor: t.Flavor, Preload: append([]string{}, t.Preload...), Missing: []string{},
		Made: t.Made, Used: t.Made, Bytes: t.Bytes, Current: true, Named: true, Owner: t.Owner, Description: t.Description,
	}
}

func (t *namedTemplate) language() string { return box.Interpreter(t.Base).Language() }

// loaded returns the imported modules.
func (t *namedTemplate) loaded() string {
	if len(t.Preload) == 0 {
		return "-"
	}
	return strings.Join(t.Preload, ",")
}

// state describes the template in a list.
func (t *namedTemplate) state() string {
	switch t.Owner {
	case "":
		return "named"
	case catalog.Everyone:
		return "named, for everyone"
	}
	return "named, for " + t.Owner
}

// namedTemplates lists the named templates of all owners.
func (h *host) namedTemplates(cfg *config.Config) ([]namedTemplate, error) {
	if err := h.openCatalog(cfg); err != nil {
		return nil, err
	}
	all, err := h.catalog.All()
	var list []namedTemplate
	for _, t := range all {
		d, err := h.catalog.Details(t.ID)
		if errors.Is(err, catalog.ErrNotFound) {
			continue // removed in between
		}
		if err != nil {
			h.log.Warn(err.Error()) // the rest is worth a line
		}
		list = append(list, namedTemplate{t, d})
	}
	return list, err
}

// removeNamed removes the named templates among names, and returns the other names.
func (a *app) removeNamed(cfg *config.Config, h *host, owner string, names []string) (others []string, err error) {
	if err := h.openCatalog(cfg); err != nil {
		return nil, err
	}
	all, err := h.catalog.All()
	if err != nil {
		return nil, err
	}
	n, bytes := 0, int64(0)
	for _, name := range names {
		i := slices.IndexFunc(all, func(t catalog.Template) bool { return t.Name == name && t.Owner == owner || t.ID == name })
		if i < 0 {
			if j := slices.IndexFunc(all, func(t catalog.Template) bool { return t.Name == name }); j >= 0 {
				return nil, withHint(fmt.Errorf("no template %q of yours", name), "remove that of its owner with --owner %q", all[j].Owner)
			}
			others = append(others, name)
			continue
		}
		if err := h.catalog.Remove(all[i].ID); err != nil {
			return nil, err
		}
		n, bytes = n+1, bytes+all[i].Bytes
	}
	if n > 0 {
		a.note("glovebox: removed %s, %d MiB", plural.N(n, "template"), bytes>>20)
	}
	return others, nil
}

// findNamed returns the named template of an owner.
func findNamed(c *catalog.Catalog, owner, name string) (catalog.Template, error) {
	t, err := c.Find(owner, name)
	if errors.Is(err, catalog.ErrNotFound) {
		return t, withHint(fmt.Errorf("no template %q", name), "glovebox template ls lists them")
	}
	return t, err
}

func (a *app) templateShowCommand() *cobra.Command {
	var output, owner string
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show how a named template was made",
		Long: `Show prints the recipe of a template of your own, the steps of its build, its size, and
the volumes that it was built with: boxes start from it only with volumes at the same
paths.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			if output != "text" && output != "json" {
				return &usageError{err: fmt.Errorf("--output must be one of: text, json, got %q", output), cmd: cmd.CommandPath()}
			}
			return a.withCatalog(cmd.Context(), cfg, func(_ context.Context, _ *host, c *catalog.Catalog) error {
				t, err := findNamed(c, owner, args[0])
				if err != nil {
					return err
				}
				d, err := c.Details(t.ID)
				if err != nil {
					return err
				}
				return a.showTemplate(&namedTemplate{t, d}, output == "json")
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`text|json` output format")
	cmd.Flags().StringVar(&owner, "owner", "", "`owner` of the template [you]")
	help.Group(cmd.Flags(), "Show", "output", "owner")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	bind(cmd, "host", "log")
	return cmd
}

// showTemplate prints a template.
func (a *app) showTemplate(t *namedTemplate, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			templateInfo
			Recipe   json.RawMessage `json:"recipe,omitempty"`
			Steps    []catalog.Step  `json:"steps,omitempty"`
			Snapshot string          `json:"snapshot,omitempty"`
			Volumes  []string        `json:"volumes"` // as --volume takes them; null: unknown
		}{t.info(), t.Recipe, t.Steps, t.Snapshot, t.Volumes})
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(a.Out, "%-12s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("name", "%s", t.Name)
	if t.Description != "" {
		line("description", "%s", t.Description)
	}
	line("state", "%s", t.state())
	line("language", "%s", t.language())
	line("flavor", "%s", t.Flavor)
	line("made", "%s", t.Made.Local().Format("2006-01-02 15:04"))
	line("size", "%d MiB", t.Bytes>>20)
	line("preloaded", "%s", t.loaded())
	for _, v := range t.Volumes {
		line("volume", "%s", v)
	}
	if t.Volumes != nil && len(t.Volumes) == 0 {
		line("volume", "none")
	}
	if t.Limits != nil {
		line("network", "at most %s", describeLimits(t.Limits))
	}
	var r recipe.Recipe
	if t.Recipe != nil && json.Unmarshal(t.Recipe, &r) == nil {
		line("from", "%s", r.From)
		for _, kv := range r.Variables() {
			line("env", "%s", kv)
		}
	}
	if t.Snapshot != "" {
		line("from", "snapshot %s", t.Snapshot)
	}
	for _, s := range t.Steps {
		took := fmt.Sprintf("%.1f s", s.Seconds)
		if s.Cached {
			took = "cached"
		}
		line("step", "%s (%s)", s.Text, took)
	}
	return nil
}

func (a *app) templateFromSnapshotCommand() *cobra.Command {
	var owner, description string
	cmd := &cobra.Command{
		Use:   "from-snapshot SNAPSHOT NAME",
		Short: "Make a template of a saved snapshot",
		Long: `From-snapshot copies a snapshot, which snapshot_session or snapshot_context saved, to
a template. Boxes from it begin with the variables, files and installed packages of the
snapshot. SNAPSHOT is its id or its name. The template belongs to the owner of the
snapshot unless --owner says otherwise.`,
		Example: `  glovebox template from-snapshot "after setup" data`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err == nil {
				err = recipe.CheckName(args[1])
			}
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			return a.withCatalog(cmd.Context(), cfg, func(ctx context.Context, h *host, c *catalog.Catalog) error {
				if err := h.openSnapshots(cfg); err != nil {
					return err
				}
				r, err := findSnapshot(h.snapshots, args[0])
				if err != nil {
					return err
				}
				t := catalog.Template{Name: args[1], Owner: r.Owner, Description: description, Base: r.Template, Flavor: r.Flavor, Limits: r.Limits.ForTemplate()}
				if cmd.Flags().Changed("owner") {
					t.Owner = owner
				}
				if !cmd.Flags().Changed("description") {
					t.Description = firstLine(r.Description)
				}
				return a.copySnapshot(ctx, h.snapshots, c, r, t)
			})
		},
	}
	cmd.Flags().StringVar(&owner, "owner", "", "`owner` of the template, or * for everyone [that of the snapshot]")
	cmd.Flags().StringVar(&description, "description", "", "`text` one line for those who choose a template [that of the snapshot]")
	help.Group(cmd.Flags(), "Template", "owner", "description")
	bind(cmd, "host", "log")
	return cmd
}

// firstLine returns the first line of a client's text, bounded.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return printable(strings.ToValidUTF8(line[:min(len(line), 512)], ""))
}

// findSnapshot finds a saved snapshot by its id or unique name.
func findSnapshot(s *snapshot.Store, name string) (*snapshot.Record, error) {
	found, err := s.List(func(m *snapshot.Meta) bool { return m.Purpose == snapshot.Saved && !m.Written.IsZero() })
	if err != nil {
		return nil, err
	}
	var named []*snapshot.Record
	for i := range found {
		if found[i].ID == name {
			return &found[i], nil
		}
		if found[i].Name == name {
			named = append(named, &found[i])
		}
	}
	switch len(named) {
	case 0:
		return nil, withHint(fmt.Errorf("no snapshot %q", name), "the tool list_snapshots lists the snapshots")
	case 1:
		return named[0], nil
	}
	return nil, withHint(fmt.Errorf("%d snapshots are named %q", len(named), name), "name it by its id, which the tool list_snapshots shows")
}

// copySnapshot makes a template of a saved snapshot.
func (a *app) copySnapshot(ctx context.Context, s *snapshot.Store, c *catalog.Catalog, r *snapshot.Record, t catalog.Template) error {
	dir, _, release, err := s.Read(r.ID)
	if err != nil {
		return fmt.Errorf("read snapshot: %w", err)
	}
	defer release()
	all, err := c.All()
	if err != nil {
		return err
	}
	added, err := c.Put(ctx, t, catalog.Details{Snapshot: r.ID}, r.Bytes, func(ctx context.Context, to string) error {
		return copyTree(ctx, dir, to)
	})
	if err != nil {
		return err
	}
	a.note("glovebox: template %s: made from snapshot %s, %d MiB", t.Name, r.ID, added.Bytes>>20)
	a.noteReplaced(all, t.Name, t.Owner)
	return nil
}

// noteReplaced says that a new template took the place of one that was there before.
func (a *app) noteReplaced(before []catalog.Template, name, owner string) {
	for _, old := range before {
		if old.Name == name && old.Owner == owner {
			a.note("glovebox: template %s: replaces the one of %s", name, old.Made.Local().Format(time.DateTime))
		}
	}
}

// copyTree copies and syncs the regular files and directories of a snapshot.
func copyTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case rel == ".":
			return nil
		case e.IsDir():
			return os.Mkdir(target, 0o700)
		case !e.Type().IsRegular():
			return fmt.Errorf("copy %q: not a regular file", path)
		}
		return copyFile(path, target)
	})
}

// copyFile copies and syncs a file; a file with holes keeps them as far as the file system
// can share data.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// describedTemplates returns the named templates that an owner may use, for models.
func (h *host) describedTemplates(owner box.Owner) []tools.Template {
	list, err := h.catalog.List(string(owner))
	if err != nil {
		h.log.Warn("named templates not listed", logkey.Error, err)
		return nil
	}
	var described []tools.Template
	for _, t := range list {
		described = append(described, tools.Template{Name: t.Name, Language: box.Interpreter(t.Base).Language(), Description: t.Description})
	}
	return described
}
