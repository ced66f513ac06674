package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/glovebox-dev/glovebox/internal/regular"
)

const (
	layoutFile  = "oci-layout"
	indexFile   = "index.json"
	archiveFile = "manifest.json" // of docker save

	// maxIndexes bounds the indexes on the way to a manifest.
	maxIndexes = 4
	// maxMembers bounds the files in an archive of images.
	maxMembers = 100_000
)

// refName is the annotation with the tag of an image in a layout.
const refName = "org.opencontainers.image.ref.name"

// files are the files of a layout or an archive.
type files interface {
	// open opens a file by its slash-separated relative path.
	open(name string) (r io.ReadCloser, size int64, err error)
	Close() error
}

// openLocal opens an image in a directory or an archive. The caller closes it.
func openLocal(r Ref) (_ *content, err error) {
	info, err := os.Stat(r.Path)
	if err != nil {
		return nil, err
	}
	var f files
	if info.IsDir() {
		f, err = openDirFiles(r.Path)
	} else {
		f, err = openTarFiles(r.Path)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	var c *content
	if b, readErr := readFile(f, archiveFile, maxManifest); readErr == nil && r.Kind != KindLayout {
		c, err = openArchive(f, b, r.Tag)
	} else {
		c, err = openLayout(f, r.Tag)
	}
	if err != nil {
		return nil, err
	}
	c.close = f.Close
	return c, nil
}

// readFile reads a small file.
func readFile(f files, name string, max int64) ([]byte, error) {
	r, size, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > max {
		return nil, hostile("%.100s has %d bytes, at most %d are possible", name, size, max)
	}
	return io.ReadAll(io.LimitReader(r, max))
}

// openArchive finds an image in what docker save writes. b is its manifest.json.
func openArchive(f files, b []byte, tag string) (*content, error) {
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(b, &images); err != nil {
		return nil, hostile("%s is damaged: %v", archiveFile, err)
	}
	var tags []string
	var byTag []int // images with the tag, whatever their name
	found := -1
	for n, img := range images {
		if slices.ContainsFunc(img.RepoTags, func(t string) bool { return tag != "" && strings.HasSuffix(t, ":"+tag) }) {
			byTag = append(byTag, n)
		}
		tags = append(tags, img.RepoTags...)
		if tag == "" && len(images) == 1 || slices.ContainsFunc(img.RepoTags, func(t string) bool { return sameName(t, tag) }) {
			found = n
		}
	}
	if found < 0 && len(byTag) == 1 {
		found = byTag[0]
	}
	if found < 0 {
		return nil, notOne(tag, tags)
	}
	img := images[found]
	config, err := readFile(f, img.Config, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	var layers []layer
	for _, name := range img.Layers {
		layers = append(layers, layer{open: func() (io.ReadCloser, error) {
			r, _, err := f.open(name)
			return r, err
		}})
	}
	return newContent("", config, "", layers)
}

// sameName reports whether two names are of the same image, one perhaps without its
// registry.
func sameName(a, b string) bool {
	x, errA := name.ParseReference(a)
	y, errB := name.ParseReference(b)
	return a == b || errA == nil && errB == nil && x.Name() == y.Name()
}

func notOne(tag string, tags []string) error {
	have := strings.Join(tags[:min(len(tags), 20)], ", ")
	switch {
	case tag != "":
		return fmt.Errorf("there is no image with the tag %.200q, only: %.2000s", tag, have)
	case have == "":
		return errors.New("it does not have exactly one image for this machine")
	}
	return fmt.Errorf("it has several images; append one of the tags after a colon: %.2000s", have)
}

// openLayout finds an image in the OCI layout.
func openLayout(f files, tag string) (*content, error) {
	b, err := readFile(f, indexFile, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("it has neither %s nor %s, so it is neither an OCI layout nor an archive of docker save", indexFile, archiveFile)
	}
	if err != nil {
		return nil, err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, hostile("%s is damaged: %v", indexFile, err)
	}
	var tags []string
	var candidates []v1.Descriptor
	for _, d := range index.Manifests {
		t := d.Annotations[refName]
		if t != "" {
			tags = append(tags, t)
		}
		if tag == "" || t != "" && sameName(t, tag) || d.Digest.String() == tag {
			candidates = append(candidates, d)
		}
	}
	for range maxIndexes {
		d, ok := chosen(candidates)
		if !ok {
			return nil, notOne(tag, tags)
		}
		b, err := readBlob(f, d, maxManifest)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		if !d.MediaType.IsIndex() {
			return openManifest(f, d.Digest.String(), b)
		}
		var index v1.IndexManifest
		if err := json.Unmarshal(b, &index); err != nil {
			return nil, hostile("the index %s is damaged: %v", d.Digest, err)
		}
		candidates = index.Manifests
	}
	return nil, hostile("it has more than %d indexes on the way to an image", maxIndexes)
}

// chosen returns the one descriptor that can be for this machine.
func chosen(list []v1.Descriptor) (d v1.Descriptor, ok bool) {
	n := 0
	for _, c := range list {
		if c.Platform == nil || c.Platform.OS == "linux" && c.Platform.Architecture == runtime.GOARCH {
			d, n = c, n+1
		}
	}
	return d, n == 1
}

func openManifest(f files, digest string, b []byte) (*content, error) {
	var m v1.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, hostile("the manifest %s is damaged: %v", digest, err)
	}
	config, err := readBlob(f, m.Config, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	var layers []layer
	for _, d := range m.Layers {
		layers = append(layers, layer{size: d.Size, digest: d.Digest.Hex, open: func() (io.ReadCloser, error) {
			name, err := blobName(d)
			if err != nil {
				return nil, err
			}
			r, _, err := f.open(name)
			return r, err
		}})
	}
	return newContent(digest, config, m.Config.Digest.String(), layers)
}

func blobName(d v1.Descriptor) (string, error) {
	if d.Digest.Algorithm != "sha256" || len(d.Digest.Hex) != 2*sha256.Size {
		return "", hostile("the digest %.100q is not supported", d.Digest)
	}
	return path.Join("blobs", "sha256", d.Digest.Hex), nil
}

// readBlob reads a small blob and compares its digest.
func readBlob(f files, d v1.Descriptor, max int64) ([]byte, error) {
	name, err := blobName(d)
	if err != nil {
		return nil, err
	}
	b, err := readFile(f, name, max)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != d.Digest.Hex {
		return nil, hostile("%s has another content", d.Digest)
	}
	return b, nil
}

// dirFiles are the files below a directory.
type dirFiles struct{ *os.Root }

func openDirFiles(dir string) (files, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return dirFiles{root}, nil
}

func (d dirFiles) open(name string) (io.ReadCloser, int64, error) {
	info, err := d.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() { // opening another could block
		return nil, 0, fmt.Errorf("%.200s is no file", name)
	}
	f, err := d.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// tarFiles are the files of an archive.
type tarFiles struct {
	f       *os.File
	members map[string]member
}

type member struct {
	offset, size int64
	link         string // of a link, its target
}

// openTarFiles reads the names in an archive.
func openTarFiles(file string) (_ files, err error) {
	f, err := regular.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 0); err == nil && bytes.Equal(magic[:], []byte{0x1f, 0x8b}) {
		return nil, errors.New("it is compressed: decompress it first, with gunzip")
	}
	t := &tarFiles{f: f, members: make(map[string]member)}
	// Data is skipped by seeking, so that the offset in the file is where data begins.
	r := tar.NewReader(f)
	for {
		hdr, err := r.Next()
		if err == io.EOF {
			return t, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return nil, fmt.Errorf("not an archive of an image: %w", err)
		}
		if len(t.members) == maxMembers {
			return nil, hostile("the archive has more than %d files", maxMembers)
		}
		m := member{size: hdr.Size}
		if m.offset, err = f.Seek(0, io.SeekCurrent); err != nil {
			return nil, err
		}
		switch name := path.Clean(hdr.Name); hdr.Typeflag {
		case tar.TypeReg:
			t.members[name] = m
		case tar.TypeSymlink:
			t.members[name] = member{link: path.Join(path.Dir(name), hdr.Linkname)}
		case tar.TypeLink:
			t.members[name] = member{link: path.Clean(hdr.Linkname)}
		}
	}
}

func (t *tarFiles) open(name string) (io.ReadCloser, int64, error) {
	at := path.Clean(name)
	for range maxHops {
		m, ok := t.members[at]
		if !ok {
			return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		if m.link == "" {
			return io.NopCloser(io.NewSectionReader(t.f, m.offset, m.size)), m.size, nil
		}
		at = m.link
	}
	return nil, 0, hostile("%.200s is behind more than %d links", name, maxHops)
}

func (t *tarFiles) Close() error { return t.f.Close() }
