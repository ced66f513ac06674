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
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/syncfile"
)

const (
	// buildTimeout bounds a build, and the wait for another process that builds. A
	// build takes a second or two, but importing from a cold disk may take half a
	// minute.
	buildTimeout = 3 * time.Minute
	// verifyTimeout bounds the empty cell that verifies a template; it takes
	// milliseconds.
	verifyTimeout = 30 * time.Second
	// freeTimeout bounds freeing a machine, which takes well under a second.
	freeTimeout = 30 * time.Second
	// retryAfter is how long a failed build is not repeated: its cause seldom
	// disappears sooner, and each attempt takes a second of processor time.
	retryAfter = time.Minute
)

// errChanged: the input files are not those of the key any more.
var errChanged = errors.New("the interpreter or its libraries changed during the build")

// failure is a failed build.
type failure struct {
	err error
	at  time.Time
}

// build is a build in progress.
type build struct {
	done chan struct{} // closed when t and err are set
	t    Template
	err  error

	mu       sync.Mutex
	now      string         // guarded by mu: current step
	progress []func(string) // guarded by mu: of the waiting callers
}

// say reports the current step to all waiting callers.
func (b *build) say(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = fmt.Sprintf(format, args...)
	for _, report := range b.progress {
		report(b.now)
	}
}

// listen calls progress for the current and all later steps.
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

// Build returns the template for exactly w. If there is none, it builds it: it boots a
// machine, imports the modules to preload, takes a snapshot, and restores it once to
// verify it. A template is built once, however many callers and processes ask for it. A
// failed build leaves nothing and is not repeated within a minute.
//
// progress, if not nil, is called with each step in a few words ("booting", "importing
// numpy, pandas", "done in 1.4 s"); it must not block. If ctx is done, Build returns
// its cause, and the build continues for the next caller.
//
// Errors: engine.ErrUnsupported if the engine has no snapshots or there is no
// interpreter for the language; engine.ErrInvalid for an invalid w; others of the
// engine and the disk.
func (s *Store) Build(ctx context.Context, w Spec, progress func(string)) (Template, error) {
	t, err := s.build(ctx, w, progress)
	if err != nil {
		return Template{}, fmt.Errorf("build template %s: %w", w, err)
	}
	return t, nil
}

func (s *Store) build(ctx context.Context, w Spec, progress func(string)) (Template, error) {
	if !s.cfg.Maker.Snapshots() {
		return Template{}, fmt.Errorf("engine %s has no snapshots: %w", s.cfg.Maker.Engine.Info().Name, engine.ErrUnsupported)
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
		// An upgrade is in progress: the files now belong to another template.
		select {
		case <-ctx.Done():
			return Template{}, context.Cause(ctx)
		case <-time.After(recheck):
		}
	}
}

// join returns the build in progress of a template, or starts one.
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
			return nil, fmt.Errorf("%w (%d s ago; retried after %v)", f.err, int(age.Seconds()), retryAfter)
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

// make builds a template, unless another process has built it meanwhile.
func (s *Store) make(in *inputs, b *build) (_ Template, err error) {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(s.ctx, buildTimeout, fmt.Errorf("not done within %v", buildTimeout))
	defer cancel()
	key, w := in.key(), in.Spec
	l, err := s.lockBuild(ctx, key, 0)
	if errors.Is(err, errLocked) {
		b.say("waiting for another process to build it")
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
	if err := os.RemoveAll(dir); err != nil { // left by a killed builder
		return Template{}, err
	}
	defer os.RemoveAll(dir) // no effect after the rename
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
	b.say("verifying %d MiB", r.Bytes>>20)
	if err := s.verify(ctx, in, filepath.Join(dir, imageName)); err != nil {
		return Template{}, err
	}
	if now, err := s.inputs(w); err != nil || now.key() != key {
		return Template{}, errors.Join(errChanged, err)
	}
	if err := writeRecord(dir, r); err != nil {
		return Template{}, fmt.Errorf("write record: %w", err)
	}
	// A template with a damaged record may be in its place.
	if err := s.remove(ctx, key, nil, removeWait); err != nil && !errors.Is(err, ErrNotFound) {
		return Template{}, fmt.Errorf("remove the damaged template: %w", err)
	}
	if err := os.Rename(dir, s.path(key)); err != nil {
		return Template{}, err
	}
	if err := syncfile.Dir(s.cfg.Dir); err != nil {
		return Template{}, err
	}
	took := time.Since(start)
	b.say("done in %.1f s", took.Seconds())
	s.cfg.Log.Info("template built", logkey.Interpreter, w.String(), logkey.Image, key, logkey.Bytes, r.Bytes, logkey.Took, took.Round(time.Millisecond), logkey.Missing, r.Missing)
	return r.template(key), nil
}

// write boots a machine, prepares it and writes its snapshot to dir. It returns the
// modules that could not be imported.
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
	missing = only(w.Preload, missing) // never strings made by the guest
	if len(missing) > 0 {
		b.say("%s not installed, skipped", strings.Join(missing, ", "))
	}
	b.say("writing")
	if err := m.Snapshot(ctx, dir); err != nil {
		return nil, err
	}
	return missing, nil
}

// verify restores a machine from dir and runs an empty cell.
func (s *Store) verify(ctx context.Context, in *inputs, dir string) (err error) {
	m, err := s.cfg.Maker.Restore(ctx, machineID(in, "verify"), in.Spec.Limits, dir, true)
	if err != nil {
		return fmt.Errorf("restore to verify: %w", err)
	}
	defer func() { err = errors.Join(err, free(ctx, m.Close)) }()
	return m.Prove(ctx, in.Spec.Language, verifyTimeout)
}

// free frees a machine, also after ctx is done.
func free(ctx context.Context, end func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	return end(ctx)
}

// Alone takes the lock for building templates in a process that does nothing else; ok
// is false if another process has it. The lock ends with release, or with the process.
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

// machineID returns a unique name for a machine.
func machineID(in *inputs, what string) string {
	return "template-" + what + "-" + in.key()[:8] + "-" + strings.ToLower(rand.Text()[:12])
}
