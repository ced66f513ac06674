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
)

const (
	// recheck is how long a key counts: for as long an old template may be used
	// after a library was upgraded beneath the server.
	recheck = 2 * time.Second
	// maxMemo bounds the keys that are remembered: names times flavors is a dozen.
	maxMemo = 256
	// removeWait is how long removing waits for restores under way, which take a
	// quarter of a second.
	removeWait = 10 * time.Second
	// sweepInterval is how often templates that nobody uses are looked for.
	sweepInterval = 24 * time.Hour
	// staleKeep is how long a stale template stays after its last use: a server of
	// another version, for which it is not stale, may be ending.
	staleKeep = 24 * time.Hour
)

var (
	// ErrNotFound: there is no such template.
	ErrNotFound = errors.New("no such template")
	// ErrInUse: machines are being restored from the template.
	ErrInUse = errors.New("template is in use")
)

// Spec says what template is asked for.
type Spec struct {
	Name     string        `json:"name"`     // for people: "python", "node"
	Language string        `json:"language"` // of the interpreter, as in Maker.Interpreters
	Flavor   string        `json:"flavor"`   // for people: the size's word
	Limits   engine.Limits `json:"limits"`   // of the flavor
	// Preload names modules to import where there are; the order does not matter.
	Preload []string `json:"preload"`
}

// String is what messages call it: "python (small)".
func (w Spec) String() string {
	if w.Flavor == "" {
		return w.Name
	}
	return fmt.Sprintf("%s (%s)", w.Name, w.Flavor)
}

// Template is a whole template on disk.
type Template struct {
	Key     string
	Spec    Spec     // its Preload is sorted
	Missing []string // of Preload, what could not be imported
	Made    time.Time
	Bytes   int64 // on disk
}

// Info is a template as List shows it.
type Info struct {
	Template
	Used time.Time // when a machine was last restored from it, or it was made
	// Stale says what has changed since it was made, so that nobody gets it any
	// more; empty if nothing has.
	Stale string
}

// Config of a Store.
type Config struct {
	Dir   string         // where templates are kept, made if need be; shared with other processes
	Maker *machine.Maker // of the machines; not closed by the Store
	// Files are what the interpreter of a language and its libraries consist of:
	// files and directories of the host that change when it is upgraded or when a
	// library is installed. In directories the modules that are preloaded are
	// looked at, too.
	Files map[string][]string
	// Keep, if positive, is for how long templates stay that are not used: they are
	// looked through when the store is opened and once a day. Stale ones stay a day.
	Keep time.Duration
	Log  *slog.Logger     // default: none
	Now  func() time.Time // default: time.Now
}

// Store is the templates in a directory. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	machine string // what the host's processor is
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

// memo is the key of a Want.
type memo struct {
	key string
	at  time.Time
}

// found is a template that was read.
type found struct {
	info     os.FileInfo // of its record
	template Template
}

var errClosed = errors.New("the store of templates is closed")

// Open returns the store in cfg.Dir and removes what builders that were killed
// have left there. The caller closes it.
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

// sweep removes what nobody uses, until the store is closed.
func (s *Store) sweep() {
	for {
		n, bytes, err := s.prune(s.ctx, staleKeep, s.cfg.Keep)
		if n > 0 {
			s.cfg.Log.Info("unused templates removed", "count", n, "bytes", bytes)
		}
		if err != nil && s.ctx.Err() == nil {
			s.cfg.Log.Warn("unused templates not removed", "err", err)
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(sweepInterval):
		}
	}
}

// Close ends the builds under way, which leave nothing, and waits for them. The
// templates stay.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errClosed)
	s.wg.Wait()
	return nil
}

// Find returns the template for exactly w, if there is one. It looks at a few
// files at most.
func (s *Store) Find(w Spec) (Template, bool) {
	key, err := s.keyOf(w)
	if err != nil {
		return Template{}, false
	}
	return s.find(key)
}

// keyOf returns the key of w, which it works out anew when recheck has passed.
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

// find returns the template of a key, read again if its record has changed.
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

// path is that of a file of the template key.
func (s *Store) path(key string, elem ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir, key}, elem...)...)
}

// List returns the templates, by name and flavor. What is being built is not
// among them.
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
			continue // removed meanwhile
		}
		info := Info{Template: Template{Key: e.Name()}, Stale: "its record is damaged"}
		if err == nil {
			info = Info{Template: r.template(e.Name()), Stale: s.stale(&r.Inputs)}
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

// Remove removes a template, once nothing is restored from it any more. Errors:
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

// Prune removes the stale templates and, if keep is positive, those that were not
// used for so long. It passes over those in use. It returns how many there were
// and how many bytes they had.
func (s *Store) Prune(ctx context.Context, keep time.Duration) (n int, bytes int64, err error) {
	return s.prune(ctx, 0, keep)
}

// prune is Prune with stale templates kept for a while after their last use.
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

// Restore returns a machine that goes on from the template, with randomness of
// its own, and has the limits of the template. id is as engine.Create wants it;
// the caller closes the machine. Errors: those of Maker.Restore, and ErrNotFound.
// After engine.ErrInvalid the template is gone, since it was damaged or another
// program's, and the next Build makes it anew; in any case a boot may work.
func (s *Store) Restore(ctx context.Context, t Template, id string) (*machine.Machine, error) {
	m, err := s.restore(ctx, t, id)
	if err != nil {
		return nil, fmt.Errorf("restore template %s: %w", t.Spec, err)
	}
	return m, nil
}

func (s *Store) restore(ctx context.Context, t Template, id string) (*machine.Machine, error) {
	if err := engine.CheckID(id); err != nil {
		return nil, err
	}
	dir, err := s.hold(ctx, t.Key)
	if err != nil {
		return nil, err
	}
	defer dir.Close() // and with it the lock
	m, err := s.cfg.Maker.Restore(ctx, id, t.Spec.Limits, s.path(t.Key, imageName), true)
	if errors.Is(err, engine.ErrInvalid) {
		s.cfg.Log.Warn("template refused by the engine, removed", "template", t.Spec.String(), "key", t.Key, "err", err)
		if errRemove := s.remove(ctx, t.Key, dir, removeWait); errRemove != nil && !errors.Is(errRemove, ErrNotFound) {
			err = errors.Join(err, fmt.Errorf("remove it: %w", errRemove))
		}
	}
	if err != nil {
		return nil, err
	}
	now := s.cfg.Now()
	os.Chtimes(s.path(t.Key, usedName), now, now) // it may be pruned too early, no more
	return m, nil
}
