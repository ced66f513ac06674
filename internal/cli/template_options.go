package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/recipe"
)

// recipeOptions are the flags of template build for recipes.
type recipeOptions struct {
	file        string
	owner       string
	from, lang  string
	description string
	runs        []string
	copies      []string
	envs        []string
	net         []string
	network     []string // nil: not given
	noCache     bool

	sizes   []string
	force   bool
	preload []string // nil: not given
}

func (o *recipeOptions) bind(f *pflag.FlagSet) {
	f.StringVar(&o.file, "file", "", "`path` of a file with recipes [glovebox.toml]")
	f.StringArrayVar(&o.runs, "run", nil, "`command` run a shell command; repeatable")
	f.StringArrayVar(&o.copies, "copy", nil, "`PATH[:DEST]` copy a file or directory in; repeatable")
	f.StringArrayVar(&o.envs, "env", nil, "`KEY=VALUE` environment variable; repeatable")
	f.StringSliceVar(&o.net, "net", nil, "`list` of presets or hosts for the build's network")
	f.StringSliceVar(&o.network, "box-network", nil, "`list` of presets or hosts for the boxes at most, none for none")
	f.StringVar(&o.from, "from", "", "`image` that boxes have as their file system [toolchain]")
	f.StringVar(&o.lang, "language", "", "`python|javascript` interpreter of the boxes [python]")
	f.StringVar(&o.description, "description", "", "`text` one line for those who choose a template")
	f.StringVar(&o.owner, "owner", "", "`owner` of the template, or * for everyone [you]")
	f.BoolVar(&o.noCache, "no-cache", false, "run all steps again")
	help.Group(f, "Recipe", "file", "run", "copy", "env", "net", "box-network", "from", "language", "description", "owner", "no-cache")
}

// inFlags reports whether the flags have a recipe.
func (o *recipeOptions) inFlags() bool {
	return len(o.runs)+len(o.copies)+len(o.envs)+len(o.net) > 0 || o.network != nil || o.from != "" || o.lang != "" || o.description != ""
}

// builds returns the templates to build from recipes; none if the command line names only
// built-in ones.
func (o *recipeOptions) builds(cfg *config.Config, names []string) ([]*recipeBuild, error) {
	own, builtin := 0, 0
	for _, name := range names {
		if t, err := box.ParseInterpreter(name); err == nil && t != "" {
			builtin++
		} else {
			own++
		}
	}
	switch {
	case o.inFlags() && o.file != "":
		return nil, errors.New("--file cannot be combined with flags that are a recipe themselves")
	case own == 0 && o.file == "" && !o.inFlags():
		if o.owner != "" || o.noCache {
			return nil, errors.New("--owner and --no-cache are for templates from recipes: name one")
		}
		return nil, nil
	case builtin > 0:
		return nil, fmt.Errorf("%s and %s are built in and have no recipes: choose another name for a recipe, or build them by themselves", box.InterpreterPython, box.InterpreterNode)
	case len(o.sizes) > 1:
		return nil, errors.New("--flavor: a template from a recipe has one flavor")
	case o.inFlags() && len(names) != 1:
		return nil, errors.New("name the one template that the flags describe: glovebox template build NAME --run ...")
	case o.inFlags():
		b, err := o.fromFlags(cfg, names[0])
		return []*recipeBuild{b}, err
	}
	return o.fromFile(cfg, names)
}

// fromFile returns the builds of the templates of a file, all if names is empty.
func (o *recipeOptions) fromFile(cfg *config.Config, names []string) ([]*recipeBuild, error) {
	path := o.file
	if path == "" {
		path = recipe.FileName
	}
	file, err := recipe.Read(path)
	if errors.Is(err, fs.ErrNotExist) && o.file == "" {
		return nil, nil // the names are unknown
	}
	if err != nil {
		return nil, err
	}
	all := slices.Sorted(maps.Keys(file.Template))
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no [template.NAME]", path)
	}
	if len(names) == 0 {
		names = all
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var builds []*recipeBuild
	for _, name := range names {
		r := file.Template[name]
		if r == nil {
			return nil, fmt.Errorf("%s has no template %q: it has %s", path, name, strings.Join(all, ", "))
		}
		if r.From, err = confineFrom(r.From, dir); err != nil {
			return nil, file.Locate(err, name, "from", -1)
		}
		copies, err := resolveCopies(file, name, dir, cfg.Volumes)
		if err != nil {
			return nil, err
		}
		b, err := o.buildOf(name, r, copies)
		if err != nil {
			return nil, err
		}
		builds = append(builds, b)
	}
	return builds, nil
}

// fromFlags returns the build of the template that the flags describe.
func (o *recipeOptions) fromFlags(cfg *config.Config, name string) (*recipeBuild, error) {
	r := &recipe.Recipe{
		Description: o.description, From: o.from, Language: o.lang, Run: o.runs, Net: o.net, Network: limitOf(o.network), Env: make(map[string]string),
	}
	for _, kv := range o.envs {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, fmt.Errorf("--env must be KEY=VALUE, got %q", kv)
		}
		r.Env[k] = v
	}
	transfers, err := parseCopies(o.copies, cfg.Volumes)
	if err != nil {
		return nil, err
	}
	var copies []recipe.Copy
	for _, t := range transfers {
		// The user names the path: only what is below it is confined.
		real, err := filepath.EvalSymlinks(t.from)
		if err != nil {
			return nil, fmt.Errorf("--copy: %w", err)
		}
		copies = append(copies, recipe.Copy{Dir: filepath.Dir(real), From: filepath.Base(real), To: t.to})
	}
	return o.buildOf(name, r, copies)
}

// limitOf returns the limit in a list of hosts that the user has typed; "none" and "off"
// stand for an empty list.
func limitOf(list []string) []string {
	if len(list) == 1 && (list[0] == "none" || list[0] == config.NetworkOff) {
		return []string{}
	}
	return list
}

// flagOf has the flags for fields of a recipe that have another name.
var flagOf = map[string]string{"network": "box-network"}

// buildOf checks a recipe, to which the flags are applied. That of a file has been checked,
// so that a wrong field is one of a flag.
func (o *recipeOptions) buildOf(name string, r *recipe.Recipe, copies []recipe.Copy) (*recipeBuild, error) {
	if err := recipe.CheckName(name); err != nil {
		return nil, err
	}
	if o.preload != nil {
		r.Preload = o.preload
	}
	if len(o.sizes) == 1 {
		r.Flavor = o.sizes[0]
	}
	if err := r.Check(); err != nil {
		if f, ok := errors.AsType[*recipe.FieldError](err); ok {
			return nil, fmt.Errorf("--%s: %w", cmp.Or(flagOf[f.Field], f.Field), f.Err)
		}
		return nil, err
	}
	return &recipeBuild{name: name, owner: o.owner, recipe: r, copies: copies, typed: o.inFlags(), force: o.force, fresh: o.noCache}, nil
}

// buildRecipes builds templates one after the other.
func (a *app) buildRecipes(ctx context.Context, cfg *config.Config, h *host, c *catalog.Catalog, builds []*recipeBuild) error {
	if err := c.Sweep(ctx); err != nil {
		return err
	}
	for _, b := range builds {
		b.app, b.cfg, b.host, b.catalog = a, cfg, h, c
		if err := b.build(ctx); err != nil {
			return err
		}
	}
	return nil
}
