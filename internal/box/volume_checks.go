package box

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

const (
	// checkPatience is how long a start waits for the directory of a volume before it takes a
	// place among the starts.
	checkPatience = 5 * time.Second
	// slotPatience is how long a start waits that has a place, since other starts may wait for
	// the place.
	slotPatience = 2 * time.Second
	// maxChecks bounds the concurrent checks. One of a directory that hangs holds a thread of this
	// process until the directory answers: nothing can end it.
	maxChecks = 1000
)

var (
	errNoAnswer = errors.New("its file system does not answer")
	errNotDir   = errors.New("it is not a directory")
	errChecks   = fmt.Errorf("%w, as those of %d others", errNoAnswer, maxChecks)
)

// volumeChecks checks the directories of volumes. A check may hang for ever, as on a network
// file system whose server is gone. Then one goroutine waits for the directory, and concurrent
// checks of it fail at once. The zero value is ready for use.
type volumeChecks struct {
	stat func(dir string) (fs.FileInfo, error) // nil: os.Stat

	mu      sync.Mutex
	running map[string]*volumeCheck // guarded by mu: by what they check
}

// A volumeCheck is one check in progress.
type volumeCheck struct {
	begun time.Time
	ended chan struct{}
	// set before ended is closed
	found fs.FileInfo
	err   error
}

// do runs work under a name, or shares the result of the work that already runs under it. The
// error is errNoAnswer if the work has not ended within a time since it began, and the cause of
// ctx if ctx ends first.
func (l *volumeChecks) do(ctx context.Context, name string, within time.Duration, work func() (fs.FileInfo, error)) (fs.FileInfo, error) {
	check := l.begin(name, work)
	if check == nil {
		return nil, errChecks
	}
	late := time.NewTimer(within - time.Since(check.begun))
	defer late.Stop()
	select {
	case <-check.ended:
		return check.found, check.err
	case <-late.C:
		return nil, errNoAnswer
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// begin returns the check of a name that runs, or begins it; nil if too many others run.
func (l *volumeChecks) begin(name string, work func() (fs.FileInfo, error)) *volumeCheck {
	l.mu.Lock()
	defer l.mu.Unlock()
	if check := l.running[name]; check != nil || len(l.running) >= maxChecks {
		return check
	}
	check := &volumeCheck{begun: time.Now(), ended: make(chan struct{})}
	if l.running == nil {
		l.running = make(map[string]*volumeCheck)
	}
	l.running[name] = check
	go func() {
		check.found, check.err = work()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.running, name)
		close(check.ended)
	}()
	return check
}

// missing returns the error of the first volume whose directory is not there or does not answer
// within a time: a *VolumeError, or the cause of ctx. It is nil if there is none. Callers check
// before they restore a snapshot or a template, since an engine cannot tell that volume from one
// that the snapshot does not have.
func (l *volumeChecks) missing(ctx context.Context, volumes []engine.Mount, within time.Duration) error {
	_, err := l.find(ctx, volumes, within)
	return err
}

// find is like missing, and returns the directories, nil for each that is for the engine to report.
func (l *volumeChecks) find(ctx context.Context, volumes []engine.Mount, within time.Duration) ([]fs.FileInfo, error) {
	found := make([]fs.FileInfo, len(volumes))
	for i, v := range volumes {
		if v.Host == "" { // of an engine whose volumes are elsewhere
			continue
		}
		var err error
		found[i], err = l.do(ctx, "directory "+v.Host, within, func() (fs.FileInfo, error) { return l.statDir(v.Host) })
		switch {
		case err == nil:
		case errors.Is(err, errNoAnswer):
			return nil, &VolumeError{Guest: v.Guest, Why: "its directory on the server does not answer", Err: fmt.Errorf("stat %s: %w", v.Host, err)}
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotDir):
			return nil, &VolumeError{Guest: v.Guest, Why: "its directory on the server is not there", Err: fmt.Errorf("stat %s: %w", v.Host, err)}
		case ctx.Err() != nil:
			return nil, err
		} // else it is there, or for the engine to report
	}
	return found, nil
}

// sameDirs reports whether two results of find are the same directories.
func sameDirs(a, b []fs.FileInfo) bool {
	return slices.EqualFunc(a, b, func(a, b fs.FileInfo) bool {
		return a == nil && b == nil || a != nil && b != nil && os.SameFile(a, b)
	})
}

// explain returns err, the error of making a machine, or a *VolumeError if the directory of one
// of its volumes is not there or does not answer, which each engine reports in its own words.
func (l *volumeChecks) explain(ctx context.Context, err error, volumes []engine.Mount) error {
	if _, ok := errors.AsType[*VolumeError](err); ok {
		return err
	}
	if missing, ok := errors.AsType[*VolumeError](l.missing(ctx, volumes, checkPatience)); ok {
		missing.Err = err
		return missing
	}
	return err
}

// statDir describes a directory, or an error if dir is none.
func (l *volumeChecks) statDir(dir string) (fs.FileInfo, error) {
	stat := l.stat
	if stat == nil {
		stat = os.Stat
	}
	info, err := stat(dir)
	if err == nil && !info.IsDir() {
		err = errNotDir
	}
	if err != nil {
		return nil, err
	}
	return info, nil
}

// prepareVolumes makes the volumes of an owner's new machine, and checks their directories. It
// does so before the machine has a place among the starts, since a directory may not answer.
func (f *machineFactory) prepareVolumes(ctx context.Context, owner Owner) error {
	if f.parts.Volumes != nil {
		volumes := f.parts.Volumes.Peek(owner)
		failed, ok := errors.AsType[*VolumeError](f.volumeChecks.missing(ctx, volumes, checkPatience))
		if ok && errors.Is(failed.Err, errNoAnswer) { // to make a directory would hang as well
			return failed
		}
		// The directories that exist say nothing about those that this makes.
		_, err := f.volumeChecks.do(ctx, "volumes of "+string(owner), checkPatience, func() (fs.FileInfo, error) {
			_, err := f.parts.Volumes.Of(owner)
			return nil, err
		})
		if errors.Is(err, errNoAnswer) && len(volumes) > 0 {
			err = &VolumeError{Guest: volumes[0].Guest, Why: "its directory on the server does not answer", Err: err}
		}
		if err != nil {
			return fmt.Errorf("choose the volumes of the box: %w", err)
		}
	}
	return f.volumeChecks.missing(ctx, f.makerFor(owner).Volumes, checkPatience)
}

// makerFor returns what makes the machines of an owner's new boxes, with the volumes that
// prepareVolumes has made. It does not read the disk.
func (f *machineFactory) makerFor(owner Owner) *machine.Maker {
	if f.parts.Volumes == nil {
		return f.parts.Machines
	}
	return f.parts.Machines.WithVolumes(f.parts.Volumes.Peek(owner))
}
