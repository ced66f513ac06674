//go:build linux

package microsandbox

import (
	"archive/tar"
	"bytes"
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
	"path"
	"runtime"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
)

const (
	// maxRootBytes and maxRootFiles bound a root directory.
	maxRootBytes = 8 << 30
	maxRootFiles = 1 << 20
	// maxRootDepth bounds the depth of its directories.
	maxRootDepth = 100
)

// guestPath is the search path of the agent, which gives it to commands.
const guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// layer is a tar archive in a file, and its digest.
type layer struct {
	file   *os.File
	size   int64
	digest string
}

// packRoot writes the tree at dir into file as the layer of an image. Files of this user
// belong to the guest's root. File systems mounted in the tree are left out, and so are
// sockets, pipes and devices.
func packRoot(ctx context.Context, file *os.File, dir string) (layer, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return layer{}, err
	}
	defer root.Close()
	sum := sha256.New()
	p := &packer{ctx: ctx, root: root, out: tar.NewWriter(io.MultiWriter(file, sum)), links: make(map[inode]string)}
	info, err := root.Stat(".")
	if err != nil {
		return layer{}, err
	}
	p.device = stat(info).Dev
	if err := p.directory(".", info, 0); err != nil {
		return layer{}, err
	}
	if err := p.out.Close(); err != nil {
		return layer{}, err
	}
	size, err := file.Seek(0, io.SeekEnd)
	return layer{file: file, size: size, digest: digest(sum)}, err
}

func digest(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }

func stat(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// inode identifies a file with several names.
type inode struct{ device, number uint64 }

// packer writes a tree into an archive. Names are relative to root.
type packer struct {
	ctx    context.Context
	root   *os.Root
	out    *tar.Writer
	device uint64
	links  map[inode]string // the first name of files with several names
	files  int
	bytes  int64
}

// directory writes a directory and what is in it.
func (p *packer) directory(name string, info fs.FileInfo, depth int) error {
	if depth > maxRootDepth {
		return fmt.Errorf("%s is deeper than %d directories: %w", name, maxRootDepth, engine.ErrInvalid)
	}
	if name != "." {
		if err := p.header(name+"/", "", info, tar.TypeDir); err != nil {
			return err
		}
	}
	if stat(info).Dev != p.device { // another file system: a mount point
		return nil
	}
	d, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		// In the file system's order, a part at a time: a directory may be large.
		entries, err := d.ReadDir(1024)
		for _, e := range entries {
			if err := p.entry(path.Join(name, e.Name()), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *packer) entry(name string, depth int) error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	if p.files++; p.files > maxRootFiles {
		return fmt.Errorf("the root has more than %d files: %w", maxRootFiles, engine.ErrInvalid)
	}
	info, err := p.root.Lstat(name)
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		return p.directory(name, info, depth+1)
	case fs.ModeSymlink:
		target, err := p.root.Readlink(name)
		if err != nil {
			return err
		}
		return p.header(name, target, info, tar.TypeSymlink)
	case 0:
		return p.file(name, info)
	}
	return nil
}

// file writes a regular file, or a link to it if it has been written under another name.
func (p *packer) file(name string, info fs.FileInfo) error {
	st := stat(info)
	if st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first, ok := p.links[id]; ok {
			return p.header(name, first, info, tar.TypeLink)
		}
		p.links[id] = name
	}
	if p.bytes += info.Size(); p.bytes > maxRootBytes {
		return fmt.Errorf("the root has more than %d MiB: %w", maxRootBytes>>20, engine.ErrInvalid)
	}
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := p.header(name, "", info, tar.TypeReg); err != nil {
		return err
	}
	_, err = io.CopyN(p.out, f, info.Size())
	return err
}

func (p *packer) header(name, target string, info fs.FileInfo, kind byte) error {
	st := stat(info)
	h := &tar.Header{
		Typeflag: kind, Name: name, Linkname: target, Mode: int64(st.Mode & 0o7777),
		Uid: own(st.Uid, os.Geteuid()), Gid: own(st.Gid, os.Getegid()), ModTime: info.ModTime().Truncate(time.Second),
		Format: tar.FormatPAX,
	}
	if kind == tar.TypeReg {
		h.Size = info.Size()
	}
	return p.out.WriteHeader(h)
}

// own returns an id in the guest: what belongs to this user is its root's.
func own(id uint32, mine int) int {
	if int(id) == mine {
		return 0
	}
	return int(id)
}

// descriptor refers to a part of an image.
type descriptor struct {
	MediaType string            `json:"mediaType"`
	Digest    string            `json:"digest"`
	Size      int64             `json:"size"`
	Platform  map[string]string `json:"platform,omitempty"`
}

// writeImage writes an image of one layer in OCI's layout.
func writeImage(w io.Writer, l layer) error {
	const oci = "application/vnd.oci.image."
	blob := func(mediaType string, v any) ([]byte, descriptor) {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // strings, numbers, maps and slices always marshal
		}
		sum := sha256.Sum256(b)
		return b, descriptor{MediaType: oci + mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(b))}
	}
	config, configRef := blob("config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Cmd": []string{"/bin/sh"}, "Env": []string{"PATH=" + guestPath}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{l.digest}},
	})
	manifest, manifestRef := blob("manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": configRef,
		"layers": []descriptor{{MediaType: oci + "layer.v1.tar", Digest: l.digest, Size: l.size}},
	})
	manifestRef.Platform = map[string]string{"architecture": runtime.GOARCH, "os": "linux"}
	index, _ := blob("index.v1+json", map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifestRef}})

	out := tar.NewWriter(w)
	put := func(name string, size int64, content io.Reader) error {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		_, err := io.Copy(out, content)
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", index},
		{blobName(configRef.Digest), config}, {blobName(manifestRef.Digest), manifest},
	} {
		if err := put(f.name, int64(len(f.content)), bytes.NewReader(f.content)); err != nil {
			return err
		}
	}
	if err := put(blobName(l.digest), l.size, io.NewSectionReader(l.file, 0, l.size)); err != nil {
		return err
	}
	return out.Close()
}

// blobName is the name in the layout of the blob with a digest, "sha256:…".
func blobName(digest string) string { return "blobs/sha256/" + digest[len("sha256:"):] }
