package oci

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
)

const (
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	maxLayers   = 128
	// maxRatio bounds how much larger a layer is than its compressed form, once it has
	// freeRatio bytes: text compresses to a tenth, empty files to a thousandth.
	maxRatio  = 200
	freeRatio = 100 << 20
	// maxWindow bounds the memory of a decompressor; the largest that zstd itself makes
	// without --ultra is 8 MiB.
	maxWindow = 128 << 20
)

// content is an image before it is unpacked.
type content struct {
	manifest string // its digest; empty if the source has none
	config   *v1.ConfigFile
	digest   string // of the config: it has the digests of all layers, and names the image
	layers   []layer
	close    func() error
}

// layer is a layer as it is stored, compressed or not.
type layer struct {
	size   int64  // 0: unknown
	digest string // SHA-256 of the stored bytes, in hexadecimal; "": unknown
	open   func() (io.ReadCloser, error)
}

// newContent checks the config of an image. want is its digest; empty if there is none to
// compare with.
func newContent(manifest string, raw []byte, want string, layers []layer) (*content, error) {
	sum := sha256.Sum256(raw)
	c := &content{manifest: manifest, digest: "sha256:" + hex.EncodeToString(sum[:]), layers: layers, close: func() error { return nil }}
	if want != "" && want != c.digest {
		return nil, hostile("its config has the digest %s, not %s", c.digest, want)
	}
	if err := json.Unmarshal(raw, &c.config); err != nil || c.config == nil {
		return nil, hostile("its config is damaged: %v", err)
	}
	if c.config.OS != "" && c.config.OS != "linux" || c.config.Architecture != "" && c.config.Architecture != runtime.GOARCH {
		return nil, fmt.Errorf("it is for %.50s/%.50s, this machine needs linux/%s", c.config.OS, c.config.Architecture, runtime.GOARCH)
	}
	switch n := len(c.config.RootFS.DiffIDs); {
	case n != len(layers):
		return nil, hostile("it has %d layers, and its config has %d", len(layers), n)
	case n > maxLayers:
		return nil, hostile("it has %d layers, at most %d are possible", n, maxLayers)
	}
	for _, id := range c.config.RootFS.DiffIDs {
		if id.Algorithm != "sha256" {
			return nil, hostile("a layer has a digest of the kind %.50q", id.Algorithm)
		}
	}
	return c, nil
}

// merge adds the layers to m and verifies them.
func (c *content) merge(ctx context.Context, m *merger, progress func(string)) error {
	for n, l := range c.layers {
		progress(fmt.Sprintf("unpacking layer %d of %d", n+1, len(c.layers)))
		if err := c.mergeLayer(ctx, m, l, c.config.RootFS.DiffIDs[n]); err != nil {
			return fmt.Errorf("unpack layer %d of %d: %w", n+1, len(c.layers), err)
		}
	}
	return nil
}

func (c *content) mergeLayer(ctx context.Context, m *merger, l layer, want v1.Hash) (err error) {
	stored, err := l.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stored.Close()) }()
	in := &counting{Reader: stored, ctx: ctx, hash: sha256.New()}
	unpacked, err := decompress(in)
	if err != nil {
		return err
	}
	defer unpacked.Close()
	v := &verified{r: unpacked, in: in, hash: sha256.New()}
	if err := m.add(ctx, v); err != nil {
		return err
	}
	// Bytes after the end of the archive are part of the digest.
	if _, err := io.Copy(io.Discard, io.LimitReader(v, m.limits.data)); err != nil {
		return err
	}
	if got := hex.EncodeToString(v.hash.Sum(nil)); got != want.Hex {
		return hostile("its content has the digest sha256:%s, not %s", got, want)
	}
	return in.check(l)
}

// counting counts and hashes the bytes that are read, until ctx ends.
type counting struct {
	io.Reader
	ctx  context.Context
	n    int64
	hash hash.Hash
}

// maxTrailing bounds the bytes of a layer that its decompressor has left.
const maxTrailing = 1 << 20

// check compares all bytes of a layer with its descriptor.
func (c *counting) check(l layer) error {
	if _, err := io.Copy(io.Discard, io.LimitReader(c, maxTrailing)); err != nil {
		return err
	}
	if l.size != 0 && c.n != l.size {
		return hostile("it has %d bytes, not %d", c.n, l.size)
	}
	if got := hex.EncodeToString(c.hash.Sum(nil)); l.digest != "" && got != l.digest {
		return hostile("its stored form has the digest sha256:%s, not sha256:%s", got, l.digest)
	}
	return nil
}

func (c *counting) Read(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	n, err := c.Reader.Read(b)
	c.n += int64(n)
	c.hash.Write(b[:n])
	return n, err
}

// verified hashes what is read and refuses bombs.
type verified struct {
	r    io.Reader
	in   *counting
	n    int64
	hash hash.Hash
}

func (v *verified) Read(b []byte) (int, error) {
	n, err := v.r.Read(b)
	v.hash.Write(b[:n])
	if v.n += int64(n); v.n > freeRatio && v.n/maxRatio > v.in.n {
		return n, hostile("it is more than %d times as large as its compressed form", maxRatio)
	}
	return n, err
}

// decompress returns the content of a layer, which is compressed by gzip, by zstd or not
// at all.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}
