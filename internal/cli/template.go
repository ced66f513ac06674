package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/recipe"
)

// minPrefix is the shortest prefix of a key that names a template.
const minPrefix = 4

var flavors = []string{string(box.FlavorSmall), string(box.FlavorMedium), string(box.FlavorLarge)}

func (a *app) templateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Build, list and remove the templates that boxes are restored from",
		Long: `A template is a snapshot of a box with a started interpreter and imported libraries.
New boxes are restored from it, which is several times faster than a start.

Servers build the templates python and node themselves, also after an upgrade. You can
build templates of your own, with more libraries and files, from a recipe or from a
saved snapshot. Clients choose them by name: template=NAME in execute_code.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.templateBuildCommand(), a.templateListCommand(), a.templateShowCommand(), a.templateRemoveCommand(),
		a.templateFromSnapshotCommand(), a.templateExportCommand(), a.templateImportCommand())
	return cmd
}

// withTemplates opens the host and its built-in templates and calls f.
func (a *app) withTemplates(ctx context.Context, cfg *config.Config, f func(context.Context, *host, *template.Store) error) error {
	return a.withHost(ctx, cfg, func(ctx context.Context, h *host) (err error) {
		s, err := template.Open(templateConfig(cfg, h, h.log))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		return f(ctx, h, s)
	})
}

// withCatalog opens the host and the named templates and calls f.
func (a *app) withCatalog(ctx context.Context, cfg *config.Config, f func(context.Context, *host, *catalog.Catalog) error) error {
	return a.withHost(ctx, cfg, func(ctx context.Context, h *host) error {
		if err := h.openCatalog(cfg); err != nil {
			return err
		}
		return f(ctx, h, h.catalog)
	})
}

// withHost opens the host and calls f.
func (a *app) withHost(ctx context.Context, cfg *config.Config, f func(context.Context, *host) error) (err error) {
	if cfg.LogLevel == config.LevelAuto {
		cfg.LogLevel = "warn" // progress goes to standard error as text
	}
	log, closeLog, err := a.openLog(cfg, nil)
	if err != nil {
		return err
	}
	defer closeLog()
	if err := enter(cfg); err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx, func() {}, nil)
	defer stop()
	h, err := openHost(ctx, cfg, log, a.progress(cfg))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	return f(ctx, h)
}

// templateConfig returns the configuration of the template store.
func templateConfig(cfg *config.Config, h *host, log *slog.Logger) template.Config {
	files := make(map[string][]string)
	for language, i := range h.image.Interpreters {
		files[language] = i.Files
	}
	return template.Config{Dir: filepath.Join(cfg.StateDir, "templates"), Maker: h.maker, Files: files, Log: log}
}

// templateWant returns the description of the template that boxes of the name and
// flavor use.
func templateWant(cfg *config.Config, t box.Interpreter, flavor box.Flavor) template.Spec {
	w := template.Spec{Name: string(t), Language: t.Language(), Flavor: string(flavor), Limits: flavor.Limits()}
	if w.Language == image.Python {
		w.Preload = cfg.Preload
	}
	return w
}

func (a *app) templateBuildCommand() *cobra.Command {
	var (
		sizes []string
		force bool
		o     recipeOptions
	)
	cmd := &cobra.Command{
		Use:   "build [NAME]...",
		Short: "Build templates, also from recipes",
		Long: `Build builds the templates NAME. python and node are built in; without a NAME and
--file, those of all installed interpreters are built. Any other NAME is a template of
your own. Its recipe is in glovebox.toml in this directory, in --file, or in the flags
--run, --copy, --net, --env and --description.

A build copies the files into a new box, runs the commands, imports the modules to
preload, and stores the box. It starts from the last step that it has done before.
Current templates stay unchanged. The settings of boxes (volumes, preload,
interpreters) must be the same as those of the server.`,
		Example: `  glovebox template build
  glovebox template build python --flavor small,large
  glovebox template build data --copy lib --run 'pip install --no-index ./lib/*'
  glovebox template build --file glovebox.toml`,
		ValidArgs: []string{string(box.InterpreterPython), string(box.InterpreterNode)},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			for _, size := range sizes {
				if !slices.Contains(flavors, size) {
					return &usageError{err: fmt.Errorf("--flavor must be of: %s, got %q", strings.Join(flavors, ", "), size), cmd: cmd.CommandPath()}
				}
			}
			o.sizes, o.force = sizes, force
			if cmd.Flags().Changed("preload") {
				o.preload = append([]string{}, cfg.Preload...)
			}
			builds, err := o.builds(cfg, args)
			if err != nil {
				wrong := &usageError{err: err, cmd: cmd.CommandPath()}
				if _, ok := errors.AsType[*recipe.Error](err); ok { // flags are no remedy for a file
					wrong.hint = "docs/recipes.md describes the keys of the file"
				}
				return wrong
			}
			if len(builds) > 0 {
				return a.withCatalog(cmd.Context(), cfg, func(ctx context.Context, h *host, c *catalog.Catalog) error {
					return a.buildRecipes(ctx, cfg, h, c, builds)
				})
			}
			names, err := templateNames(args)
			if err != nil {
				return &usageError{err: err, cmd: cmd.CommandPath()}
			}
			if len(sizes) == 0 {
				sizes = []string{cfg.DefaultFlavor}
			}
			return a.withTemplates(cmd.Context(), cfg, func(ctx context.Context, h *host, s *template.Store) error {
				return a.buildTemplates(ctx, cfg, h, s, names, sizes, force)
			})
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&sizes, "flavor", nil, "`list` of box sizes: small, medium, large")
	f.BoolVar(&force, "force", false, "rebuild existing templates")
	help.Group(f, "Build", "flavor", "force")
	o.bind(f)
	cmd.RegisterFlagCompletionFunc("flavor", cobra.FixedCompletions(flavors, cobra.ShellCompDirectiveNoFileComp))
	bind(cmd, "network", "volumes", "host", "log")
	boxes := pflag.NewFlagSet("boxes", pflag.ContinueOnError)
	config.Bind(boxes, "boxes")
	f.AddFlag(boxes.Lookup("preload"))
	return cmd
}

// templateNames parses the names of templates.
func templateNames(args []string) ([]box.Interpreter, error) {
	var names []box.Interpreter
	for _, arg := range args {
		t, err := box.ParseInterpreter(arg)
		if err != nil || t == "" {
			return nil, withHint(fmt.Errorf("unknown template %q: there are %s and %s", arg, box.InterpreterPython, box.InterpreterNode),
				"--run, --copy or a file %s define other templates", recipe.FileName)
		}
		if !slices.Contains(names, t) {
			names = append(names, t)
		}
	}
	return names, nil
}

func (a *app) buildTemplates(ctx context.Context, cfg *config.Config, h *host, s *template.Store, names []box.Interpreter, sizes []string, force bool) error {
	if len(names) == 0 {
		for _, t := range []box.Interpreter{box.InterpreterPython, box.InterpreterNode} {
			if h.maker.Interpreters[t.Language()] != "" {
				names = append(names, t)
			}
		}
		if len(names) == 0 {
			return withHint(errors.New("neither Python nor Node.js found"), "glovebox doctor shows how to install one")
		}
	}
	for _, name := range names {
		if h.maker.Interpreters[name.Language()] == "" {
			return withHint(fmt.Errorf("no interpreter for %s on this machine", name.Language()), "glovebox doctor shows how to install one")
		}
		for _, size := range sizes {
			if err := a.buildTemplate(ctx, s, templateWant(cfg, name, box.Flavor(size)), force); err != nil {
				return explainTemplate(err)
			}
		}
	}
	return nil
}

func (a *app) buildTemplate(ctx context.Context, s *template.Store, w template.Spec, force bool) error {
	if t, ok := s.Find(w); ok {
		if !force {
			a.note("template %s exists, %d MiB; --force rebuilds it", w, t.Bytes>>20)
			return nil
		}
		if err := s.Remove(t.Key); err != nil && !errors.Is(err, template.ErrNotFound) {
			return err
		}
	}
	// Progress appends to one line.
	before := "building template " + w.String() + ": "
	_, err := s.Build(ctx, w, func(step string) {
		fmt.Fprint(a.Err, before, printable(step))
		before = " … "
	})
	if before == " … " {
		fmt.Fprintln(a.Err)
	}
	return err
}

// explainTemplate adds the remedy to an error of building a template.
func explainTemplate(err error) error {
	switch {
	case errors.Is(err, engine.ErrExhausted):
		return withHint(err, "free disk space in the state directory (glovebox template rm --stale), or choose another one with --state-dir")
	case errors.Is(err, engine.ErrUnsupported):
		return withHint(err, "boxes work without templates, but start more slowly")
	}
	return err
}

// templateInfo describes a template in the output of template ls --output json, which
// is part of the interface.
type templateInfo struct {
	Key      string    `json:"key"`
	Name     string    `json:"name"`
	Language string    `json:"language"`
	Flavor   string    `json:"flavor"`
	Preload  []string  `json:"preload"`
	Missing  []string  `json:"missing"` // modules of Preload that could not be imported
	Made     time.Time `json:"made"`
	Used     time.Time `json:"used"`
	Bytes    int64     `json:"bytes"`
	Current  bool      `json:"current"`
	Stale    string    `json:"stale,omitempty"`  // why it is not current
	Others   string    `json:"others,omitempty"` // which settings it was built with other values of

	// Of named templates only.
	Named       bool   `json:"named,omitempty"`
	Owner       string `json:"owner,omitempty"` // empty: the local user
	Description string `json:"description,omitempty"`
}

func (a *app) templateListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the templates",
		Long: `Ls lists the templates in the state directory. A stale template was built with other
versions than this machine has now. It is not used any more and can be removed.
Templates of your own have the state "named".`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			if output != "text" && output != "json" {
				return &usageError{err: fmt.Errorf("--output must be one of: text, json, got %q", output), cmd: cmd.CommandPath()}
			}
			return a.withTemplates(cmd.Context(), cfg, func(_ context.Context, h *host, s *template.Store) error {
				list, err := s.List()
				if err != nil {
					return err
				}
				named, err := h.namedTemplates(cfg)
				if err != nil {
					return err
				}
				return a.printTemplates(list, named, output == "json")
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`text|json` output format")
	help.Group(cmd.Flags(), "List", "output")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	bind(cmd, "host", "log")
	return cmd
}

func (a *app) printTemplates(list []template.Info, named []namedTemplate, asJSON bool) error {
	if asJSON {
		infos := []templateInfo{}
		for _, t := range list {
			infos = append(infos, templateInfo{
				Key: t.Key, Name: t.Spec.Name, Language: t.Spec.Language, Flavor: t.Spec.Flavor,
				Preload: append([]string{}, t.Spec.Preload...), Missing: append([]string{}, t.Missing...),
				Made: t.Made, Used: t.Used, Bytes: t.Bytes, Current: t.Stale == "", Stale: t.Stale, Others: t.Others,
			})
		}
		for _, t := range named {
			infos = append(infos, t.info())
		}
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return enc.Encode(infos)
	}
	if len(list)+len(named) == 0 {
		a.note("glovebox: no templates; glovebox template build builds them")
		return nil
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tTEMPLATE\tPRELOADED\tMIB\tMADE\tUSED\tSTATE")
	for _, t := range list {
		loaded := slices.DeleteFunc(slices.Clone(t.Spec.Preload), func(m string) bool { return slices.Contains(t.Missing, m) })
		state := "current"
		if t.Stale != "" {
			state = "stale: " + t.Stale
		} else if t.Others != "" {
			state = "current, for other settings: " + t.Others
		}
		if len(loaded) == 0 {
			loaded = []string{"-"}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", t.Key, printable(t.Spec.String()), printable(strings.Join(loaded, ",")), t.Bytes>>20,
			t.Made.Local().Format("2006-01-02 15:04"), t.Used.Local().Format("2006-01-02 15:04"), printable(state))
	}
	for _, t := range named {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t-\t%s\n", t.ID, printable(fmt.Sprintf("%s (%s)", t.Name, t.Flavor)), printable(t.loaded()), t.Bytes>>20,
			t.Made.Local().Format("2006-01-02 15:04"), printable(t.state()))
	}
	return w.Flush()
}

func (a *app) templateRemoveCommand() *cobra.Command {
	var (
		stale, all bool
		owner      string
	)
	cmd := &cobra.Command{
		Use:   "rm NAME|KEY...|--stale|--all",
		Short: "Remove templates",
		Long: `Rm removes named templates by name, and built-in ones by key (the first four
characters are enough). --stale and --all remove built-in ones only, which servers
build again when they need them. Boxes that came from a template live on.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, _, err := config.Load(cmd.Flags(), a.lookup)
			if err != nil {
				return err
			}
			if n := min(len(args), 1) + count(stale) + count(all); n != 1 {
				return &usageError{err: errors.New("name the templates to remove: keys, --stale or --all"), cmd: cmd.CommandPath()}
			}
			return a.withTemplates(cmd.Context(), cfg, func(ctx context.Context, h *host, s *template.Store) error {
				keys, err := a.removeNamed(cfg, h, owner, args)
				if err != nil || len(args) > 0 && len(keys) == 0 {
					return err
				}
				return a.removeTemplates(ctx, s, keys, stale)
			})
		},
	}
	cmd.Flags().BoolVar(&stale, "stale", false, "remove stale templates")
	cmd.Flags().BoolVar(&all, "all", false, "remove all built-in templates")
	cmd.Flags().StringVar(&owner, "owner", "", "`owner` of the named templates [you]")
	help.Group(cmd.Flags(), "Remove", "stale", "all", "owner")
	bind(cmd, "host", "log")
	return cmd
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// removeTemplates removes the templates of keys, the stale ones, or all.
func (a *app) removeTemplates(ctx context.Context, s *template.Store, keys []string, stale bool) error {
	list, err := s.List()
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		if list, err = pickTemplates(list, keys); err != nil {
			return withHint(err, "glovebox template ls lists them")
		}
	}
	n, bytes := 0, int64(0)
	for _, t := range list {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if stale && t.Stale == "" {
			continue
		}
		switch err := s.Remove(t.Key); {
		case errors.Is(err, template.ErrNotFound): // another process removed it
		case err != nil:
			return err
		default:
			n, bytes = n+1, bytes+t.Bytes
		}
	}
	a.note("glovebox: removed %s, %d MiB", plural.N(n, "template"), bytes>>20)
	return nil
}

// pickTemplates returns the templates of list that keys, or prefixes of them, name.
func pickTemplates(list []template.Info, keys []string) ([]template.Info, error) {
	var picked []template.Info
	for _, key := range keys {
		var found []template.Info
		for _, t := range list {
			if len(key) >= minPrefix && strings.HasPrefix(t.Key, strings.ToLower(key)) {
				found = append(found, t)
			}
		}
		switch {
		case len(found) == 0:
			if t, err := box.ParseInterpreter(key); err == nil && t != "" { // one name may have several, of other flavors and versions
				return nil, fmt.Errorf("no template %q of your own: built-in templates are removed by their key", key)
			}
			return nil, fmt.Errorf("no template %q", key)
		case len(found) > 1:
			return nil, fmt.Errorf("%d templates begin with %q", len(found), key)
		}
		picked = append(picked, found[0])
	}
	return picked, nil
}
