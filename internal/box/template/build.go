package template

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

const (
	// buildTimeout bounds a build, and the wait for another process that builds: it
	// takes a second or two, and the interpreter may take half a minute to import
	// from a cold disk.
	buildTimeout = 3 * time.Minute
	// proofTimeout bounds the empty cell in the machine that proves a template: it
	// takes milliseconds.
	proofTimeout = 30 * time.Second
	// freeTimeout is how long an engine has to free a machine; it takes well under a
	// second.
	freeTimeout = 30 * time.Second
	// retryAfter is how long a failed build counts for those who ask again: what
	// made it fail seldom passes sooner, and each try takes a second of a processor.
	retryAfter = time.Minute
)

// errChanged: the files that went in are not those that the key is of.
var errChanged = errors.New("the interpreter or its libraries changed during the build")

// failure is a build that failed.
type failure struct {
	err error
	at  time.Time
}

// build is a build under way.
type build struct {
	done chan struct{} // closed when t and err are set
	t    Template
	err  error

	mu       sync.Mutex
	now      string         // guarded by mu: what it does
	progress []func(string) // guarded by mu: of those who wait
}

// say tells everybody who waits what the build does now.
func (b *build) say(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = fmt.Sprintf(format, args...)
	for _, tell := range b.progress {
		tell(b.now)
	}
}

// listen has progress told what the build does.
func (b *build) listen(progress func(string)) {
	if progress == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now != "" {
		progress(b.now)
	}
	b.progress = append(b.progress, progress)
}

// Build returns the template for exactly w, and makes it if there is none: it
// boots a machine, has it import what is to be preloaded, takes a snapshot and
// restores it once to prove it. However many ask for one template, in however
// many processes, it is built once. A build that fails leaves nothing and is not
// tried again within a minute.
//
// progress, if not nil, is told what is being done, a few words each: "booting",
// "importing numpy, pandas", "done in 1.4 s"; it must not block. If ctx ends, Build returns its cause and the build goes on: the next
// caller finds it.
//
// Errors: engine.ErrUnsupported if the engine has no snapshots or the root file
// system no interpreter for the language; engine.ErrInvalid for a w that makes no
// sense; others of the engine and of the disk.
func (s *Store) Build(ctx context.Context, w Spec, progress func(string)) (Template, error) {
	t, err := s.build(ctx, w, progress)
	if err != nil {
		return Template{}, fmt.Errorf("build template %s: %w", w, err)
	}
	return t, nil
}

func (s *Store) build(ctx context.Context, w Spec, progress func(string)) (Template, error) {
	if !s.cfg.Maker.Snapshots() {
		return Template{}, fmt.Errorf("the engine %s has no snapshots: %w", s.cfg.Maker.Engine.Info().Name, engine.ErrUnsupported)
	}
	for {
		in, err := s.inputs(w)
		if err != nil {
			return Template{}, err
		}
		if t, ok := s.find(in.key()); ok {
			return t, nil
		}
		b, err := s.join(in)
		if err != nil {
			return Template{}, err
		}
		b.listen(progress)
		select {
		case <-ctx.Done():
			return Template{}, context.Cause(ctx)
		case <-b.done:
		}
		if !errors.Is(b.err, errChanged) {
			return b.t, b.err
		}
		// An upgrade is under way: what is there now is another template.
		select {
		case <-ctx.Done():
			return Template{}, context.Cause(ctx)
		case <-time.After(recheck):
		}
	}
}

// join returns the build of a template that is under way, or starts one.
func (s *Store) join(in *inputs) (*build, error) {
	key := in.key()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if b := s.builds[key]; b != nil {
		return b, nil
	}
	now := s.cfg.Now()
	if f, ok := s.failed[key]; ok {
		if age := now.Sub(f.at); age >= 0 && age < retryAfter {
			return nil, fmt.Errorf("%w (%d s ago; it is tried again after %v)", f.err, int(age.Seconds()), retryAfter)
		}
		delete(s.failed, key)
	}
	b := &build{done: make(chan struct{})}
	s.builds[key] = b
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer close(b.done)
		b.t, b.err = s.make(in, b)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.builds, key)
		if b.err != nil && !s.closed && !errors.Is(b.err, errChanged) {
			if len(s.failed) >= maxMemo {
				clear(s.failed)
			}
			s.failed[key] = failure{b.err, s.cfg.Now()}
		}
	}()
	return b, nil
}

// make makes a template, unless another process has made it meanwhile.
func (s *Store) make(in *inputs, b *build) (_ Template, err error) {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(s.ctx, buildTimeout, fmt.Errorf("it took longer than %v", buildTimeout))
	defer cancel()
	key, w := in.key(), in.Spec
	l, err := s.lockBuild(ctx, key, 0)
	if errors.Is(err, errLocked) {
		b.say("waiting for another process that builds it")
		l, err = s.lockBuild(ctx, key, buildTimeout)
	}
	if err != nil {
		return Template{}, err
	}
	defer func() { err = errors.Join(err, l.release()) }()
	if t, ok := s.find(key); ok {
		b.say("another process has built it")
		return t, nil
	}
	dir := filepath.Join(s.cfg.Dir, newPrefix+key)
	if err := os.RemoveAll(dir); err != nil { // of a builder that was killed
		return Template{}, err
	}
	defer os.RemoveAll(dir) // gone already if it was renamed
	if err := os.MkdirAll(filepath.Join(dir, imageName), 0o700); err != nil {
		return Template{}, err
	}
	r := &record{Inputs: *in, Made: s.cfg.Now().UTC().Truncate(time.Millisecond)}
	if r.Missing, err = s.write(ctx, in, filepath.Join(dir, imageName), b); err != nil {
		return Template{}, err
	}
	if r.Bytes, err = sizeOf(dir); err != nil {
		return Template{}, err
	}
	b.say("proving %d MiB", r.Bytes>>20)
	if err := s.prove(ctx, in, filepath.Join(dir, imageName)); err != nil {
		return Template{}, err
	}
	if now, err := s.inputs(w); err != nil || now.key() != key {
		return Template{}, errors.Join(errChanged, err)
	}
	if err := writeRecord(dir, r); err != nil {
		return Template{}, fmt.Errorf("write record: %w", err)
	}
	// One with a damaged record may be in the way.
	if err := s.remove(ctx, key, nil, removeWait); err != nil && !errors.Is(err, ErrNotFound) {
		return Template{}, fmt.Errorf("remove what is in the way: %w", err)
	}
	if err := os.Rename(dir, s.path(key)); err != nil {
		return Template{}, err
	}
	if err := syncDir(s.cfg.Dir); err != nil {
		return Template{}, err
	}
	took := time.Since(start)
	b.say("done in %.1f s", took.Seconds())
	s.cfg.Log.Info("template built", "template", w.String(), "key", key, "bytes", r.Bytes, "seconds", took.Seconds(), "missing", r.Missing)
	return r.template(key), nil
}

// write boots a machine, prepares it and writes its snapshot into dir. It returns
// which modules there are not.
func (s *Store) write(ctx context.Context, in *inputs, dir string, b *build) (missing []string, err error) {
	w := in.Spec
	b.say("booting")
	m, err := s.cfg.Maker.Boot(ctx, machineID(in, "build"), w.Limits)
	if err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	defer func() { err = errors.Join(err, free(ctx, m.Close)) }()
	if len(w.Preload) > 0 {
		b.say("importing %s", strings.Join(w.Preload, ", "))
	}
	if missing, err = m.Warm(ctx, w.Language, w.Preload); err != nil {
		return nil, err
	}
	missing = only(w.Preload, missing) // the guest says what, not how it is spelled
	if len(missing) > 0 {
		b.say("there is no %s, left out", strings.Join(missing, ", "))
	}
	b.say("writing")
	if err := m.Snapshot(ctx, dir); err != nil {
		return nil, err
	}
	return missing, nil
}

// prove restores a machine from dir and has it run an empty cell.
func (s *Store) prove(ctx context.Context, in *inputs, dir string) (err error) {
	m, err := s.cfg.Maker.Restore(ctx, machineID(in, "proof"), in.Spec.Limits, dir, true)
	if err != nil {
		return fmt.Errorf("prove: %w", err)
	}
	defer func() { err = errors.Join(err, free(ctx, m.Close)) }()
	return m.Prove(ctx, in.Spec.Language, proofTimeout)
}

// free has a machine freed, also when ctx has ended.
func free(ctx context.Context, end func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	return end(ctx)
}

// Alone takes the right to build templates in a process that does nothing else; ok
// is false if another process has it. It ends with release, or with the process.
func (s *Store) Alone(ctx context.Context) (release func() error, ok bool, err error) {
	l, err := s.lockBuild(ctx, "alone", 0)
	if errors.Is(err, errLocked) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return l.release, true, nil
}

// machineID is a name for a machine that nobody else has.
func machineID(in *inputs, what string) string {
	return "template-" + what + "-" + in.key()[:8] + "-" + strings.ToLower(rand.Text()[:12])
}
