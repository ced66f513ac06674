package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/recipe"
	"github.com/glovebox-dev/glovebox/internal/untar"
)

const (
	// maxOutBytes and maxOutFiles bound what one --out writes to the host: as much as
	// the largest flavor holds.
	maxOutBytes = 8 << 30
	maxOutFiles = 100_000
)

// transfer is a file or directory to copy.
type transfer struct{ from, to string }

// parseCopies parses --copy PATH[:DEST]. A colon in the name of an existing file is
// part of the name. volumes are directories that a box has in addition to its own.
func parseCopies(args []string, volumes []config.Volume) ([]transfer, error) {
	var list []transfer
	for _, arg := range args {
		t := transfer{from: arg}
		if _, err := os.Lstat(arg); err != nil {
			if i := strings.LastIndex(arg, ":"); i > 0 {
				t.from, t.to = arg[:i], arg[i+1:]
			}
		}
		abs, err := filepath.Abs(t.from)
		if err != nil {
			return nil, fmt.Errorf("--copy %q: %w", arg, err)
		}
		info, err := os.Stat(t.from)
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			// The system call says nothing to people; the path that was tried does.
			return nil, fmt.Errorf("--copy %q: %q on this machine: %w", arg, abs, at.Err)
		}
		if err != nil {
			return nil, fmt.Errorf("--copy %q: %w", arg, err)
		}
		base := filepath.Base(abs) // also of "."
		if t.to, err = copyDest(t.to, base, info.IsDir(), volumes); err != nil {
			return nil, fmt.Errorf("--copy %q: %w", arg, err)
		}
		t.from = abs
		list = append(list, t)
	}
	return list, nil
}

// checkCopyTo returns an error for a destination that the box cannot write. root
// reports whether the destination is itself a writable root, such as the home
// directory.
func checkCopyTo(to string, volumes []config.Volume) (root bool, err error) {
	full := to
	if !path.IsAbs(to) {
		full = path.Join(machine.Home, to)
	}
	full = path.Clean(full)
	writable := []string{machine.Home, "/tmp"}
	for _, v := range volumes {
		if v.ReadOnly && (full == v.Guest || below(v.Guest, full)) {
			return false, fmt.Errorf("the destination %q is in the volume %s, which is read-only", to, v.Guest)
		}
		writable = append(writable, v.Guest)
	}
	for _, dir := range writable {
		if full == dir || below(dir, full) {
			return full == dir, nil
		}
	}
	return false, withHint(fmt.Errorf("the destination %q is not writable in a box", to),
		"use a path relative to %s, or an absolute one below: %s", machine.Home, strings.Join(writable, ", "))
}

// below reports whether name is below dir, both clean and absolute.
func below(dir, name string) bool { return strings.HasPrefix(name, dir+"/") }

// parseOuts parses --out PATH[:DEST].
func parseOuts(args []string) ([]transfer, error) {
	var list []transfer
	for _, arg := range args {
		from, to, ok := strings.Cut(arg, ":")
		if from == "" || ok && to == "" {
			return nil, fmt.Errorf("--out must be PATH or PATH:DEST, got %q", arg)
		}
		if !ok {
			to = path.Base(path.Clean(from))
		}
		if to == "/" || to == ".." {
			return nil, fmt.Errorf("--out: name a destination for %q, as in %s:DEST", from, from)
		}
		list = append(list, transfer{from, to})
	}
	return list, nil
}

// copyIn copies files and directories into the box.
func copyIn(ctx context.Context, l *client.Conn, list []transfer) error {
	for _, t := range list {
		if err := copyInOne(ctx, l, t); err != nil {
			return fmt.Errorf("copy %q into the box: %w", t.from, err)
		}
	}
	return nil
}

func copyInOne(ctx context.Context, l *client.Conn, t transfer) error {
	info, err := os.Stat(t.from)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		f, err := os.Open(t.from)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = l.Write(ctx, protocol.Write{Path: t.to, Mode: uint32(info.Mode().Perm()), Parents: true}, f)
		return err
	}
	if !info.IsDir() {
		return errors.New("not a file or directory")
	}
	root, err := os.OpenRoot(t.from)
	if err != nil {
		return err
	}
	defer root.Close()
	return extractInto(ctx, l, t.to, root)
}

// extractInto copies the content of a directory into the box.
func extractInto(ctx context.Context, l *client.Conn, to string, root *os.Root) error {
	if _, err := l.Mkdir(ctx, protocol.Mkdir{Path: to, Parents: true}); err != nil {
		return err
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(w, root)
		w.CloseWithError(err)
		packed <- err
	}()
	err := l.Extract(ctx, to, r)
	r.CloseWithError(errors.New("the box stopped reading")) // frees pack
	return errors.Join(err, ignore(<-packed, err))
}

// ignore drops an error that only repeats one that is reported.
func ignore(echo, reported error) error {
	if reported != nil {
		return nil
	}
	return echo
}

// pack writes the directory to w as tar, without what recipe.Walk leaves out. A file that
// is exchanged for a link out of the directory meanwhile, as a box can do in a volume, is an
// error.
func pack(w io.Writer, root *os.Root) error {
	tw := tar.NewWriter(w)
	err := recipe.Walk(root, func(name string, info fs.FileInfo, target string) error {
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name = name
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", "" // no account of the host
		if err := tw.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(tw, f)
		return err
	})
	return errors.Join(err, tw.Close())
}

// copyOut copies files and directories out of the box.
func (a *app) copyOut(ctx context.Context, l *client.Conn, list []transfer) error {
	for _, t := range list {
		if err := a.copyOutOne(ctx, l, t); err != nil {
			return fmt.Errorf("copy %q out of the box: %w", t.from, err)
		}
	}
	return nil
}

func (a *app) copyOutOne(ctx context.Context, l *client.Conn, t transfer) error {
	info, err := l.Stat(ctx, t.from)
	if err != nil {
		return err
	}
	if strings.HasSuffix(t.to, "/") {
		t.to = filepath.Join(t.to, path.Base(path.Clean(t.from)))
	}
	switch {
	case strings.HasSuffix(t.to, ".tar") && !strings.HasSuffix(t.from, ".tar"):
		return replace(t.to, func(w io.Writer) error { return l.Archive(ctx, t.from, &limited{w: w, left: maxOutBytes}) })
	case info.Type == "file":
		return replace(t.to, func(w io.Writer) error {
			_, err := l.Read(ctx, protocol.Read{Path: t.from}, &limited{w: w, left: maxOutBytes})
			return err
		})
	case info.Type == "directory":
		return a.unpack(ctx, l, t)
	}
	return fmt.Errorf("not a file or directory: %s", info.Type)
}

// replace writes a file that everybody can read, completely or not at all.
func replace(name string, write func(io.Writer) error) error { return replaceMode(name, 0o644, write) }

// replaceMode writes a file with these permissions completely or not at all.
func replaceMode(name string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".glovebox-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// limited fails after a number of bytes.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, fmt.Errorf("larger than %d GiB", maxOutBytes>>30)
	}
	return l.w.Write(p)
}

// unpack copies a directory out of the box.
func (a *app) unpack(ctx context.Context, l *client.Conn, t transfer) error {
	if err := os.MkdirAll(t.to, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(t.to)
	if err != nil {
		return err
	}
	defer root.Close()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := l.Archive(ctx, t.from, &limited{w: w, left: maxOutBytes})
		w.CloseWithError(err)
		sent <- err
	}()
	skipped, err := untar.Extract(root, r, maxOutFiles)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // padding after the archive
	}
	r.CloseWithError(errors.New("stopped reading"))
	err = errors.Join(err, ignore(<-sent, err))
	if skipped > 0 {
		a.note("glovebox: warning: %s of %q skipped: links and special files are not copied", plural.N(skipped, "file"), t.from)
	}
	return err
}
