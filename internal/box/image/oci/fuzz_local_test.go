package oci

import (
	"bytes"
	"io"
	"io/fs"
	"testing"
)

// oneFile is a set of files that all have the same content.
type oneFile []byte

func (f oneFile) open(string) (io.ReadCloser, int64, error) {
	return io.NopCloser(bytes.NewReader(f)), int64(len(f)), nil
}

func (f oneFile) Close() error { return nil }

// without is a set of files without those of docker save.
type without struct{ oneFile }

func (f without) open(name string) (io.ReadCloser, int64, error) {
	if name == archiveFile {
		return nil, 0, fs.ErrNotExist
	}
	return f.oneFile.open(name)
}

// FuzzLocal: the manifests, indexes and configs of images on disk never crash the server.
func FuzzLocal(f *testing.F) {
	for _, s := range []string{
		`[{"Config":"c.json","RepoTags":["a:latest"],"Layers":["l.tar"]}]`,
		`{"schemaVersion":2,"manifests":[{"digest":"sha256:00","size":3,"annotations":{"org.opencontainers.image.ref.name":"a"}}]}`,
		`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]},"config":{"Env":["A=b"]}}`,
		`{"config":{"digest":"sha256:e3"},"layers":[{"digest":"x","size":-1}]}`, `null`, `[]`, `{}`,
	} {
		f.Add([]byte(s), "a:latest")
		f.Add([]byte(s), "")
	}
	f.Fuzz(func(t *testing.T, b []byte, tag string) {
		for _, set := range []files{oneFile(b), without{oneFile(b)}} {
			if c, err := openArchive(set, b, tag); err == nil && c.config == nil {
				t.Errorf("archive %q: no config and no error", b)
			}
			if c, err := openLayout(set, tag); err == nil && c.config == nil {
				t.Errorf("layout %q: no config and no error", b)
			}
			if c, err := openManifest(set, "sha256:0", b); err == nil && c.config == nil {
				t.Errorf("manifest %q: no config and no error", b)
			}
		}
		if c, err := newContent("", b, "", nil); err == nil && (c.config == nil || len(c.config.RootFS.DiffIDs) > 0) {
			t.Errorf("config %q: %+v", b, c)
		}
	})
}
