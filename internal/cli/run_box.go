package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
)

// noQuotas returns an error if a volume has a quota: only servers measure volumes, and a
// limit that nothing enforces is worse than none.
func noQuotas(volumes []config.Volume) error {
	for _, v := range volumes {
		if v.Quota > 0 {
			return withHint(&config.Error{Text: fmt.Sprintf("the volume %s has a quota, which glovebox run does not measure", v.Guest)},
				"leave out :quota=, or share it with :ro; glovebox serve and glovebox stdio measure quotas")
		}
	}
	return nil
}

// start makes the machine of a job: a new one, or one of its template. Closing the engine
// stops its guest.
func (h *host) start(ctx context.Context, cfg *config.Config, j *job) (*machine.Machine, error) {
	volumes, err := h.volumes.Of("") // the local user's
	if err != nil {
		return nil, fmt.Errorf("boot a box: %w", err)
	}
	maker := h.maker.WithVolumes(volumes)
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.StartTimeout, fmt.Errorf("not booted within %v", cfg.StartTimeout))
	defer cancel()
	id := "run-" + strings.ToLower(rand.Text())
	if j.template != "" {
		return h.startNamed(ctx, cfg, j, maker, id)
	}
	if j.argv == nil && maker.Interpreters[j.language] == "" {
		if cfg.Image != "" {
			return nil, fmt.Errorf("no interpreter for %s in %s", j.language, cfg.Image)
		}
		return nil, withHint(fmt.Errorf("no interpreter for %s on this machine", j.language), "glovebox doctor shows how to install one")
	}
	m, err := maker.Boot(ctx, id, j.flavor.Limits())
	if err != nil {
		return nil, fmt.Errorf("boot a box: %w", err)
	}
	return m, nil
}

// startNamed restores a machine of the job's template. The job takes over the flavor of the
// template, the limits of its network and, if it has none, its language.
func (h *host) startNamed(ctx context.Context, cfg *config.Config, j *job, maker *machine.Maker, id string) (*machine.Machine, error) {
	if !maker.Snapshots() {
		return nil, fmt.Errorf("--template: engine %s has no snapshots: %w", h.engine.Info().Name, engine.ErrUnsupported)
	}
	if err := h.openCatalog(cfg); err != nil {
		return nil, err
	}
	t, err := findNamed(h.catalog, "", j.template)
	if err != nil {
		return nil, err
	}
	if j.flavor != "" && string(j.flavor) != t.Flavor {
		return nil, withHint(fmt.Errorf("template %s has the flavor %s, not %s", t.Name, t.Flavor, j.flavor), "leave out --flavor, or build another template")
	}
	j.flavor, j.limits = box.Flavor(t.Flavor), t.Limits
	if j.anyLang {
		j.language = box.Interpreter(t.Base).Language()
	}
	dir, release, err := h.catalog.Read(t.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	maker, err = h.makerOfSnapshot(ctx, cfg, maker, dir, box.Interpreter(t.Base).Language())
	if err != nil {
		return nil, unfit(t.Name, err)
	}
	if j.argv == nil && maker.Interpreters[j.language] == "" {
		return nil, withHint(fmt.Errorf("no interpreter for %s in the boxes of template %s", j.language, t.Name), "run a command instead: glovebox run --template %s -- COMMAND", t.Name)
	}
	m, err := maker.Restore(ctx, id, j.flavor.Limits(), dir, true)
	if err != nil {
		return nil, unfit(t.Name, err)
	}
	return m, nil
}

// makerOfSnapshot returns what makes machines like that of the snapshot in dir: with its
// image and its agent, if this host has them.
func (h *host) makerOfSnapshot(ctx context.Context, cfg *config.Config, maker *machine.Maker, dir, language string) (*machine.Maker, error) {
	of, err := maker.InspectSnapshot(ctx, dir)
	if err != nil {
		return nil, err
	}
	if agent, ok := embed.Find(filepath.Join(cfg.StateDir, "agent"), of.Agent); ok && agent.Path != maker.Agent.Path {
		maker = maker.WithAgent(agent)
	}
	if of.RootKey == maker.Root.Key {
		return maker, nil
	}
	root, interpreters, err := h.recallImage(cfg, of.RootKey, language)
	if gone, ok := errors.AsType[*image.RemovedError](err); ok {
		return nil, withHint(gone, "%s", gone.Remedy())
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, engine.ErrInvalid)
	}
	return maker.WithImage(root, interpreters), nil
}

// unfit explains the error of a template whose box cannot be restored.
func unfit(name string, err error) error {
	if err = fmt.Errorf("restore a box of template %s: %w", name, err); !errors.Is(err, engine.ErrInvalid) {
		return err
	}
	return withHint(err, "build it again with the volumes of this command: glovebox template build %s; glovebox template show %s lists those that it was built with", name, name)
}

// connect gives the programs of a machine the local user's network, within the limits of the
// job. The caller closes it; close of the host ends it, too.
func (h *host) connect(ctx context.Context, l *client.Conn, cfg *config.Config, j *job) (box.Network, error) {
	var err error
	if h.networks, err = openNetworks(cfg, h.log, nil); err != nil {
		return nil, err
	}
	network := h.networks.Open("", "run", j.template, j.limits)
	l.SetNetwork(network)
	// A machine of a template may have the settings of the box that it is a copy of.
	if settings := network.Settings(); settings.On || j.template != "" {
		if err := l.Configure(ctx, settings); err != nil {
			return network, errors.Join(fmt.Errorf("connect the box to the network: %w", err), network.Close())
		}
	}
	return network, nil
}
