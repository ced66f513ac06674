package oci

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/engine/hostdisk"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/internal/erofs"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/statefile"
)

const (
	// layoutVersion changes when images are made differently.
	layoutVersion = "1"
	// pullTimeout bounds a pull.
	pullTimeout = 15 * time.Minute
	// lockPoll is the interval between attempts to take a lock.
	lockPoll = 100 * time.Millisecond
	// minFree is the disk space, in bytes, that a pull leaves free.
	minFree = 512 << 20
	// maxImages bounds the images in the store.
	maxImages = 1000
)

// ErrNotFound reports an image that is not in the store.
var ErrNotFound = errors.New("no such image")

// Info describes an image in the store.
type Info struct {
	Key      string    `json:"key"`      // of the root file system
	Ref      string    `json:"ref"`      // what it was pulled as
	Manifest string    `json:"manifest"` // its digest; empty for archives of docker save
	Config   string    `json:"config"`   // its digest
	Pulled   time.Time `json:"pulled"`
	Bytes    int64     `json:"bytes"`
	Files    int       `json:"files"`
	Dropped  int       `json:"dropped,omitempty"` // devices, which boxes do not have

	Interpreters []image.Interpreter `json:"interpreters"`
	Notes        []string            `json:"notes,omitempty"`
	Env          []string            `json:"env,omitempty"` // of user code
}

// catalog is the content of refs.json: by reference, what it was last.
type catalog map[string]Info

// Store keeps root file systems made of images, one file for each. Methods may be called
// concurrently, also by other processes on the same directory.
type Store struct {
	state  string // the state directory
	dir    string // of the files
	refs   *statefile.File[catalog]
	limits limits
	free   int64 // bytes to leave free
}

// Open opens the store of a state directory, and removes what processes left that ended
// while they pulled.
func Open(stateDir string) (*Store, error) {
	state, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	s := &Store{state: state, dir: filepath.Dir(image.RootFile(state, "key")), limits: defaultLimits, free: minFree}
	s.refs = &statefile.File[catalog]{Path: filepath.Join(state, "images", "refs.json"), Version: 1}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	if err := owned.Dir(s.dir); err != nil {
		return nil, fmt.Errorf("open images: %w", err)
	}
	s.removeLeft()
	return s, nil
}

// removeLeft removes unfinished files that no process writes.
func (s *Store) removeLeft() {
	left, err := filepath.Glob(filepath.Join(s.dir, "*.new"))
	if err != nil {
		return // not possible: the pattern is constant
	}
	for _, file := range left {
		lock := flock.New(strings.TrimSuffix(file, ".new") + ".lock")
		if ok, err := lock.TryLock(); ok && err == nil {
			os.Remove(file)
		}
		lock.Close()
	}
}

func (s *Store) file(key string) string { return image.RootFile(s.state, key) }

// Get returns the image that a reference was last pulled as, and pulls it if it was not.
// Progress receives a description of each slow step.
func (s *Store) Get(ctx context.Context, r Ref, progress func(string)) (*image.Image, error) {
	img, err := s.Known(r)
	if img != nil || err != nil {
		return img, err
	}
	info, err := s.Pull(ctx, r, progress)
	if err != nil {
		return nil, err
	}
	return s.image(info), nil
}

// Known returns the image that a reference was last pulled as, nil if it is not in the store.
func (s *Store) Known(r Ref) (*image.Image, error) {
	refs, err := s.refs.Read()
	if err != nil {
		return nil, err
	}
	if info, ok := refs[r.String()]; ok {
		if _, err := os.Stat(s.file(info.Key)); err == nil && info.Key == keyOf(info.Config) {
			return s.image(info), nil
		}
	}
	return nil, nil
}

// image returns a description of an image for engines and templates.
func (s *Store) image(info Info) *image.Image {
	img := &image.Image{
		Root: engine.Root{Key: info.Key, Tree: &engine.Tree{File: s.file(info.Key)}}, Name: info.Ref, Digest: cmp.Or(info.Manifest, info.Config),
		Interpreters: make(map[string]image.Interpreter), Notes: info.Notes, Env: info.Env,
	}
	for _, i := range info.Interpreters {
		img.Interpreters[i.Language] = i
	}
	return img
}

// keyOf returns the key of the root file system that is made of an image: it depends on
// all that goes into the file.
func keyOf(config string) string {
	h := sha256.New()
	fmt.Fprintf(h, "oci %s %q\n", layoutVersion, config)
	files := image.NetworkFiles()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%q %q\n", name, files[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// Pull looks up what a reference means now, makes the root file system if it is not in
// the store, and notes it under the reference.
func (s *Store) Pull(ctx context.Context, r Ref, progress func(string)) (Info, error) {
	if progress == nil {
		progress = func(string) {}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, fmt.Errorf("it took longer than %v", pullTimeout))
	defer cancel()
	info, err := s.pull(ctx, r, progress)
	if err != nil {
		return Info{}, fmt.Errorf("pull image %s: %w", r.place(), err)
	}
	return info, nil
}

func (s *Store) pull(ctx context.Context, r Ref, progress func(string)) (_ Info, err error) {
	var c *content
	switch r.Kind {
	case KindRegistry:
		progress("looking up " + r.Name)
		c, err = openRegistry(ctx, r.Name)
	case KindLayout, KindArchive:
		c, err = openLocal(r)
	default:
		err = fmt.Errorf("a directory is used where it is: %w", engine.ErrInvalid)
	}
	if err != nil {
		return Info{}, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	info := Info{Key: keyOf(c.digest), Ref: r.String(), Manifest: c.manifest, Config: c.digest, Env: userEnv(c.config.Config.Env)}

	// One process makes it, others wait and find it.
	lock := flock.New(filepath.Join(s.dir, info.Key+".lock"), flock.SetPermissions(0o600))
	defer lock.Close()
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Info{}, fmt.Errorf("wait for another process that pulls it: %w", err)
	}
	if have, ok := s.made(info.Key); ok {
		have.Ref, have.Manifest = info.Ref, info.Manifest
		info = have
	} else if info, err = s.make(ctx, c, info, progress); err != nil {
		return Info{}, err
	}
	info.Pulled = time.Now().UTC().Truncate(time.Second)
	return info, s.note(ctx, info)
}

// note notes an image under its reference.
func (s *Store) note(ctx context.Context, info Info) error {
	return s.refs.Update(ctx, func(refs *catalog) error {
		if *refs == nil {
			*refs = make(catalog)
		}
		if _, ok := (*refs)[info.Ref]; !ok && len(*refs) >= maxImages {
			return fmt.Errorf("there are %d images; glovebox image rm removes some", maxImages)
		}
		(*refs)[info.Ref] = info
		return nil
	})
}

// made returns the description of an image whose file is in the store.
func (s *Store) made(key string) (Info, bool) {
	if _, err := os.Stat(s.file(key)); err != nil {
		return Info{}, false
	}
	refs, err := s.refs.Read()
	if err != nil {
		return Info{}, false
	}
	for _, info := range refs {
		if info.Key == key {
			return info, true
		}
	}
	return Info{}, false
}

// make makes the root file system of an image. The caller holds the lock of its key.
func (s *Store) make(ctx context.Context, c *content, info Info, progress func(string)) (_ Info, err error) {
	spool, err := os.CreateTemp(s.dir, "spool-")
	if err != nil {
		return Info{}, err
	}
	defer spool.Close()
	if err := os.Remove(spool.Name()); err != nil {
		return Info{}, err
	}
	m := newMerger(&guarded{f: spool, free: s.free}, s.limits)
	if err := c.merge(ctx, m, progress); err != nil {
		return Info{}, err
	}
	if err := m.finish(spool); err != nil {
		return Info{}, err
	}
	progress("writing the file system")
	temp := filepath.Join(s.dir, info.Key+".new")
	out, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return Info{}, err
	}
	defer func() {
		err = errors.Join(err, out.Close())
		if err != nil {
			os.Remove(temp)
		}
	}()
	var uuid [16]byte
	sum := sha256.Sum256([]byte(info.Key))
	copy(uuid[:], sum[:])
	if err := erofs.Write(&guarded{f: out, free: s.free}, m.root, spool, uuid); err != nil {
		return Info{}, err
	}
	stat, err := out.Stat()
	if err != nil {
		return Info{}, err
	}
	if err := errors.Join(out.Chmod(0o444), out.Sync()); err != nil {
		return Info{}, err
	}
	info.Bytes, info.Files, info.Dropped = stat.Size(), m.entries, m.dropped
	info.Interpreters, info.Notes = m.interpreters(info.Env)
	return info, os.Rename(temp, s.file(info.Key))
}

// guarded writes to a file while there is disk space.
type guarded struct {
	f         *os.File
	free      int64 // bytes to leave free
	unchecked int64
}

// checkEvery is the number of bytes after which free disk space is looked up.
const checkEvery = 64 << 20

func (g *guarded) Write(b []byte) (int, error) {
	if g.unchecked -= int64(len(b)); g.unchecked <= 0 {
		free, err := hostdisk.Free(g.f)
		if err != nil {
			return 0, err
		}
		if free < g.free+checkEvery {
			return 0, fmt.Errorf("the disk has %d MiB left, and %d are to stay free: %w", free>>20, g.free>>20, engine.ErrExhausted)
		}
		g.unchecked = checkEvery
	}
	return g.f.Write(b)
}

// List returns the images in the store by reference.
func (s *Store) List() ([]Info, error) {
	refs, err := s.refs.Read()
	if err != nil {
		return nil, err
	}
	list := make([]Info, 0, len(refs))
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		list = append(list, refs[ref])
	}
	return list, nil
}

// Remove removes the image of a reference or a key, and its file unless another reference
// has it. Boxes that use it go on; hibernated ones cannot wake until it is pulled again. The
// result has the removed references, sorted. The error is ErrNotFound, wrapped, if there is
// none.
func (s *Store) Remove(ctx context.Context, name string) ([]Info, error) {
	var gone []Info
	err := s.refs.Update(ctx, func(refs *catalog) error {
		gone = nil
		for ref, info := range *refs {
			if ref == name || info.Key == name {
				gone = append(gone, info)
				delete(*refs, ref)
			}
		}
		if len(gone) == 0 {
			return fmt.Errorf("%w: %q", ErrNotFound, name)
		}
		for _, info := range *refs {
			if info.Key == gone[0].Key {
				return nil
			}
		}
		if err := os.Remove(s.file(gone[0].Key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("remove image: %w", err)
	}
	slices.SortFunc(gone, func(a, b Info) int { return strings.Compare(a.Ref, b.Ref) })
	return gone, nil
}

// The directories of the agent's own programs and of those that a user's installers bring,
// first in the PATH of a box.
const (
	launchers    = "/opt/glovebox/bin"
	userPrograms = "/home/user/.local/bin"
)

// maxEnv bounds the environment that is taken from an image, in bytes.
const maxEnv = 16 << 10

// userEnv returns the environment of user code that an image asks for, without the
// variables that a box sets itself.
func userEnv(env []string) []string {
	var list []string
	size := 0
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if size += len(kv); !ok || name == "" || strings.ContainsRune(kv, 0) || size > maxEnv {
			continue
		}
		switch strings.ToUpper(name) {
		case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY":
			continue // the proxy of the place where the image was made
		}
		switch name {
		case "HOME", "USER", "LOGNAME", "SHELL", "LD_PRELOAD":
		case "PATH":
			list = append(list, "PATH="+strings.Join(append([]string{launchers, userPrograms, value}, standardDirs...), ":"))
		default:
			list = append(list, kv)
		}
	}
	return list
}
