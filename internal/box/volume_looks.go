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
	// lookPatience is how long a start waits for the directory of a volume before it takes a
	// place among the starts.
	lookPatience = 5 * time.Second
	// slotPatience is how long a start waits that has a place, since other starts may wait for
	// the place.
	slotPatience = 2 * time.Second
	// maxLooks bounds the looks at once. One at a directory that hangs holds a thread of this
	// process until the directory answers: nothing can end it.
	maxLooks = 1000
)

var (
	errSilent = errors.New("its file system does not answer")
	errNotDir = errors.New("it is not a directory")
	errLooks  = fmt.Errorf("%w, as those of %d others", errSilent, maxLooks)
)

// volumeLooks are the looks at directories of volumes. One may hang for ever, as on a network
// file system whose server is gone. Then one goroutine waits for the directory, and concurrent
// looks at it fail at once. The zero value is ready for use.
type volumeLooks struct {
	stat func(dir string) (fs.FileInfo, error) // nil: os.Stat

	mu      sync.Mutex
	running map[string]*volumeLook // guarded by mu: by what they look at
}

// A volumeLook is one look.
type volumeLook struct {
	begun time.Time
	ended chan struct{}
	// set before ended is closed
	found fs.FileInfo
	err   error
}

// do runs work under a name, or shares the result of the work that already runs under it. The
// error is errSilent if the work has not ended within a time since it began, and the cause of
// ctx if ctx ends first.
func (l *volumeLooks) do(ctx context.Context, name string, within time.Duration, work func() (fs.FileInfo, error)) (fs.FileInfo, error) {
	look := l.begin(name, work)
	if look == nil {
		return nil, errLooks
	}
	late := time.NewTimer(within - time.Since(look.begun))
	defer late.Stop()
	select {
	case <-look.ended:
		return look.found, look.err
	case <-late.C:
		return nil, errSilent
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// begin returns the look of a name that runs, or begins it; nil if too many others run.
func (l *volumeLooks) begin(name string, work func() (fs.FileInfo, error)) *volumeLook {
	l.mu.Lock()
	defer l.mu.Unlock()
	if look := l.running[name]; look != nil || len(l.running) >= maxLooks {
		return look
	}
	look := &volumeLook{begun: time.Now(), ended: make(chan struct{})}
	if l.running == nil {
		l.running = make(map[string]*volumeLook)
	}
	l.running[name] = look
	go func() {
		look.found, look.err = work()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.running, name)
		close(look.ended)
	}()
	return look
}

// missing returns the error of the first volume whose directory is not there or does not answer
// within a time: a *VolumeError, or the cause of ctx. It is nil if there is none. Callers look
// before they restore a snapshot or a template, since an engine cannot tell that volume from one
// that the snapshot does not have.
func (l *volumeLooks) missing(ctx context.Context, volumes []engine.Mount, within time.Duration) error {
	_, err := l.find(ctx, volumes, within)
	return err
}

// find is missing that returns the directories, nil for each that is for the engine to report.
func (l *volumeLooks) find(ctx context.Context, volumes []engine.Mount, within time.Duration) ([]fs.FileInfo, error) {
	found := make([]fs.FileInfo, len(volumes))
	for i, v := range volumes {
		if v.Host == "" { // of an engine whose volumes are elsewhere
			continue
		}
		var err error
		found[i], err = l.do(ctx, "directory "+v.Host, within, func() (fs.FileInfo, error) { return l.look(v.Host) })
		switch {
		case err == nil:
		case errors.Is(err, errSilent):
			return nil, &VolumeError{Guest: v.Guest, Why: "its directory on the server does not answer", Err: fmt.Errorf("look at %s: %w", v.Host, err)}
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotDir):
			return nil, &VolumeError{Guest: v.Guest, Why: "its directory on the server is not there", Err: fmt.Errorf("look at %s: %w", v.Host, err)}
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
func (l *volumeLooks) explain(ctx context.Context, err error, volumes []engine.Mount) error {
	if _, ok := errors.AsType[*VolumeError](err); ok {
		return err
	}
	if missing, ok := errors.AsType[*VolumeError](l.missing(ctx, volumes, lookPatience)); ok {
		missing.Err = err
		return missing
	}
	return err
}

// look returns a directory, or an error if dir is none.
func (l *volumeLooks) look(dir string) (fs.FileInfo, error) {
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

// prepareVolumes makes the volumes of an owner's new machine, and looks at their directories. It
// does so before the machine has a place among the starts, since a directory may not answer.
func (f *machineFactory) prepareVolumes(ctx context.Context, owner Owner) error {
	if f.parts.Volumes != nil {
		volumes := f.parts.Volumes.Peek(owner)
		silent, ok := errors.AsType[*VolumeError](f.looks.missing(ctx, volumes, lookPatience))
		if ok && errors.Is(silent.Err, errSilent) { // to make a directory would hang as well
			return silent
		}
		// The directories that exist say nothing about those that this makes.
		_, err := f.looks.do(ctx, "volumes of "+string(owner), lookPatience, func() (fs.FileInfo, error) {
			_, err := f.parts.Volumes.Of(owner)
			return nil, err
		})
		if errors.Is(err, errSilent) && len(volumes) > 0 {
			err = &VolumeError{Guest: volumes[0].Guest, Why: "its directory on the server does not answer", Err: err}
		}
		if err != nil {
			return fmt.Errorf("choose the volumes of the box: %w", err)
		}
	}
	return f.looks.missing(ctx, f.makerFor(owner).Volumes, lookPatience)
}

// makerFor returns what makes the machines of an owner's new boxes, with the volumes that
// prepareVolumes has made. It does not look at the disk.
func (f *machineFactory) makerFor(owner Owner) *machine.Maker {
	if f.parts.Volumes == nil {
		return f.parts.Machines
	}
	return f.parts.Machines.WithVolumes(f.parts.Volumes.Peek(owner))
}
