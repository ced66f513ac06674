//go:build linux

package microsandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

// loadWait bounds the loading of an image: msb converts it into a file system.
const loadWait = 15 * time.Minute

// roots prepares the roots of guests as images of msb, each once.
type roots struct {
	msb *client
	dir string // for temporary files

	mu    sync.Mutex
	locks map[string]*rootLock // guarded by mu; by Root.Key
}

// rootLock lets one caller at a time prepare a root.
type rootLock struct {
	sem    chan struct{} // holds an element while a caller has the lock
	loaded bool          // guarded by sem
}

func newRoots(msb *client, dir string) *roots {
	return &roots{msb: msb, dir: dir, locks: make(map[string]*rootLock)}
}

// reference returns the name of the image of a root. The key is valid.
func reference(key string) string { return "glovebox-root:k-" + key }

// prepare returns the name of an image of the root, and what else the guest sees of this
// host. Errors: those of Unpack, ErrUnsupported, ErrInvalid, ErrUnavailable, or the cause
// of ctx.
func (r *roots) prepare(ctx context.Context, root *engine.Root) (image string, binds []engine.Mount, err error) {
	tree, err := root.Unpack(ctx)
	if err != nil {
		return "", nil, err
	}
	if tree.File != "" {
		return "", nil, fmt.Errorf("root %s is a file system image: msb boots directories only: %w", root.Key, engine.ErrUnsupported)
	}
	if info, err := os.Stat(tree.Dir); err != nil || !info.IsDir() {
		return "", nil, fmt.Errorf("root %s: %q is not a directory: %w", root.Key, tree.Dir, engine.ErrInvalid)
	}
	image = reference(root.Key)
	t := r.lock(root.Key)
	select {
	case t.sem <- struct{}{}:
		defer func() { <-t.sem }()
	case <-ctx.Done():
		return "", nil, context.Cause(ctx)
	}
	if !t.loaded {
		if err := r.load(ctx, tree.Dir, image); err != nil {
			return "", nil, fmt.Errorf("prepare root %s: %w", root.Key, err)
		}
		t.loaded = true
	}
	return image, tree.Binds, nil
}

func (r *roots) lock(key string) *rootLock {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.locks[key]
	if t == nil {
		t = &rootLock{sem: make(chan struct{}, 1)}
		r.locks[key] = t
	}
	return t
}

// load loads the directory into msb as an image, unless msb has it.
func (r *roots) load(ctx context.Context, dir, image string) error {
	_, err := r.msb.brief("image", "inspect", "--format", "json", image)
	if err == nil {
		return nil
	}
	if !says(err, imageNotFound) {
		return unavailable(err)
	}
	file, err := os.CreateTemp(r.dir, "layer-")
	if err != nil {
		return err
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return err
	}
	l, err := packRoot(ctx, file, dir)
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	ctx, cancel := context.WithTimeout(ctx, loadWait)
	defer cancel()
	in, out := io.Pipe()
	defer in.Close() // ends the writer if msb has not read everything
	go func() { out.CloseWithError(writeImage(out, l)) }()
	_, err = r.msb.run(ctx, in, "load", "--quiet", "--tag", image)
	return unavailable(err)
}
