package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/catalog"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/box/template"
	"github.com/glovebox-dev/glovebox/internal/box/volume"
	"github.com/glovebox-dev/glovebox/internal/cli/engines"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/guest/embed"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// enter prepares the state directory and gives the program what the engine needs,
// such as namespaces. For that the program may be executed again, in which case
// enter does not return. If it is, the inner process dies with the outer one.
func enter(cfg *config.Config) error { return enterWith(cfg, false) }

// enterWith is enter for a program that may survive the outer process; see
// engine.Factory.Enter.
func enterWith(cfg *config.Config, surviveParent bool) error {
	if err := prepareState(cfg.StateDir); err != nil {
		return err
	}
	if err := selectEngine(cfg); err != nil {
		return err
	}
	if err := checkVolumes(cfg); err != nil {
		return err
	}
	if runtime.GOOS == "linux" && builtWithCgo() && engines.BoxesElsewhere() == nil {
		return withHint(errors.New("start the isolation: this program was built with cgo, and boxes could not find the C library that it needs"),
			"build it with: make build (or CGO_ENABLED=0 go build ./cmd/glovebox)")
	}
	// Inside, an ordinary user looks like root and the default would be another.
	if err := os.Setenv("GLOVEBOX_STATE_DIR", cfg.StateDir); err != nil {
		return fmt.Errorf("pass on the state directory: %w", err)
	}
	return explain(engines.Enter(surviveParent))
}

// builtWithCgo reports whether the executable depends on the host's C library.
func builtWithCgo() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" {
			return s.Value == "1"
		}
	}
	return false
}

// explain adds a hint to an error of the engine.
func explain(err error) error {
	if engines.BoxesElsewhere() != nil {
		if !engines.OfCluster(err) { // such as of a file, or that a user has stopped the program
			return err
		}
		return withHint(err, "run glovebox doctor with the same settings to see what the cluster lacks; see docs/kubernetes.md")
	}
	if _, ok := errors.AsType[*engine.HostError](err); ok {
		return withHint(err, "%s", unitHint()+"glovebox doctor shows what this machine supports")
	}
	if errors.Is(err, engine.ErrUnsupported) {
		return withHint(fmt.Errorf("boxes need Linux: %w", err),
			"run glovebox on Linux (amd64 or arm64), for example in a virtual machine or in WSL 2, and connect to it over HTTP")
	}
	return err
}

// host combines the engine, the image of boxes and the manager of boxes.
type host struct {
	engine  engine.Engine
	image   *image.Image
	maker   *machine.Maker
	log     *slog.Logger
	manager *box.Manager // nil before manage
	fleet   fleet.Fleet  // servers that share boxes with this one; nil: none

	networks *networks   // nil: boxes have no network
	volumes  *volume.Set // of boxes
	unwatch  func()      // ends watchVolumes; nil before

	checked atomic.Bool // the health check after the start has passed

	diskReserve int64 // bytes to leave free
	// storeForDisk is snapshots, for the engine's goroutines.
	storeForDisk atomic.Pointer[snapshot.Store]
	// managerForDisk is manager, for the same.
	managerForDisk atomic.Pointer[box.Manager]

	snapshots *snapshot.Store  // nil unless boxes are kept on disk
	templates *template.Store  // nil unless boxes are restored from templates
	scratch   *scratch         // nil unless boxes can be copied
	catalog   *catalog.Catalog // nil unless there are named templates
}

// openImage opens the image of boxes and finds its interpreters. It calls progress, unless
// nil, with a description of what takes time.
func openImage(ctx context.Context, cfg *config.Config, progress func(string)) (*image.Image, error) {
	if cfg.Image != "" {
		return openContainerImage(ctx, cfg, cfg.Image, progress)
	}
	for _, named := range []struct{ setting, path string }{{"python", cfg.Python}, {"node", cfg.Node}} {
		if named.path == "" {
			continue
		}
		if _, err := os.Stat(named.path); err != nil {
			err = &config.Error{Text: fmt.Sprintf("--%s: %v", named.setting, err)}
			return nil, withHint(err, "glovebox doctor lists the interpreters of this machine")
		}
	}
	inspecting := func(string) {}
	if progress != nil {
		inspecting = func(string) {
			progress("inspecting this machine's interpreters; later starts reuse the result")
			inspecting = func(string) {}
		}
	}
	img, err := image.Toolchain(ctx, image.ToolchainConfig{
		StateDir: cfg.StateDir,
		Python:   cfg.Python,
		Node:     cfg.Node,
		Progress: func(step string) { inspecting(step) },
	})
	if err != nil {
		err = fmt.Errorf("prepare the file system of boxes: %w", err)
		if hostdisk.IsFull(err) {
			return nil, withHint(err, "%s", fullDisk(err))
		}
		return nil, withHint(err, "glovebox doctor lists the interpreters found; GLOVEBOX_PYTHON and GLOVEBOX_NODE choose others")
	}
	return img, nil
}

// openHost opens a host. enter must have returned. The caller closes the host.
func openHost(ctx context.Context, cfg *config.Config, log *slog.Logger, progress func(string)) (*host, error) {
	h := &host{log: log}
	if err := h.open(ctx, cfg, progress); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// open opens the engine and the image. The caller closes the host, also after an
// error.
func (h *host) open(ctx context.Context, cfg *config.Config, progress func(string)) (err error) {
	h.diskReserve = diskReserve(cfg)
	if h.engine, err = engines.Default().Open(ctx, engine.Config{StateDir: cfg.StateDir, SweepEvery: cfg.OrphanInterval, Log: h.log, Disk: h.diskPolicy(cfg)}); err != nil {
		return explain(err)
	}
	info := h.engine.Info()
	h.log.Info("engine ready", logkey.Engine, info.Name, logkey.Version, info.Version, logkey.Isolation, info.Isolation)
	if h.volumes, err = openVolumes(cfg, h.log); err != nil {
		return err
	}
	h.maker = &machine.Maker{
		Engine: h.engine, Volumes: h.volumes.Ownerless(), Home: machine.Home, UID: engine.UserID, GID: engine.UserID, Log: h.log,
	}
	if at := engines.BoxesElsewhere(); at != nil {
		err = h.openElsewhere(ctx, cfg, at, progress)
	} else {
		err = h.openHere(ctx, cfg, progress)
	}
	if err != nil {
		return err
	}
	for _, warning := range h.image.Warnings {
		h.log.Warn("warning about the toolchain", logkey.Note, warning)
	}
	for _, note := range h.image.Notes {
		h.log.Info("note on the toolchain", logkey.Note, note)
	}
	h.maker.Root, h.maker.Interpreters, h.maker.Env = h.image.Root, programs(h.image), h.image.Env
	return nil
}

// openHere completes the maker for boxes that run on this machine.
func (h *host) openHere(ctx context.Context, cfg *config.Config, progress func(string)) (err error) {
	var agent errgroup.Group // hashes the agent while this goroutine looks at interpreters
	agent.Go(func() (err error) {
		if h.maker.Agent, err = embed.Install(filepath.Join(cfg.StateDir, "agent")); err != nil {
			return fmt.Errorf("install the agent: %w", err)
		}
		return nil
	})
	h.image, err = openImage(ctx, cfg, progress)
	if err := errors.Join(err, agent.Wait()); err != nil {
		return err
	}
	if err := h.image.Remember(cfg.StateDir); err != nil {
		h.log.Warn("boxes will not wake with this toolchain once another is chosen", logkey.Error, err)
	}
	return nil
}

// recallImage returns the image that boxes were made with, and its interpreters. The error is
// a *box.MissingImageError if the image was removed and can be brought back.
func (h *host) recallImage(cfg *config.Config, key, language string) (engine.Root, map[string]string, error) {
	img, err := image.Recall(cfg.StateDir, key, language)
	if old, ok := h.image.Unrecorded(cfg.StateDir, key); err != nil && ok {
		img, err = old, nil
	}
	if gone, ok := errors.AsType[*image.RemovedError](err); ok {
		return engine.Root{}, nil, &box.MissingImageError{What: gone.Public(), Remedy: gone.PublicRemedy(), Err: gone}
	}
	if err != nil {
		return engine.Root{}, nil, err
	}
	return img.Root, programs(img), nil
}

// programs returns the path of the interpreter of each language.
func programs(img *image.Image) map[string]string {
	paths := make(map[string]string, len(img.Interpreters))
	for language, i := range img.Interpreters {
		paths[language] = i.Path
	}
	return paths
}

// keepTemplates is the time after which an unused template is removed from disk.
const keepTemplates = 30 * 24 * time.Hour

// openTemplates opens the template store.
func (h *host) openTemplates(cfg *config.Config) (err error) {
	tc := templateConfig(cfg, h, h.log)
	tc.Keep = keepTemplates
	h.templates, err = template.Open(tc)
	if err != nil {
		return fmt.Errorf("open the templates: %w", err)
	}
	return nil
}

// openCatalog opens the named templates, unless they are open.
func (h *host) openCatalog(cfg *config.Config) (err error) {
	if h.catalog != nil {
		return nil
	}
	h.catalog, err = catalog.Open(catalog.Config{Dir: filepath.Join(cfg.StateDir, "catalog"), MinFree: diskReserve(cfg), Reserved: h.reservedDisk, Log: h.log})
	return err
}

// maxRecords bounds the boxes and snapshots on disk: listing them takes 10 ms per
// 1,000.
const maxRecords = 10_000

// ageGrace is the time for which a hibernated box must appear too old before it is
// removed: a clock that jumped ahead, as during a boot, is corrected within minutes.
const ageGrace = 10 * time.Minute

// diskGrace is the time for which the disk must be short before hibernated boxes are
// removed for it: another program may fill it for a moment, and removing them does not help
// much against one that goes on.
const diskGrace = 5 * time.Minute

// snapshotConfig returns the settings of the snapshot store.
func (h *host) snapshotConfig(cfg *config.Config) snapshot.Config {
	return snapshot.Config{
		Dir: filepath.Join(cfg.StateDir, "snapshots"), MaxBytes: int64(cfg.SnapshotDiskMB) << 20, MinFree: h.diskReserve, MaxSaved: int64(cfg.OwnerSnapshotMB) << 20,
		Reserved:   h.reservedDisk,
		MaxRecords: maxRecords, MaxAge: cfg.HibernateMaxAge, AgeGrace: min(ageGrace, cfg.HibernateMaxAge), DiskGrace: diskGrace, Log: h.log,
	}
}

// openSnapshots opens the snapshot store.
func (h *host) openSnapshots(cfg *config.Config) (err error) {
	h.snapshots, err = snapshot.Open(h.snapshotConfig(cfg))
	if err != nil {
		return fmt.Errorf("open the snapshots of boxes: %w", err)
	}
	h.storeForDisk.Store(h.snapshots)
	return nil
}

// openDisk opens the parts of the manager that use the disk: templates, snapshots
// and scratch.
func (h *host) openDisk(cfg *config.Config) (parts box.Parts, err error) {
	parts = box.Parts{Machines: h.maker, Log: h.log, Tombstones: filepath.Join(cfg.StateDir, "tombstones.json")}
	if h.networks != nil {
		parts.Networks = h.networks
	}
	if h.volumes.PerOwner() {
		parts.Volumes = ownerVolumes{h.volumes}
	}
	parts.Images = func(key, language string) (engine.Root, map[string]string, error) {
		return h.recallImage(cfg, key, language)
	}
	parts.Agents = func(sum string) (engine.Program, bool) {
		return embed.Find(filepath.Join(cfg.StateDir, "agent"), sum)
	}
	if !h.maker.Snapshots() {
		return parts, nil
	}
	if err := h.openTemplates(cfg); err != nil {
		return parts, err
	}
	if err := h.openCatalog(cfg); err != nil {
		return parts, err
	}
	if h.scratch, err = openScratch(filepath.Join(cfg.StateDir, "scratch"), h.log); err != nil {
		return parts, fmt.Errorf("make directories for copies of boxes: %w", err)
	}
	parts.Scratch = h.scratch.dirs
	if cfg.Hibernate {
		if err := h.openSnapshots(cfg); err != nil {
			return parts, err
		}
	}
	parts.Snapshots, parts.Templates, parts.Catalog = h.snapshots, h.templates, h.catalog
	return parts, nil
}

// manage starts the manager of boxes.
func (h *host) manage(ctx context.Context, sc box.Config, parts box.Parts) error {
	m := box.New(sc, parts)
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("start the manager of boxes: %w", err)
	}
	h.manager = m
	h.managerForDisk.Store(m)
	return nil
}

// prepare opens the host and starts the manager, which calls observe for each event.
// The caller closes the host, also after an error.
func (h *host) prepare(ctx context.Context, cfg *config.Config, progress func(string), observe func(box.Event)) error {
	if err := h.open(ctx, cfg, progress); err != nil {
		return err
	}
	spec := h.maker.Spec(box.Flavor(cfg.DefaultFlavor).Limits())
	if err := engines.KeepWarm(ctx, h.engine, &spec); err != nil {
		return explain(err)
	}
	parts, err := h.openDisk(cfg)
	if err != nil {
		return err
	}
	parts.Observe = observe
	h.fleet = engines.Fleet(h.engine)
	parts.Fleet = h.fleet
	if err := h.manage(ctx, boxConfig(cfg), parts); err != nil {
		return err
	}
	h.unwatch = h.watchVolumes()
	return nil
}

// close hibernates or ends every box and closes the engine. No call is in progress.
func (h *host) close() error {
	var errs []error
	if h.unwatch != nil {
		h.unwatch()
	}
	if h.manager != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := h.manager.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("end the boxes: %w", err))
		}
	}
	if h.networks != nil {
		errs = append(errs, h.networks.close())
	}
	if h.scratch != nil {
		errs = append(errs, h.scratch.close())
	}
	if h.templates != nil {
		errs = append(errs, h.templates.Close())
	}
	if h.catalog != nil {
		errs = append(errs, h.catalog.Close())
	}
	if h.snapshots != nil {
		errs = append(errs, h.snapshots.Close())
	}
	if h.engine != nil {
		if err := h.engine.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the engine: %w", err))
		}
	}
	return errors.Join(errs...)
}
