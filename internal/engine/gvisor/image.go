//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/crc32c"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

const (
	// imageFormat is the version of the manifest and of what it stands for.
	imageFormat = 3
	// manifestName is the file that makes a directory a snapshot.
	manifestName = "manifest.json"
	// maxManifest bounds what is read of it.
	maxManifest = 1 << 20
	// sumChunk is how much is read between two looks at the context, and stays in
	// the processor's own cache until it is summed.
	sumChunk = 256 << 10
)

// imageFiles are the files of a snapshot besides the manifest, in the order in
// which the sentry takes them: the state of its kernel, where the pages belong,
// and the pages.
var imageFiles = [...]string{"state.img", "pages-meta.img", "pages.img"}

// manifest describes a snapshot's guest and its files.
type manifest struct {
	Format    int         `json:"format"`
	Engine    string      `json:"engine"`
	GVisor    string      `json:"gvisor"` // the pin: a sentry reads the state of its own version only
	Arch      string      `json:"arch"`
	CPU       []string    `json:"cpu"` // processor features that programs may have detected
	Created   time.Time   `json:"created"`
	Spec      fixedSpec   `json:"making"`
	Renewed   bool        `json:"renewed"` // the guest had come out of a snapshot itself; see guest.renew
	Files     []fileEntry `json:"files"`
	HostFiles []hostFile  `json:"host_files"`
	Disk      int64       `json:"disk,omitempty"` // bytes of the writable layer
	Sum       string      `json:"sum"`            // of the manifest with an empty Sum
}

// fileEntry is one file of a snapshot.
type fileEntry struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  string `json:"sum"`
}

// fixedSpec is the part of a spec that is fixed while a guest runs, and must be the same
// when the guest is restored.
type fixedSpec struct {
	RootKey   string        `json:"root_key"`
	Agent     string        `json:"agent"` // SHA-256 of the executable
	AgentArgs []string      `json:"agent_args"`
	Limits    engine.Limits `json:"limits"`
	Mounts    []string      `json:"mounts"` // guest paths, with ",ro" or ",rw"
}

// fix returns the fixed part of a spec. agent is the SHA-256 of the agent's executable.
func fix(s *engine.Spec, agent string) fixedSpec {
	m := fixedSpec{
		RootKey: s.Root.Key, Agent: agent, AgentArgs: slices.Clone(s.Agent.Args[1:]), Limits: s.Limits,
		Mounts: []string{},
	}
	if len(m.AgentArgs) == 0 {
		m.AgentArgs = []string{}
	}
	for _, mount := range s.Mounts {
		mode := ",rw"
		if mount.ReadOnly {
			mode = ",ro"
		}
		m.Mounts = append(m.Mounts, mount.Guest+mode)
	}
	return m
}

// differs names the first difference from o; it is empty if there is none.
func (s fixedSpec) differs(o fixedSpec) string {
	switch {
	case s.RootKey != o.RootKey:
		return fmt.Sprintf("of root %q, not %q", s.RootKey, o.RootKey)
	case s.Agent != o.Agent:
		return "of another version of Glovebox, whose agent is not there any more"
	case !slices.Equal(s.AgentArgs, o.AgentArgs):
		return fmt.Sprintf("of an agent with arguments %q, not %q", s.AgentArgs, o.AgentArgs)
	case s.Limits != o.Limits:
		return fmt.Sprintf("of limits %+v, not %+v", s.Limits, o.Limits)
	case !slices.Equal(s.Mounts, o.Mounts):
		return fmt.Sprintf("of a box with %s, and boxes have %s now", volumeList(s.Mounts), volumeList(o.Mounts))
	}
	return ""
}

// volumeList says which volumes the mounts of a fixedSpec are.
func volumeList(mounts []string) string {
	if len(mounts) == 0 {
		return "no volumes"
	}
	var list []string
	for _, m := range mounts {
		path, readOnly := strings.CutSuffix(m, ",ro")
		path = strings.TrimSuffix(path, ",rw")
		if readOnly {
			path += " (read-only)"
		}
		list = append(list, path)
	}
	return "the volumes " + strings.Join(list, ", ")
}

// hostCPU returns the features of this machine's processor.
var hostCPU = sync.OnceValue(func() []string {
	cpuid.Initialize()
	features := strings.Fields(cpuid.HostFeatureSet().FlagString())
	slices.Sort(features)
	return features
})

// newManifest returns the manifest, without files, of a snapshot that this process takes.
func newManifest(of fixedSpec) *manifest {
	pin, _ := Version()
	return &manifest{
		Format: imageFormat, Engine: "gvisor", GVisor: pin, Arch: runtime.GOARCH, CPU: hostCPU(),
		Created: time.Now().UTC().Truncate(time.Second), Spec: of,
	}
}

// encode returns the one encoding that a manifest has.
func (m *manifest) encode() ([]byte, error) {
	c := *m
	c.Sum = ""
	b, err := json.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	c.Sum = crc32c.Of(b)
	b, err = json.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return append(b, '\n'), nil
}

// decodeManifest reads a manifest that this process can use. It refuses
// bytes that encode would not have written.
func decodeManifest(b []byte) (*manifest, error) {
	var version struct {
		Format int    `json:"format"`
		Engine string `json:"engine"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return nil, damaged(fmt.Errorf("read manifest: %w", err))
	}
	if version.Engine != "gvisor" || version.Format != imageFormat {
		return nil, fmt.Errorf("it is of engine %.40q and format %d, not gvisor and %d", version.Engine, version.Format, imageFormat)
	}
	m := new(manifest)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, damaged(fmt.Errorf("read manifest: %w", err))
	}
	if want, err := m.encode(); err != nil || !bytes.Equal(want, b) {
		return nil, errors.New("its manifest is damaged")
	}
	own := newManifest(m.Spec)
	if m.GVisor != own.GVisor || m.Arch != own.Arch {
		return nil, fmt.Errorf("it is of gVisor %.80q on %.20q, this is %s on %s", m.GVisor, m.Arch, own.GVisor, own.Arch)
	}
	for _, feature := range m.CPU {
		if _, ok := slices.BinarySearch(own.CPU, feature); !ok {
			return nil, fmt.Errorf("it is of a processor with %.40q, which this one has not", feature)
		}
	}
	if len(m.Files) != len(imageFiles) {
		return nil, errors.New("its manifest lists other files")
	}
	for i, f := range m.Files {
		if f.Name != imageFiles[i] {
			return nil, errors.New("its manifest lists other files")
		}
	}
	return m, nil
}

// sumFile returns the checksum of the first size bytes of f, which may not have
// more. The offset of f stays where it is: others go on reading from there.
func sumFile(ctx context.Context, f *os.File, size int64) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Size() != size {
		return "", fmt.Errorf("%s has %d bytes, not %d", filepath.Base(f.Name()), info.Size(), size)
	}
	buf := make([]byte, sumChunk)
	sum := crc32c.New()
	for at := int64(0); at < size; {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		n, err := f.ReadAt(buf[:min(sumChunk, size-at)], at)
		sum.Write(buf[:n])
		at += int64(n)
		if err != nil && (!errors.Is(err, io.EOF) || at < size) {
			return "", err
		}
	}
	return crc32c.Text(sum), nil
}

// image is a snapshot being written.
type image struct {
	dir    string
	names  []string // of the files made so far
	staged *os.File // holds the pages until the guest runs again; nil: they are in their file
}

// newImage makes the files of a snapshot in dir, which must be empty, and returns
// the files that the sentry writes. If stage is set, it writes the pages to memory, which is
// several times as fast as to a disk.
func newImage(dir string, stage bool) (_ *image, files []*os.File, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read directory: %w: %w", err, engine.ErrInvalid)
	}
	if len(entries) > 0 {
		return nil, nil, fmt.Errorf("directory %q is not empty: %w", dir, engine.ErrInvalid)
	}
	img := &image{dir: dir}
	defer func() {
		if err != nil {
			closeAll(files)
			img.close()
			err = errors.Join(err, img.remove())
		}
	}()
	for _, name := range imageFiles {
		f, err := img.create(name)
		if err != nil {
			return nil, files, err
		}
		files = append(files, f)
	}
	if !stage {
		return img, files, nil
	}
	if img.staged, err = stageFile(); err != nil {
		return nil, files, err
	}
	own, err := unix.FcntlInt(img.staged.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, files, fmt.Errorf("copy descriptor: %w", err)
	}
	last := len(files) - 1
	files[last].Close()
	files[last] = os.NewFile(uintptr(own), "pages")
	return img, files, nil
}

// stageFile returns a file in memory.
func stageFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("snapshot", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), "pages"), nil
}

// close frees what is not in the directory.
func (img *image) close() {
	if img.staged != nil {
		img.staged.Close()
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func (img *image) create(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(img.dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make file: %w", err)
	}
	img.names = append(img.names, name)
	return f, nil
}

// remove removes the files made so far.
func (img *image) remove() error {
	var errs []error
	for _, name := range img.names {
		if err := os.Remove(filepath.Join(img.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// commit computes the checksums of the files, syncs everything, and commits the snapshot.
func (img *image) commit(ctx context.Context, m *manifest) error {
	if img.staged != nil {
		pages := filepath.Join(img.dir, imageFiles[len(imageFiles)-1])
		if err := copyFile(ctx, pages, img.staged); err != nil {
			return fmt.Errorf("write pages: %w", err)
		}
	}
	for _, name := range imageFiles {
		entry, err := commitFile(ctx, filepath.Join(img.dir, name))
		if err != nil {
			return fmt.Errorf("check %s: %w", name, err)
		}
		m.Files = append(m.Files, entry)
	}
	b, err := m.encode()
	if err != nil {
		return err
	}
	f, err := img.create(manifestName)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	dir, err := os.Open(img.dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return context.Cause(ctx)
}

// copyFile writes all of from into the file at path.
func copyFile(ctx context.Context, path string, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for at := int64(0); at < info.Size(); at += sumChunk {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if _, err := io.Copy(f, io.NewSectionReader(from, at, sumChunk)); err != nil {
			return err
		}
	}
	return f.Close()
}

func commitFile(ctx context.Context, path string) (fileEntry, error) {
	f, err := os.Open(path)
	if err != nil {
		return fileEntry{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fileEntry{}, err
	}
	sum, err := sumFile(ctx, f, info.Size())
	if err != nil {
		return fileEntry{}, err
	}
	return fileEntry{Name: filepath.Base(path), Size: info.Size(), Sum: sum}, f.Sync()
}

// unreadable is the error of a snapshot whose files cannot be used.
type unreadable struct {
	cause, is error // is is a sentinel of package engine
	public    string
}

// damaged returns the error of a snapshot whose files are missing or not what they were, unless the
// cause says nothing about them.
func damaged(cause error) error {
	switch {
	case errors.Is(cause, unix.EMFILE), errors.Is(cause, unix.ENFILE), errors.Is(cause, unix.ENOMEM):
		return fmt.Errorf("open snapshot: %w: %w", cause, engine.ErrExhausted)
	case errors.Is(cause, owned.ErrUnsafe):
		return &unreadable{cause, engine.ErrInvalid, "others could have changed what is stored of it"}
	}
	return &unreadable{cause, engine.ErrDamaged, "what is stored of it is incomplete or damaged"}
}

// Error names the file on the host.
func (e *unreadable) Error() string   { return "open snapshot: " + e.cause.Error() }
func (e *unreadable) Unwrap() []error { return []error{e.cause, e.is} }

// Public is the clause for clients, who see no path of the host.
func (e *unreadable) Public() string { return e.public }

// openImage opens a snapshot and checks everything but the content of its large
// files, which check does. The caller closes the files.
func openImage(dir string) (*manifest, []*os.File, error) {
	info, err := os.Stat(dir)
	if err == nil {
		err = owned.Info(dir, info)
	}
	if err != nil {
		return nil, nil, damaged(err)
	}
	b, err := readManifest(dir)
	if err != nil {
		return nil, nil, damaged(err)
	}
	m, err := decodeManifest(b)
	if errors.Is(err, engine.ErrDamaged) {
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot: %w: %w", err, engine.ErrInvalid)
	}
	var files []*os.File
	for _, entry := range m.Files {
		f, err := owned.Open(filepath.Join(dir, entry.Name))
		if err != nil {
			closeAll(files)
			return nil, nil, damaged(err)
		}
		files = append(files, f)
		if info, err := f.Stat(); err != nil || info.Size() != entry.Size {
			closeAll(files)
			return nil, nil, damaged(fmt.Errorf("%s has not the %d bytes that it should", entry.Name, entry.Size))
		}
	}
	return m, files, nil
}

func readManifest(dir string) ([]byte, error) {
	f, err := owned.Open(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = errors.New("the manifest is too long")
	}
	return b, err
}

// check compares the content of a snapshot's files with their checksums, unless
// done knows that it has been.
func (m *manifest) check(ctx context.Context, files []*os.File, done *checks) error {
	for i, entry := range m.Files {
		err := done.compare(ctx, files[i], entry)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return cause
		}
		if err != nil {
			return damaged(err)
		}
	}
	return nil
}
