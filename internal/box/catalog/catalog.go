// Package catalog keeps the templates that users name, and the steps of their builds, on
// disk. Both are snapshots of machines, in stores of package snapshot:
//
//	named/    one record for each template; never evicted
//	steps/    one record for each cached step, by its key; evicted by size and age
//
// A template is a snapshot and not an entry of package template, since it cannot always be
// built again: after an upgrade of Glovebox or of the interpreters, its boxes still start
// with the agent and the file system that it was made with.
package catalog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/snapshot"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/syncfile"
)

// Everyone is the owner of templates that every owner may use.
const Everyone = "*"

const (
	// maxStepBytes and maxStepAge bound the cached steps: a step has 40 to 200 MB.
	maxStepBytes = 4 << 30
	maxStepAge   = 7 * 24 * time.Hour
	// maxTemplates bounds the templates of all owners: listing them takes 10 ms per 1,000.
	maxTemplates = 1000
	// DetailsName is the file with a template's Details beside its snapshot.
	DetailsName = "details.json"
	maxDetails  = 4 << 20
	// kind is the Kind of all records.
	kind = "template"
)

var (
	// ErrNotFound means that there is no such template or step.
	ErrNotFound = errors.New("no such template")
	// ErrInUse means that a box is being made from the template.
	ErrInUse = errors.New("the template is in use")
)

// Template is a template on disk.
type Template struct {
	ID          string // of its snapshot
	Name        string // unique for its owner
	Owner       string // Everyone: for all
	Description string
	Base        string             // the built-in template with the same interpreter: "python" or "node"
	Flavor      string             // of its boxes
	Limits      snapshot.NetLimits // of the network of its boxes
	Made        time.Time
	Bytes       int64
}

// Details describes how a template was made.
type Details struct {
	Key      string          `json:"key,omitempty"`      // a hash of everything that a build depends on
	Recipe   json.RawMessage `json:"recipe,omitempty"`   // as package recipe encodes it
	Steps    []Step          `json:"steps,omitempty"`    // in their order
	Preload  []string        `json:"preload,omitempty"`  // imported modules
	Snapshot string          `json:"snapshot,omitempty"` // the saved snapshot that it is a copy of
	Root     string          `json:"root,omitempty"`     // the key of the file system that it was made with
	Volumes  []string        `json:"volumes"`            // as in the settings of the build; nil: unknown
}

// Step describes a step of a build.
type Step struct {
	Text    string  `json:"text"`
	Seconds float64 `json:"seconds"`
	Cached  bool    `json:"cached,omitempty"`
}

// Config configures a Catalog.
type Config struct {
	Dir      string       // created if missing
	MinFree  int64        // bytes to leave free on the disk
	Reserved func() int64 // as in snapshot.Config; nil: none
	Log      *slog.Logger // nil: none
}

// Catalog is a directory of templates. Its methods may be called concurrently, also by
// several processes that opened the same directory.
type Catalog struct {
	named, steps *snapshot.Store
	log          *slog.Logger
}

// Open opens the catalog in cfg.Dir. The caller must Close it.
func Open(cfg Config) (_ *Catalog, err error) {
	c := &Catalog{log: cfg.Log}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.named, err = snapshot.Open(snapshot.Config{
		Dir: filepath.Join(cfg.Dir, "named"), MinFree: cfg.MinFree, Reserved: cfg.Reserved, MaxRecords: maxTemplates, Log: c.log,
	})
	if err == nil {
		c.steps, err = snapshot.Open(snapshot.Config{
			Dir: filepath.Join(cfg.Dir, "steps"), MinFree: cfg.MinFree, Reserved: cfg.Reserved,
			MaxBytes: maxStepBytes, MaxAge: maxStepAge, Log: c.log,
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the catalog of templates: %w", err), c.Close())
	}
	return c, nil
}

// Close closes the catalog.
func (c *Catalog) Close() error {
	var errs []error
	for _, s := range []*snapshot.Store{c.named, c.steps} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// Sweep removes expired steps, and what killed processes left.
func (c *Catalog) Sweep(ctx context.Context) error {
	_, err := c.steps.Sweep(ctx)
	_, errNamed := c.named.Sweep(ctx)
	return errors.Join(err, errNamed)
}

// List returns the templates that an owner may use: their own, and those of Everyone that
// have another name. They are sorted by name.
func (c *Catalog) List(owner string) ([]Template, error) {
	all, err := c.All()
	if err != nil {
		return nil, err
	}
	var list []Template
	for _, t := range all {
		own := t.Owner == owner
		if !own && (t.Owner != Everyone || slices.ContainsFunc(all, func(o Template) bool { return o.Owner == owner && o.Name == t.Name })) {
			continue
		}
		list = append(list, t)
	}
	return list, nil
}

// All returns the templates of all owners, sorted by name and owner.
func (c *Catalog) All() ([]Template, error) {
	found, err := c.named.List(func(m *snapshot.Meta) bool { return m.Kind == kind && !m.Written.IsZero() })
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	list := make([]Template, 0, len(found))
	for i := range found {
		list = append(list, describe(found[i].ID, &found[i].Meta, found[i].Bytes))
	}
	slices.SortFunc(list, func(a, b Template) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Owner, b.Owner), b.Made.Compare(a.Made), cmp.Compare(a.ID, b.ID))
	})
	// While a template is replaced, there are two of it. The newer one counts.
	return slices.CompactFunc(list, func(a, b Template) bool { return a.Name == b.Name && a.Owner == b.Owner }), nil
}

func describe(id string, m *snapshot.Meta, bytes int64) Template {
	return Template{
		ID: id, Name: m.Name, Owner: m.Owner, Description: m.Description, Base: m.Interpreter, Flavor: m.Flavor, Limits: m.Limits, Made: m.Created, Bytes: bytes,
	}
}

// Find returns the template of that name that an owner may use. The error is ErrNotFound if
// there is none.
func (c *Catalog) Find(owner, name string) (Template, error) {
	list, err := c.List(owner)
	if err != nil {
		return Template{}, err
	}
	if i := slices.IndexFunc(list, func(t Template) bool { return t.Name == name }); i >= 0 {
		return list[i], nil
	}
	return Template{}, fmt.Errorf("find template %.80q: %w", name, ErrNotFound)
}

// Read returns the directory of a template's snapshot, which stays until release is called.
// Errors: ErrNotFound, ErrInUse while the template is removed.
func (c *Catalog) Read(id string) (dir string, release func(), err error) {
	dir, _, release, err = c.named.Read(id)
	if err != nil {
		return "", nil, fmt.Errorf("read template: %w", explain(err))
	}
	return dir, release, nil
}

// explain replaces the errors of the store.
func explain(err error) error {
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return ErrNotFound
	case errors.Is(err, snapshot.ErrLeased):
		return ErrInUse
	}
	return err
}

// Details returns how a template was made.
func (c *Catalog) Details(id string) (Details, error) {
	var d Details
	dir, release, err := c.Read(id)
	if err != nil {
		return d, err
	}
	defer release()
	f, err := owned.Open(filepath.Join(dir, DetailsName))
	if err != nil {
		return d, fmt.Errorf("read template: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDetails))
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err != nil {
		return d, fmt.Errorf("read template: %s: %w", DetailsName, err)
	}
	return d, nil
}

// Put adds a template, and replaces that of the same name and owner. write gets an empty
// directory and writes the snapshot to it; estimate is its expected size. Boxes that came
// from the replaced template live on. After an error nothing has changed.
func (c *Catalog) Put(ctx context.Context, t Template, d Details, estimate int64, write func(ctx context.Context, dir string) error) (Template, error) {
	lease, err := c.named.Create(snapshot.Meta{
		Purpose: snapshot.Saved, Kind: kind, Owner: t.Owner, Name: t.Name, Description: t.Description, Interpreter: t.Base, Flavor: t.Flavor, Limits: t.Limits,
	})
	if err != nil {
		return Template{}, fmt.Errorf("add template %q: %w", t.Name, err)
	}
	err = lease.Write(ctx, lease.Meta(), estimate, func(ctx context.Context, dir string) error {
		if err := write(ctx, dir); err != nil {
			return err
		}
		return writeDetails(dir, d)
	})
	if err != nil {
		return Template{}, fmt.Errorf("add template %q: %w", t.Name, errors.Join(err, lease.Remove()))
	}
	meta := lease.Meta()
	added := describe(lease.ID(), &meta, lease.Bytes())
	if err := lease.Release(); err != nil {
		return Template{}, fmt.Errorf("add template %q: %w", t.Name, err)
	}
	if err := c.removeOlder(added); err != nil { // the next Put tries again
		c.log.Warn("replaced template not removed", logkey.Interpreter, t.Name, logkey.Error, err)
	}
	return added, nil
}

// removeOlder removes the templates that t replaces.
func (c *Catalog) removeOlder(t Template) error {
	found, err := c.named.List(func(m *snapshot.Meta) bool { return m.Kind == kind && m.Owner == t.Owner && m.Name == t.Name })
	for _, r := range found {
		if r.ID != t.ID && !r.Created.After(t.Made) {
			err = errors.Join(err, c.Remove(r.ID))
		}
	}
	return err
}

// writeDetails writes and syncs the description of a template.
func writeDetails(dir string, d Details) error {
	b, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	if err := syncfile.Create(filepath.Join(dir, DetailsName), append(b, '\n')); err != nil {
		return err
	}
	return syncfile.Dir(dir)
}

// removeWait bounds the wait for boxes that are being made from a template, which takes a
// quarter of a second.
const removeWait = 10 * time.Second

// Remove removes a template. Boxes that came from it live on. Errors: ErrNotFound; ErrInUse
// if boxes are being made from it for 10 s.
func (c *Catalog) Remove(id string) error {
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) { // a lock announces nothing
		err := explain(c.named.Delete(id))
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrInUse) || time.Since(begun) > removeWait {
			return fmt.Errorf("remove template: %w", err)
		}
	}
}
