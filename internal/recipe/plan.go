package recipe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const (
	// format is the version of keys: of what a step does to a box.
	format = 1
	// maxCopyBytes and maxCopyFiles bound what one copy brings into a box.
	maxCopyBytes = 1 << 30
	maxCopyFiles = 100_000
)

// Step is a step of a build.
type Step struct {
	Run  string // a shell command; "": the step copies
	Copy Copy
	Sum  string // of the copied files
	Key  string // 64 hexadecimal digits
}

// String describes the step in one line.
func (s Step) String() string {
	if s.Run != "" {
		return "run " + s.Run
	}
	return "copy " + s.Copy.From + " to " + s.Copy.To
}

// Plan returns the steps of a checked recipe in their order: copies, then commands. base
// identifies the box before the first step. copies are those of r.Copy, with their
// directories and destinations. Plan reads their files. A step's key changes with base,
// with an earlier step, and with everything that the step depends on.
func (r *Recipe) Plan(ctx context.Context, base string, copies []Copy) ([]Step, error) {
	key := link("", "base", fmt.Sprint(format), base, r.Variables())
	var steps []Step
	for _, c := range copies {
		sum, err := c.Sum(ctx)
		if err != nil {
			return nil, err
		}
		key = link(key, "copy", c.To, sum)
		steps = append(steps, Step{Copy: c, Sum: sum, Key: key})
	}
	net := slices.Sorted(slices.Values(r.Net))
	for _, command := range r.Run {
		key = link(key, "run", command, net)
		steps = append(steps, Step{Run: command, Key: key})
	}
	return steps, nil
}

// link returns the next key of a chain.
func link(before string, parts ...any) string {
	b, err := json.Marshal(append([]any{before}, parts...)) // unambiguous
	if err != nil {
		panic(err) // of strings: not possible
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Open returns the directory that confines the copy, and what it copies. The caller closes
// the root.
func (c Copy) Open() (*os.Root, fs.FileInfo, error) {
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("copy %q: %w", c.From, err)
	}
	info, err := root.Stat(c.From)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = errors.New("neither a file nor a directory")
	}
	if err != nil {
		root.Close()
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			err = at.Err // the system call says nothing to people
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("copy %q: %w in %q", c.From, err, c.Dir)
		}
		return nil, nil, fmt.Errorf("copy %q of %q: %w", c.From, c.Dir, err)
	}
	return root, info, nil
}

// Sum returns a hash of what the copy copies: names, permissions and contents. It fails
// for more than 100,000 files or 1 GiB.
func (c Copy) Sum(ctx context.Context) (string, error) {
	root, info, err := c.Open()
	if err != nil {
		return "", err
	}
	defer root.Close()
	h := sha256.New()
	if info.IsDir() {
		sub, err := root.OpenRoot(c.From)
		if err != nil {
			return "", fmt.Errorf("copy %q: %w", c.From, err)
		}
		defer sub.Close()
		if err := sumDir(ctx, h, sub); err != nil {
			return "", fmt.Errorf("copy %q: %w", c.From, err)
		}
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	left := int64(maxCopyBytes)
	if err := sumFile(h, root, c.From, info, &left); err != nil {
		return "", fmt.Errorf("copy %q: %w", c.From, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sumDir hashes a directory as Walk lists it.
func sumDir(ctx context.Context, h hash.Hash, root *os.Root) error {
	left, n := int64(maxCopyBytes), 0
	return Walk(root, func(name string, info fs.FileInfo, target string) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if n++; n > maxCopyFiles {
			return fmt.Errorf("more than %d files", maxCopyFiles)
		}
		if info.Mode().IsRegular() {
			fmt.Fprintf(h, "%q ", name)
			return sumFile(h, root, name, info, &left)
		}
		fmt.Fprintf(h, "%q %v %q\n", name, info.Mode(), target)
		return nil
	})
}

func sumFile(h hash.Hash, root *os.Root, name string, info fs.FileInfo, left *int64) error {
	if *left -= info.Size(); *left < 0 {
		return fmt.Errorf("more than %d bytes", int64(maxCopyBytes))
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Fprintf(h, "%v %d ", info.Mode(), info.Size())
	n, err := io.Copy(h, io.LimitReader(f, info.Size()+1))
	if err == nil && n != info.Size() {
		err = fmt.Errorf("%q changed while it was read", name)
	}
	return err
}

// Walk calls visit for the files, directories and symbolic links below root, in the order
// of their names, with slashes. It leaves out special files, and links that lead out of
// root. target is that of a link.
func Walk(root *os.Root, visit func(name string, info fs.FileInfo, target string) error) error {
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := root.Lstat(name)
		if err != nil {
			return err
		}
		target := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			if target, err = root.Readlink(name); err != nil {
				return err
			}
			if filepath.IsAbs(target) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), target)) {
				return nil // it would point elsewhere in the box
			}
		case !info.Mode().IsRegular() && !info.IsDir():
			return nil
		}
		return visit(name, info, target)
	})
}
