package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/recipe"
)

const (
	// stepTimeout bounds a command of a recipe, such as an installation of large packages.
	stepTimeout = 15 * time.Minute
	// worthCaching is how long steps must have taken since the last cached one for their
	// result to be cached: a snapshot takes half a second and 40 to 200 MB.
	worthCaching = 2 * time.Second
	// proveTimeout bounds the empty cell that proves a template; it takes milliseconds.
	proveTimeout = 30 * time.Second
)

// recipeBuild builds one template from its recipe.
type recipeBuild struct {
	app     *app
	cfg     *config.Config
	host    *host
	catalog *catalog.Catalog
	name    string
	owner   string
	recipe  *recipe.Recipe
	copies  []recipe.Copy // of the recipe, resolved
	typed   bool          // the user has typed the recipe: it is in flags
	force   bool          // build it although it is up to date
	fresh   bool          // run all steps

	maker *machine.Maker
}

// say reports progress.
func (b *recipeBuild) say(format string, args ...any) {
	b.app.note("glovebox: template %s: %s", b.name, printable(fmt.Sprintf(format, args...)))
}

// build builds the template, unless it is up to date.
func (b *recipeBuild) build(ctx context.Context) error {
	if err := b.buildOnce(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return explainTemplate(fmt.Errorf("build template %q: %w", b.name, err))
	}
	return nil
}

func (b *recipeBuild) buildOnce(ctx context.Context) error {
	begun := time.Now()
	var err error
	if b.maker, err = b.makerOf(ctx); err != nil {
		return err
	}
	if err := b.supported(); err != nil {
		return err
	}
	b.maker.Env = append(append([]string(nil), b.maker.Env...), b.recipe.Variables()...)
	steps, err := b.recipe.Plan(ctx, b.base(), b.copies)
	if err != nil {
		return err
	}
	key := b.key(steps)
	if old, err := b.catalog.Find(b.owner, b.name); err == nil && old.Owner == b.owner && !b.force && !b.fresh {
		if d, err := b.catalog.Details(old.ID); err == nil && d.Key == key {
			b.say("up to date, %d MiB; --force builds it again", old.Bytes>>20)
			return nil
		}
	}
	m, done, err := b.start(ctx, steps)
	if err != nil {
		return err
	}
	defer func() { closeMachine(ctx, m) }()
	disconnect, err := b.connect(ctx, m)
	if err != nil {
		return err
	}
	disconnected := false
	defer func() {
		if !disconnected { // the build has failed
			_ = disconnect()
		}
	}()
	details := catalog.Details{Key: key, Root: b.maker.Root.Key, Preload: b.preload(), Volumes: mappings(b.cfg.Volumes)}
	if details.Recipe, err = json.Marshal(b.recipe); err != nil {
		return err
	}
	var uncached time.Duration
	for i, s := range steps {
		step := catalog.Step{Text: s.String(), Cached: i < done}
		if !step.Cached {
			b.say("step %d of %d: %s", i+1, len(steps), s)
			at := time.Now()
			if err := b.step(ctx, m, s); err != nil {
				return fmt.Errorf("step %d (%s): %w", i+1, s, err)
			}
			took := time.Since(at)
			step.Seconds = took.Seconds()
			if uncached += took; uncached >= worthCaching {
				b.cache(ctx, m, s)
				uncached = 0
			}
		}
		details.Steps = append(details.Steps, step)
	}
	disconnected = true
	if err := disconnect(); err != nil {
		return fmt.Errorf("disconnect the box from the network: %w", err)
	}
	t, err := b.finish(ctx, m, details)
	if err != nil {
		return err
	}
	b.say("done in %.1f s, %d MiB", time.Since(begun).Seconds(), t.Bytes>>20)
	return nil
}

// supported returns an error if this host cannot build the recipe.
func (b *recipeBuild) supported() error {
	r := b.recipe
	switch {
	case !b.host.maker.Snapshots():
		return fmt.Errorf("engine %s has no snapshots: %w", b.host.engine.Info().Name, engine.ErrUnsupported)
	case b.commandsOnly() && len(r.Preload) > 0:
		return fmt.Errorf("preload = %q: the image %s has no interpreter", r.Preload, r.From)
	case b.maker.Interpreters[r.Language] == "" && r.From != recipe.Toolchain && !b.commandsOnly():
		return withHint(fmt.Errorf("no interpreter for %s in %s", r.Language, r.From), "set language to one that the image has; glovebox image ls lists them")
	case b.maker.Interpreters[r.Language] == "" && !b.commandsOnly():
		return withHint(fmt.Errorf("no interpreter for %s on this machine", r.Language), "glovebox doctor shows how to install one")
	}
	if _, err := templateLimits(r.Network); err != nil {
		return err
	}
	if len(r.Net) > 0 { // before anything starts
		_, err := b.policies()
		return err
	}
	return nil
}

// limits returns the limits of the boxes of the template.
func (b *recipeBuild) limits() engine.Limits { return box.Flavor(b.recipe.Flavor).Limits() }

// base identifies the machine before the first step.
func (b *recipeBuild) base() string {
	info := b.maker.Engine.Info()
	return fmt.Sprintf("%q %q %q %q %v %v %q", info.Name, info.Version, filepath.Base(b.maker.Agent.Path), b.maker.Root.Key,
		b.limits(), b.maker.Volumes, b.maker.Home)
}

// key identifies the template: everything that it depends on.
func (b *recipeBuild) key(steps []recipe.Step) string {
	last := b.base()
	if len(steps) > 0 {
		last = steps[len(steps)-1].Key
	}
	text, err := json.Marshal([]any{last, b.recipe, b.preload(), b.maker.Interpreters})
	if err != nil {
		panic(err) // of strings: not possible
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// preload returns the modules to import: those of the recipe or, if it names none, those
// of the built-in template.
func (b *recipeBuild) preload() []string {
	switch {
	case b.recipe.Preload != nil:
		return b.recipe.Preload
	case b.commandsOnly():
		return nil
	case b.recipe.Language == recipe.Python:
		return b.cfg.Preload
	}
	return nil
}

// buildMachineID returns a unique name for a machine.
func buildMachineID() string { return "build-" + strings.ToLower(rand.Text()) }

// start returns a machine after the last cached step, and the number of steps done.
func (b *recipeBuild) start(ctx context.Context, steps []recipe.Step) (m *machine.Machine, done int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.StartTimeout, fmt.Errorf("the box did not start within %v", b.cfg.StartTimeout))
	defer cancel()
	for done := len(steps); done > 0 && !b.fresh; done-- {
		dir, release, err := b.catalog.Step(steps[done-1].Key)
		if err != nil {
			continue
		}
		m, err := b.maker.Restore(ctx, buildMachineID(), b.limits(), dir, true)
		release()
		if err == nil {
			b.say("%d of %d steps cached", done, len(steps))
			return m, done, nil
		}
		if !errors.Is(err, engine.ErrInvalid) { // an invalid one is built again
			return nil, 0, fmt.Errorf("restore a cached step: %w", err)
		}
	}
	m, err = b.maker.Boot(ctx, buildMachineID(), b.limits())
	if err != nil {
		return nil, 0, fmt.Errorf("boot a box: %w", err)
	}
	return m, 0, nil
}

// closeMachine frees a machine, also after ctx is done.
func closeMachine(ctx context.Context, m *machine.Machine) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = m.Close(ctx) // closing the engine tries again, and reports it
}

// step performs a step in the machine.
func (b *recipeBuild) step(ctx context.Context, m *machine.Machine, s recipe.Step) error {
	if s.Run == "" {
		if err := copyStep(ctx, m.Agent, s.Copy); err != nil {
			return err
		}
		// The key is the hash of the files as they were planned.
		if now, err := s.Copy.Sum(ctx); err != nil || now != s.Sum {
			return errors.Join(errors.New("the files changed during the build"), err)
		}
		return nil
	}
	res, err := m.Agent.Exec(ctx, protocol.Exec{Shell: s.Run, TimeoutMS: stepTimeout.Milliseconds()}, nil, &buildOutput{b.app})
	switch {
	case err != nil:
		return ended(ctx, m.Guest, box.Flavor(b.recipe.Flavor), err)
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case res.Stopped == "timeout":
		return fmt.Errorf("stopped after %v", stepTimeout)
	case res.Stopped == "oom":
		return outOfMemory(errMemory, box.Flavor(b.recipe.Flavor))
	case res.Code != 0:
		return fmt.Errorf("exit code %d", res.Code)
	}
	return nil
}

// buildOutput passes the output of steps through to standard error: standard output is
// for data. It implements client.Sink.
type buildOutput struct{ app *app }

func (o *buildOutput) Output(_ protocol.Channel, p []byte) { o.app.Err.Write(p) }
func (o *buildOutput) Display(protocol.Display)            {}

// cache stores the machine as the result of a step. A build goes on without.
func (b *recipeBuild) cache(ctx context.Context, m *machine.Machine, s recipe.Step) {
	if err := b.catalog.PutStep(ctx, s.Key, 0, m.Snapshot); err != nil && ctx.Err() == nil {
		b.app.note("glovebox: warning: %s", printable(err.Error()))
	}
}

// finish starts the interpreter, imports the modules, and stores the template once a box
// made from it has run.
func (b *recipeBuild) finish(ctx context.Context, m *machine.Machine, d catalog.Details) (catalog.Template, error) {
	var missing []string
	var err error
	if len(d.Preload) > 0 {
		b.say("importing %s", strings.Join(d.Preload, ", "))
	}
	if !b.commandsOnly() {
		if missing, err = m.Warm(ctx, b.recipe.Language, d.Preload); err != nil {
			return catalog.Template{}, err
		}
	}
	d.Preload = without(d.Preload, missing)
	if b.recipe.Preload != nil && len(d.Preload) < len(b.recipe.Preload) {
		return catalog.Template{}, withHint(fmt.Errorf("preload: modules that cannot be imported: %s", strings.Join(without(b.recipe.Preload, d.Preload), ", ")),
			"install them with run, or leave them out%s", spelling(b.recipe.Language))
	}
	b.say("writing and verifying")
	t := catalog.Template{
		Name: b.name, Owner: b.owner, Description: b.recipe.Description, Base: string(box.InterpreterPython), Flavor: b.recipe.Flavor,
	}
	if b.recipe.Language == recipe.JavaScript {
		t.Base = string(box.InterpreterNode)
	}
	if t.Limits, err = templateLimits(b.recipe.Network); err != nil {
		return catalog.Template{}, err
	}
	return b.catalog.Put(ctx, t, d, 0, func(ctx context.Context, dir string) error {
		if err := m.Snapshot(ctx, dir); err != nil {
			return err
		}
		return b.verify(ctx, dir)
	})
}

// spelling adds to the remedy for a missing module that its package may have another name.
func spelling(language string) string {
	if language == recipe.Python {
		return "; write a module as programs import it: sklearn, not scikit-learn"
	}
	return ""
}

// verify restores a machine from dir and runs an empty cell.
func (b *recipeBuild) verify(ctx context.Context, dir string) error {
	m, err := b.maker.Restore(ctx, buildMachineID(), b.limits(), dir, true)
	if err != nil {
		return fmt.Errorf("restore to verify: %w", err)
	}
	defer closeMachine(ctx, m)
	if b.commandsOnly() {
		return nil
	}
	return m.Prove(ctx, b.recipe.Language, proveTimeout)
}

// without returns the elements of list that are not in other.
func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// resolveCopies returns the copies of a recipe of a file in dir, with their destinations.
func resolveCopies(file *recipe.File, name, dir string, volumes []config.Volume) ([]recipe.Copy, error) {
	var list []recipe.Copy
	for i, arg := range file.Template[name].Copy {
		c, err := recipe.ParseCopy(arg)
		if err == nil {
			c.Dir = dir
			err = resolveCopy(&c, volumes)
		}
		if err != nil {
			return nil, file.Locate(err, name, "copy", i)
		}
		list = append(list, c)
	}
	return list, nil
}

// resolveCopy fills in the destination of a copy.
func resolveCopy(c *recipe.Copy, volumes []config.Volume) error {
	root, info, err := c.Open()
	if err != nil {
		return err
	}
	defer root.Close()
	base := info.Name()
	if c.From == "." {
		base = filepath.Base(c.Dir)
	}
	if c.To, err = copyDest(c.To, base, info.IsDir(), volumes); err != nil {
		return fmt.Errorf("copy %q: %w", c.From, err)
	}
	return nil
}

// copyDest returns the destination of a file or directory named base, as cp has it.
func copyDest(to, base string, dir bool, volumes []config.Volume) (string, error) {
	if to == "" {
		to = base
	} else if strings.HasSuffix(to, "/") {
		to = path.Join(to, base)
	}
	root, err := checkCopyTo(to, volumes)
	if err != nil {
		return "", err
	}
	if root && !dir { // as cp does with an existing directory
		to = path.Join(to, base)
	}
	return to, nil
}

// copyStep copies a file or directory of a recipe into a box.
func copyStep(ctx context.Context, l *client.Conn, c recipe.Copy) error {
	root, info, err := c.Open()
	if err != nil {
		return err
	}
	defer root.Close()
	if info.IsDir() {
		sub, err := root.OpenRoot(c.From)
		if err != nil {
			return err
		}
		defer sub.Close()
		return extractInto(ctx, l, c.To, sub)
	}
	f, err := root.Open(c.From)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = l.Write(ctx, protocol.Write{Path: c.To, Mode: uint32(info.Mode().Perm()), Parents: true}, f)
	return err
}
