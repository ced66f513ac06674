//go:build linux

package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// writeImage writes an image of this machine's shell, Python and other files as an OCI
// layout in dir, which must not exist. The files have about size bytes in all, and at
// least those of the shell and Python.
func (b *bench) writeImage(ctx context.Context, dir string, size int64) (*layer, error) {
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return nil, err
	}
	l, err := newLayer(filepath.Join(blobs, "layer"))
	if err != nil {
		return nil, err
	}
	err = errors.Join(b.fillImage(ctx, l, size), l.close())
	if err != nil {
		return nil, fmt.Errorf("make an image: %w", err)
	}
	if err := os.Rename(filepath.Join(blobs, "layer"), filepath.Join(blobs, sum(l.packed.sum))); err != nil {
		return nil, err
	}
	blob := func(kind string, content any) descriptor {
		data, _ := json.Marshal(content) // maps of strings and numbers
		h := sha256.New()
		h.Write(data)
		err = errors.Join(err, os.WriteFile(filepath.Join(blobs, sum(h)), data, 0o644))
		return descriptor{kind, "sha256:" + sum(h), int64(len(data))}
	}
	const (
		configKind   = "application/vnd.oci.image.config.v1+json"
		manifestKind = "application/vnd.oci.image.manifest.v1+json"
		layerKind    = "application/vnd.oci.image.layer.v1.tar+gzip"
	)
	config := blob(configKind, map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(l.plain.sum)}},
	})
	manifest := blob(manifestKind, map[string]any{
		"schemaVersion": 2, "mediaType": manifestKind, "config": config,
		"layers": []descriptor{{layerKind, "sha256:" + sum(l.packed.sum), l.packed.size}},
	})
	index, _ := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	return l, errors.Join(err,
		os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644),
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
}

// A descriptor names a blob of an OCI layout.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// loaded matches the files in the output of ldd.
var loaded = regexp.MustCompile(`(/\S+) \(0x`)

// fillImage adds the shell and Python with their libraries, and other files up to size.
func (b *bench) fillImage(ctx context.Context, l *layer, size int64) error {
	where, err := prepare(ctx, b.python, "-c", "import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'), sep='\\n')").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its files: %w", b.python, err)
	}
	python, library, _ := strings.Cut(strings.TrimSpace(string(where)), "\n")
	modules, err := filepath.Glob(filepath.Join(library, "lib-dynload", "*.so"))
	if err != nil {
		return err
	}
	// ldd fails for one without libraries, and tells the others' nevertheless.
	needs, _ := prepare(ctx, append([]string{"ldd", "/bin/sh", python}, modules...)...).Output()
	needed := []string{"/bin/sh", python}
	for _, match := range loaded.FindAllStringSubmatch(string(needs), -1) {
		needed = append(needed, match[1])
	}
	for _, path := range needed {
		if err := l.add(path, path); err != nil {
			return err
		}
	}
	if err := l.link("/usr/bin/python3", python); err != nil {
		return err
	}
	add := func(root, under string, most int64) error {
		return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case l.plain.size >= most:
				return fs.SkipAll
			case err != nil || d.IsDir() && d.Name() == "dist-packages" || d.IsDir() && d.Name() == "site-packages":
				return fs.SkipDir
			case !d.Type().IsRegular():
				return nil
			}
			info, err := d.Info()
			if err != nil || l.plain.size+info.Size() > most {
				return nil
			}
			if err := l.add(path, under+path); !errors.Is(err, fs.ErrPermission) {
				return err
			}
			return nil
		})
	}
	if err := add(library, "", 1<<40); err != nil {
		return err
	}
	return add("/usr", "/srv", size) // where no program of theirs is looked for
}

// A layer is a compressed archive of files that is written once.
type layer struct {
	file          *os.File
	zip           *gzip.Writer
	tar           *tar.Writer
	plain, packed counted
	files         map[string]bool
}

// counted has the sum and the size of a stream.
type counted struct {
	w    io.Writer
	sum  hash.Hash
	size int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.sum.Write(p) // never fails
	c.size += int64(len(p))
	return c.w.Write(p)
}

func sum(h hash.Hash) string { return fmt.Sprintf("%x", h.Sum(nil)) }

func newLayer(path string) (*layer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	l := &layer{file: f, packed: counted{w: f, sum: sha256.New()}, files: make(map[string]bool)}
	l.zip, _ = gzip.NewWriterLevel(&l.packed, gzip.BestSpeed) // fails for other levels only
	l.plain = counted{w: l.zip, sum: sha256.New()}
	l.tar = tar.NewWriter(&l.plain)
	return l, nil
}

// add adds a file of this machine under a name, once.
func (l *layer) add(path, name string) error {
	if l.files[name] {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	l.files[name] = true
	if err := l.tar.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o644 | int64(info.Mode().Perm()&0o111), Size: info.Size(), ModTime: info.ModTime()}); err != nil {
		return err
	}
	_, err = io.CopyN(l.tar, f, info.Size())
	return err
}

// link adds a symbolic link, unless the name is there.
func (l *layer) link(name, to string) error {
	if l.files[name] {
		return nil
	}
	l.files[name] = true
	return l.tar.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777})
}

// close completes the file.
func (l *layer) close() error {
	return errors.Join(l.tar.Close(), l.zip.Close(), l.file.Close())
}
