package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

const (
	// recheck is how long a key is cached, and so how long an old template may still be
	// used after an upgrade of a library.
	recheck = 2 * time.Second
	// maxMemo bounds the cached keys: names times flavors is a dozen.
	maxMemo = 256
	// removeWait is how long removing waits for restores in progress, which take a
	// quarter of a second.
	removeWait = 10 * time.Second
	// sweepInterval is the time between sweeps for unused templates.
	sweepInterval = 24 * time.Hour
	// staleKeep is how long a stale template stays after its last use: a server of
	// another version, for which it is not stale, may still run.
	staleKeep = 24 * time.Hour
)

var (
	// ErrNotFound means that there is no such template.
	ErrNotFound = errors.New("no such template")
	// ErrInUse means that machines are being restored from the template.
	ErrInUse = errors.New("template is in use")
)

// Spec describes a template.
type Spec struct {
	Name     string        `json:"name"`     // for display: "python", "node"
	Language string        `json:"language"` // of the interpreter, as in Maker.Interpreters
	Flavor   string        `json:"flavor"`   // for display: the flavor's name
	Limits   engine.Limits `json:"limits"`   // of the flavor
	// Preload lists modules to import if they are installed; the order does not matter.
	Preload []string `json:"preload"`
}

// String returns the name for messages: "python (small)".
func (s Spec) String() string {
	if s.Flavor == "" {
		return s.Name
	}
	return fmt.Sprintf("%s (%s)", s.Name, s.Flavor)
}

// Template is a complete template on disk.
type Template struct {
	Key     string
	Spec    Spec     // its Preload is sorted
	Missing []string // modules of Preload that could not be imported
	Made    time.Time
	Bytes   int64 // on disk
}

// Info is the listing of a template.
type Info struct {
	Template
	Used time.Time // last restore, or time of the build
	// Stale is the reason why the template is not used any more; empty if it is
	// current.
	Stale string
	// Others says which settings of the Store's Config the template was built with other
	// values of, in words; empty if with the same.
	Others string
}

// Config of a Store.
type Config struct {
	Dir   string         // directory of templates, created if missing; shared with other processes
	Maker *machine.Maker // creates the machines; not closed by the Store
	// Files lists by language the host's files and directories that change when its
	// interpreter is upgraded or a library is installed. In directories, the preloaded
	// modules are checked, too.
	Files map[string][]string
	// Keep, if positive, is how long unused templates stay; a sweep runs when the store
	// is opened and once a day. Stale ones stay a day.
	Keep time.Duration
	Log  *slog.Logger     // default: none
	Now  func() time.Time // default: time.Now
}

// Store is a directory of templates. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	machine string // the host's processor
	ctx     context.Context
	stop    context.CancelCauseFunc
	wg      sync.WaitGroup // of builds and of the sweeper

	mu     sync.Mutex
	closed bool               // guarded by mu
	memo   map[string]memo    // guarded by mu; by Want
	whole  map[string]found   // guarded by mu; by key
	builds map[string]*build  // guarded by mu; by key
	failed map[string]failure // guarded by mu; by key
	agent  agentSum           // guarded by mu
}

// memo is a cached key.
type memo struct {
	key string
	at  time.Time
}

// found is a cached template.
type found struct {
	info     os.FileInfo // of its record
	template Template
}

var errClosed = errors.New("the store of templates is closed")

// Open returns the store in cfg.Dir and removes what killed builders left. The caller
// must Close it.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = owned.Dir(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open templates in %q: %w", cfg.Dir, err)
	}
	cfg.Dir = dir
	s := &Store{
		cfg: cfg, machine: processor(),
		memo: make(map[string]memo), whole: make(map[string]found),
		builds: make(map[string]*build), failed: make(map[string]failure),
	}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	if err := s.clean(); err != nil {
		return nil, fmt.Errorf("clean templates in %q: %w", cfg.Dir, err)
	}
	if cfg.Keep > 0 {
		s.wg.Go(s.sweep)
	}
	return s, nil
}

// sweep removes unused templates until the store is closed.
func (s *Store) sweep() {
	for {
		n, bytes, err := s.prune(s.ctx, staleKeep, s.cfg.Keep)
		if n > 0 {
			s.cfg.Log.Info("unused templates removed", logkey.Count, n, logkey.Bytes, bytes)
		}
		if err != nil && s.ctx.Err() == nil {
			s.cfg.Log.Warn("unused templates not removed", logkey.Error, err)
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(sweepInterval):
		}
	}
}

// Close cancels the builds in progress, which leave nothing, and waits for them. The
// templates stay.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errClosed)
	s.wg.Wait()
	return nil
}

// Find returns the template for exactly w, if there is one. It reads a few files at
// most.
func (s *Store) Find(w Spec) (Template, bool) {
	key, err := s.keyOf(w)
	if err != nil {
		return Template{}, false
	}
	return s.find(key)
}

// keyOf returns the key of w, cached for recheck.
func (s *Store) keyOf(w Spec) (string, error) {
	text := fmt.Sprintf("%q %q %q %v %q", w.Name, w.Language, w.Flavor, w.Limits, w.Preload)
	now := s.cfg.Now()
	s.mu.Lock()
	m, ok := s.memo[text]
	s.mu.Unlock()
	if age := now.Sub(m.at); ok && age >= 0 && age < recheck {
		return m.key, nil
	}
	in, err := s.inputs(w)
	if err != nil {
		return "", err
	}
	key := in.key()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.memo) >= maxMemo {
		clear(s.memo)
	}
	s.memo[text] = memo{key, now}
	return key, nil
}

// find returns the template of a key, and reads it again if its record has changed.
func (s *Store) find(key string) (Template, bool) {
	info, err := os.Lstat(s.path(key, recordName))
	if err != nil {
		return Template{}, false
	}
	s.mu.Lock()
	f, ok := s.whole[key]
	s.mu.Unlock()
	if ok && os.SameFile(f.info, info) && f.info.ModTime().Equal(info.ModTime()) && f.info.Size() == info.Size() {
		return f.template, true
	}
	r, err := s.readRecord(key)
	if err != nil {
		return Template{}, false
	}
	t := r.template(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.whole) >= maxMemo {
		clear(s.whole)
	}
	s.whole[key] = found{info, t}
	return t, true
}

// path returns the path of a file of a template.
func (s *Store) path(key string, elem ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir, key}, elem...)...)
}

// List returns the templates, sorted by name and flavor, without those being built.
func (s *Store) List() ([]Info, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	var list []Info
	for _, e := range entries {
		if !isKey(e.Name()) {
			continue
		}
		r, err := s.readRecord(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in between
		}
		info := Info{Template: Template{Key: e.Name()}, Stale: "damaged record"}
		if err == nil {
			info = Info{Template: r.template(e.Name()), Stale: s.stale(&r.Inputs), Others: s.others(&r.Inputs)}
		}
		info.Used = info.Made
		if used, err := os.Stat(s.path(e.Name(), usedName)); err == nil {
			info.Used = used.ModTime()
		}
		list = append(list, info)
	}
	slices.SortStableFunc(list, func(a, b Info) int {
		return slices.Compare(
			[]string{a.Spec.Name, fmt.Sprintf("%09d", a.Spec.Limits.MemoryMB), a.Key},
			[]string{b.Spec.Name, fmt.Sprintf("%09d", b.Spec.Limits.MemoryMB), b.Key})
	})
	return list, nil
}

// Remove removes a template after waiting for restores in progress. Errors:
// ErrNotFound, ErrInUse.
func (s *Store) Remove(key string) error {
	if !isKey(key) {
		return fmt.Errorf("remove template %.80q: %w", key, ErrNotFound)
	}
	if err := s.remove(s.ctx, key, nil, removeWait); err != nil {
		return fmt.Errorf("remove template %s: %w", key, err)
	}
	return nil
}

// Prune removes stale templates and, if keep is positive, those not used for that long,
// except those in use. It returns their number and size.
func (s *Store) Prune(ctx context.Context, keep time.Duration) (n int, bytes int64, err error) {
	return s.prune(ctx, 0, keep)
}

// prune is Prune, but keeps stale templates for a time after their last use.
func (s *Store) prune(ctx context.Context, stale, keep time.Duration) (n int, bytes int64, err error) {
	list, err := s.List()
	if err != nil {
		return 0, 0, err
	}
	for _, info := range list {
		if err := context.Cause(ctx); err != nil {
			return n, bytes, err
		}
		unused := s.cfg.Now().Sub(info.Used)
		if (info.Stale == "" || unused < stale) && (keep <= 0 || unused < keep) {
			continue
		}
		switch err := s.remove(ctx, info.Key, nil, 0); {
		case err == nil:
			n, bytes = n+1, bytes+info.Bytes
		case errors.Is(err, ErrInUse), errors.Is(err, ErrNotFound):
		default:
			return n, bytes, fmt.Errorf("prune template %s: %w", info.Key, err)
		}
	}
	return n, bytes, nil
}

// Restore returns a machine restored from the template, with fresh randomness and the
// template's limits. id is as for engine.Create; the caller must close the machine.
// Errors: those of Maker.Restore, and ErrNotFound. After engine.ErrInvalid the template
// was damaged or incompatible and has been removed: the next Build builds it anew, and
// booting may still work.
func (s *Store) Restore(ctx context.Context, t Template, id string) (*machine.Machine, error) {
	return s.RestoreWith(ctx, t, id, s.cfg.Maker.Volumes)
}

// RestoreWith is Restore with other volumes at the same paths inside.
func (s *Store) RestoreWith(ctx context.Context, t Template, id string, volumes []engine.Mount) (*machine.Machine, error) {
	m, err := s.restore(ctx, t, id, volumes)
	if err != nil {
		return nil, fmt.Errorf("restore template %s: %w", t.Spec, err)
	}
	return m, nil
}

func (s *Store) restore(ctx context.Context, t Template, id string, volumes []engine.Mount) (*machine.Machine, error) {
	if err := engine.CheckID(id); err != nil {
		return nil, err
	}
	dir, err := s.openShared(ctx, t.Key)
	if err != nil {
		return nil, err
	}
	defer dir.Close() // unlocks it
	m, err := s.cfg.Maker.WithVolumes(volumes).Restore(ctx, id, t.Spec.Limits, s.path(t.Key, imageName), true)
	if errors.Is(err, engine.ErrInvalid) {
		s.cfg.Log.Warn("engine rejected the template, removed it", logkey.Interpreter, t.Spec.String(), logkey.Image, t.Key, logkey.Error, err)
		if errRemove := s.remove(ctx, t.Key, dir, removeWait); errRemove != nil && !errors.Is(errRemove, ErrNotFound) {
			err = errors.Join(err, fmt.Errorf("remove it: %w", errRemove))
		}
	}
	if err != nil {
		return nil, err
	}
	now := s.cfg.Now()
	os.Chtimes(s.path(t.Key, usedName), now, now) // if it fails, the template may be pruned too early
	return m, nil
}
