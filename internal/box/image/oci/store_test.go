package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gofrs/flock"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/image"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// newImage returns an image with layers for this machine.
func newImage(t testing.TB, layers ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for _, b := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return configured(t, img, func(c *v1.ConfigFile) {
		c.OS, c.Architecture = "linux", runtime.GOARCH
		c.Config.Env = []string{"PATH=/usr/bin", "LANG=de_DE.UTF-8", "HOME=/root"}
	})
}

func configured(t testing.TB, img v1.Image, change func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	change(c)
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

func sampleImage(t testing.TB) v1.Image {
	return newImage(t, pack(t, entry{name: "usr/bin/python3"}, entry{name: "gone"}), pack(t, entry{name: ".wh.gone"}, entry{name: "etc/mark", text: "of the image"}))
}

func openStore(t testing.TB) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serveRegistry serves a registry on this machine and returns its address.
func serveRegistry(t testing.TB, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func push(t testing.TB, ref string, img v1.Image, options ...remote.Option) {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, img, options...); err != nil {
		t.Fatal(err)
	}
}

func parse(t testing.TB, text string) Ref {
	t.Helper()
	r, err := ParseRef(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPull_EverySource pulls one image from a registry, a layout, its archive, and an
// archive of docker save: the result is one file.
func TestPull_EverySource(t *testing.T) {
	img, dir := sampleImage(t), t.TempDir()
	host := serveRegistry(t, nil)
	push(t, host+"/team/app:1", img)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: configured(t, img, func(c *v1.ConfigFile) { c.Architecture = "other" }), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "other"}}},
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	parsed, err := name.ParseReference(host + "/team/many:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(parsed, index); err != nil {
		t.Fatal(err)
	}
	oneLayout, manyLayout := filepath.Join(dir, "one"), filepath.Join(dir, "many")
	for path, i := range map[string]v1.ImageIndex{oneLayout: mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img}), manyLayout: empty.Index} {
		l, err := layout.Write(path, i)
		if err != nil {
			t.Fatal(err)
		}
		if path == manyLayout {
			if err := errors.Join(l.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: "v2"})),
				l.AppendImage(newImage(t), layout.WithAnnotations(map[string]string{refName: "v1"}))); err != nil {
				t.Fatal(err)
			}
		}
	}
	archive, packed := filepath.Join(dir, "saved.tar"), filepath.Join(dir, "layout.tar")
	tag, err := name.NewTag("team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	other, err := name.NewTag("team/other:2")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.MultiWriteToFile(archive, map[name.Tag]v1.Image{tag: img, other: newImage(t)}); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(packed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := errors.Join(w.AddFS(os.DirFS(oneLayout)), w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	s := openStore(t)
	key := ""
	for _, ref := range []string{
		host + "/team/app:1", "docker://" + host + "/team/app@" + digest.String(), host + "/team/many:1",
		oneLayout, "oci:" + oneLayout, "oci:" + oneLayout + ":" + digest.String(), "oci:" + manyLayout + ":v2", packed, "oci:" + packed,
		"docker-archive:" + archive + ":team/app:1", "docker-archive:" + archive + ":1",
	} {
		info, err := s.Pull(t.Context(), parse(t, ref), nil)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		if key == "" {
			key = info.Key
		}
		if info.Key != key || len(info.Interpreters) != 1 || info.Ref != parse(t, ref).String() || parse(t, info.Ref) != parse(t, ref) {
			t.Errorf("%s: got %+v", ref, info)
		}
		if want := digest.String(); info.Manifest != want && !strings.HasPrefix(ref, "docker-archive") {
			t.Errorf("%s: manifest %q, want %q", ref, info.Manifest, want)
		}
	}
	files, err := os.ReadDir(s.dir)
	if err != nil || len(files) != 2 { // and its lock
		t.Errorf("the store has %v, %v", files, err)
	}
	for ref, want := range map[string]string{
		"oci:" + manyLayout: "v1", "oci:" + manyLayout + ":v3": "v2", archive: "team/app:1", archive + "-none": "no such file",
		host + "/team/none:1": "NAME_UNKNOWN", host + "/team/app:2": "MANIFEST_UNKNOWN", oneLayout + "/index.json": "not an archive",
	} {
		r, err := ParseRef(ref)
		if err == nil {
			_, err = s.Pull(t.Context(), r, nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", ref, err, want)
		}
	}
}

// TestGet pulls once; Pull looks again.
func TestGet(t *testing.T) {
	var requests atomic.Int32
	host := serveRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { requests.Add(1); h.ServeHTTP(w, r) })
	})
	ref := parse(t, host+"/app:latest")
	push(t, ref.Name, sampleImage(t))
	s := openStore(t)
	var steps []string
	first, err := s.Get(t.Context(), ref, func(step string) { steps = append(steps, step) })
	if err != nil || len(steps) == 0 {
		t.Fatal(err, steps)
	}
	if got := first.Interpreters[image.Python].Path; got != "/usr/bin/python3" {
		t.Errorf("Python is %q", got)
	}
	if env := strings.Join(first.Env, " "); !strings.Contains(env, "LANG=de_DE.UTF-8") || strings.Contains(env, "HOME=") || !strings.Contains(env, "PATH=/opt/glovebox/bin:/home/user/.local/bin:/usr/bin:") {
		t.Errorf("environment %q", env)
	}
	push(t, ref.Name, newImage(t, pack(t, entry{name: "new"})))
	requests.Store(0)
	again, err := s.Get(t.Context(), ref, nil)
	if err != nil || again.Root.Key != first.Root.Key || requests.Load() != 0 {
		t.Errorf("again: %+v, %v, %d requests", again, err, requests.Load())
	}
	info, err := s.Pull(t.Context(), ref, nil)
	if err != nil || info.Key == first.Root.Key {
		t.Errorf("a new image has the key %q as before: %v", info.Key, err)
	}
	// An image whose file is gone is pulled again.
	if err := os.Remove(s.file(info.Key)); err != nil {
		t.Fatal(err)
	}
	if img, err := s.Get(t.Context(), ref, nil); err != nil || img.Root.Key != info.Key {
		t.Errorf("after the loss of its file: %v", err)
	}
	if _, err := os.Stat(image.RootFile(s.state, info.Key)); err != nil {
		t.Error(err)
	}
}

// TestRecall finds the image of a hibernated box by its key, until it is removed.
func TestRecall(t *testing.T) {
	s, dir := openStore(t), t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: sampleImage(t)})); err != nil {
		t.Fatal(err)
	}
	img, err := s.Get(t.Context(), parse(t, dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := img.Remember(s.state); err != nil {
		t.Fatal(err)
	}
	got, err := image.Recall(s.state, img.Root.Key, image.Python)
	if err != nil || got.Root.Tree.File != img.Root.Tree.File {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := image.Recall(s.state, img.Root.Key, image.JavaScript); err == nil || !strings.Contains(err.Error(), "no interpreter") {
		t.Errorf("a box of JavaScript: %v", err)
	}
	if _, err := s.Remove(t.Context(), "no/such"); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove an unknown image: %v", err)
	}
	if _, err := s.Remove(t.Context(), parse(t, dir).String()); err != nil {
		t.Fatal(err)
	}
	_, err = image.Recall(s.state, img.Root.Key, image.Python)
	gone, ok := errors.AsType[*image.RemovedError](err)
	if ref := parse(t, dir).String(); !ok || !strings.Contains(gone.Error(), ref) || !strings.HasSuffix(gone.Remedy(), "glovebox image pull "+ref) {
		t.Errorf("after its removal: %v, want its name and how to pull it", err)
	} else if public := gone.Public(); img.Digest == "" || !strings.Contains(public, img.Digest) || strings.Contains(public, dir) {
		t.Errorf("after its removal, clients are told %q, want the digest %q and no path", public, img.Digest)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// TestRemove keeps a file that has another name.
func TestRemove(t *testing.T) {
	host := serveRegistry(t, nil)
	s := openStore(t)
	var info Info
	for _, tag := range []string{"/app:1", "/app:2", "/app:3"} {
		push(t, host+tag, sampleImage(t))
		var err error
		if info, err = s.Pull(t.Context(), parse(t, host+tag), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Remove(t.Context(), parse(t, host+"/app:1").String()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.file(info.Key)); err != nil {
		t.Errorf("an image that is still needed is gone: %v", err)
	}
	gone, err := s.Remove(t.Context(), info.Key)
	if err != nil {
		t.Fatal(err)
	}
	if len(gone) != 2 || gone[0].Ref != host+"/app:2" || gone[1].Ref != host+"/app:3" {
		t.Errorf("removed %v, want both references that were left", gone)
	}
	if _, err := os.Stat(s.file(info.Key)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}

// TestPull_TwoAtOnce: concurrent pulls of one image make one file, and each finds it.
func TestPull_TwoAtOnce(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: sampleImage(t)})); err != nil {
		t.Fatal(err)
	}
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		s, err := Open(state) // as of another process: locks are by open file
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			_, err := s.Pull(t.Context(), parse(t, dir), func(step string) {
				if strings.HasPrefix(step, "writing") {
					made.Add(1)
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("it was made %d times", n)
	}
}

// TestOpen_RemovesWhatAKilledPullLeft: but not what a living process writes.
func TestOpen_RemovesWhatAKilledPullLeft(t *testing.T) {
	s := openStore(t)
	for _, key := range []string{"dead", "living"} {
		if err := os.WriteFile(filepath.Join(s.dir, key+".new"), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lock := flock.New(filepath.Join(s.dir, "living.lock"))
	if err := lock.Lock(); err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := Open(s.state); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"dead": false, "living": true} {
		if _, err := os.Stat(filepath.Join(s.dir, key+".new")); (err == nil) != want {
			t.Errorf("%s: left is %t, want %t", key, err == nil, want)
		}
	}
}

// hostileLayout writes a layout whose parts change alters, and returns its directory.
func hostileLayout(t *testing.T, img v1.Image, change func(dir string, m *v1.Manifest, config *v1.ConfigFile)) string {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = l.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	m, errM := img.Manifest()
	c, errC := img.ConfigFile()
	if err := errors.Join(errM, errC); err != nil {
		t.Fatal(err)
	}
	m, c = m.DeepCopy(), c.DeepCopy()
	change(dir, m, c)
	blob := func(v any) (v1.Hash, int64) {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		h, n, err := v1.SHA256(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "blobs/sha256", h.Hex), b, 0o644); err != nil {
			t.Fatal(err)
		}
		return h, n
	}
	if config, err := img.ConfigName(); err != nil || m.Config.Digest == config {
		m.Config.Digest, m.Config.Size = blob(c)
	}
	var d v1.Descriptor
	d.MediaType = m.MediaType
	d.Digest, d.Size = blob(m)
	b, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{d}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, indexFile), b, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPull_RefusesHostileImages: nothing is taken unverified, and nothing is left behind.
func TestPull_RefusesHostileImages(t *testing.T) {
	img := sampleImage(t)
	overwrite := func(dir string, h v1.Hash, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, "blobs/sha256", h.Hex), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	packed := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	for name, change := range map[string]func(dir string, m *v1.Manifest, c *v1.ConfigFile){
		"another layer": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			overwrite(dir, m.Layers[0].Digest, packed(pack(t, entry{name: "evil"})))
		},
		"a layer with more behind it": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			overwrite(dir, m.Layers[0].Digest, packed(append(pack(t, entry{name: "usr/bin/python3"}, entry{name: "gone"}), "more"...)))
		},
		"a damaged layer": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			overwrite(dir, m.Layers[0].Digest, []byte{0x1f, 0x8b, 8, 0, 0})
		},
		"a layer that is compressed in another way": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			l, err := img.LayerByDigest(m.Layers[0].Digest)
			if err != nil {
				t.Fatal(err)
			}
			r, err := l.Uncompressed()
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			overwrite(dir, m.Layers[0].Digest, append(packed(b), packed(nil)...))
		},
		"a negative size": func(_ string, m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size = -5 },
		"a huge size":     func(_ string, m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size = 1e15 },
		"an EROFS image as layer": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			overwrite(dir, m.Layers[0].Digest, append(make([]byte, 1024), 0xe2, 0xe1, 0xf5, 0xe0))
		},
		"another config": func(dir string, m *v1.Manifest, c *v1.ConfigFile) {
			c.Author = "evil" // otherwise it is a config of these layers
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			m.Config.Digest.Hex, m.Config.Size = strings.Repeat("0", 64), int64(len(b))
			overwrite(dir, m.Config.Digest, b)
		},
		"a malformed digest of the config": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			overwrite(dir, m.Config.Digest, []byte(`{"os":"linux"}`))
			m.Config.Digest.Hex = m.Config.Digest.Hex[:63] + "g"
		},
		"fewer digests":      func(_ string, _ *v1.Manifest, c *v1.ConfigFile) { c.RootFS.DiffIDs = c.RootFS.DiffIDs[:1] },
		"another digest":     func(_ string, _ *v1.Manifest, c *v1.ConfigFile) { c.RootFS.DiffIDs[1].Hex = strings.Repeat("0", 64) },
		"other architecture": func(_ string, _ *v1.Manifest, c *v1.ConfigFile) { c.Architecture = "s390x" },
		"other system":       func(_ string, _ *v1.Manifest, c *v1.ConfigFile) { c.OS = "windows" },
		"digest as path": func(_ string, m *v1.Manifest, _ *v1.ConfigFile) {
			m.Layers[0].Digest = v1.Hash{Algorithm: "sha256", Hex: "../../../../../../etc/passwd"}
		},
		"no layer": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			os.Remove(filepath.Join(dir, "blobs/sha256", m.Layers[1].Digest.Hex))
		},
		"layer is a pipe": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			p := filepath.Join(dir, "blobs/sha256", m.Layers[1].Digest.Hex)
			os.Remove(p)
			os.Mkdir(p, 0o755)
		},
		"layer is a way out": func(dir string, m *v1.Manifest, _ *v1.ConfigFile) {
			p := filepath.Join(dir, "blobs/sha256", m.Layers[1].Digest.Hex)
			os.Remove(p)
			os.Symlink("/etc/passwd", p)
		},
		"too many layers": func(_ string, m *v1.Manifest, c *v1.ConfigFile) {
			for range maxLayers {
				m.Layers, c.RootFS.DiffIDs = append(m.Layers, m.Layers[0]), append(c.RootFS.DiffIDs, c.RootFS.DiffIDs[0])
			}
		},
	} {
		s := openStore(t)
		if info, err := s.Pull(t.Context(), parse(t, hostileLayout(t, img, change)), nil); err == nil {
			t.Errorf("%s: got %+v", name, info)
		}
		files, err := filepath.Glob(filepath.Join(s.dir, "*"))
		for _, f := range files {
			if !strings.HasSuffix(f, ".lock") {
				t.Errorf("%s: left %s, %v", name, f, err)
			}
		}
	}
	if info, err := openStore(t).Pull(t.Context(), parse(t, hostileLayout(t, img, func(string, *v1.Manifest, *v1.ConfigFile) {})), nil); err != nil {
		t.Errorf("the image as it is: %+v, %v", info, err)
	}
}

// TestPull_RefusesBombs: a small layer that grows beyond all bounds ends early.
func TestPull_RefusesBombs(t *testing.T) {
	r, stored := io.Pipe()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer r.Close()
	wg.Go(func() {
		c, err := zstd.NewWriter(stored, zstd.WithEncoderConcurrency(1))
		if err != nil {
			stored.CloseWithError(err)
			return
		}
		w := tar.NewWriter(c)
		err = w.WriteHeader(&tar.Header{Name: "zero", Size: 1 << 40, Mode: 0o644})
		for zeros := make([]byte, 1<<20); err == nil; { // until the reader has closed it
			_, err = w.Write(zeros)
		}
		stored.CloseWithError(err)
	})
	c := &content{layers: []layer{{open: func() (io.ReadCloser, error) { return r, nil }}}, config: &v1.ConfigFile{RootFS: v1.RootFS{DiffIDs: []v1.Hash{{}}}}}
	m := newMerger(io.Discard, defaultLimits)
	if err := c.merge(t.Context(), m, func(string) {}); !errors.Is(err, ErrHostile) || m.written > 1<<30 {
		t.Errorf("after %d MiB: %v", m.written>>20, err)
	}
}

// TestPull_LeavesDiskSpace stops before the disk is full.
func TestPull_LeavesDiskSpace(t *testing.T) {
	dir := t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: sampleImage(t)})); err != nil {
		t.Fatal(err)
	}
	s := openStore(t)
	s.free = 1 << 60
	if _, err := s.Pull(t.Context(), parse(t, dir), nil); !errors.Is(err, engine.ErrExhausted) {
		t.Errorf("got %v", err)
	}
}

// TestKeychain pulls with the credentials of ~/.docker/config.json, and only to the
// registry that they are for.
func TestKeychain(t *testing.T) {
	const user, password = "alice", "pass word"
	host := serveRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("DOCKER_CONFIG", "")
	t.Setenv("REGISTRY_AUTH_FILE", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	ref := parse(t, host+"/private:1")
	if _, err := openStore(t).Pull(t.Context(), ref, nil); err == nil || !strings.Contains(err.Error(), "UNAUTHORIZED") {
		t.Errorf("without credentials: %v", err)
	}
	if err := os.Mkdir(filepath.Join(home, ".docker"), 0o700); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
	if err := os.WriteFile(filepath.Join(home, ".docker", "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	push(t, ref.Name, sampleImage(t), remote.WithAuthFromKeychain(keychain))
	if _, err := openStore(t).Pull(t.Context(), ref, nil); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	var told atomic.Int32
	other := serveRegistry(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				told.Add(1)
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		})
	})
	if _, err := openStore(t).Pull(t.Context(), parse(t, other+"/private:1"), nil); err == nil || told.Load() != 0 {
		t.Errorf("another registry: %v, got credentials %d times", err, told.Load())
	}
}

// TestRegistry_Problems checks that each kind of registry error has its own remedy.
func TestRegistry_Problems(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("DOCKER_CONFIG", "")
	answer := func(status int) string {
		return serveRegistry(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v2/" && status != http.StatusUnauthorized {
					return // it speaks the protocol
				}
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				http.Error(w, `{"errors":[{"code":"DENIED"}]}`, status)
			})
		})
	}
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for host, want := range map[string]Problem{
		answer(http.StatusUnauthorized): Denied, answer(http.StatusForbidden): Denied,
		serveRegistry(t, func(h http.Handler) http.Handler { return h }): Missing,
		strings.TrimPrefix(closed.URL, "http://"):                        Unreachable,
		answer(http.StatusTeapot):                                        Other,
	} {
		_, err := openStore(t).Pull(t.Context(), parse(t, host+"/team/image:1"), nil)
		if got, ok := errors.AsType[*RegistryError](err); !ok || got.Problem != want || got.Registry != host {
			t.Errorf("got %+v (%v), want the problem %v of %s", got, err, want, host)
		}
	}
	// Parts of an image can be refused, too: a token may be for the manifest only.
	for part, want := range map[string]Problem{"config": Denied, "layer": Denied, "missing": Other, "elsewhere": Other} {
		img := sampleImage(t)
		config, err := img.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "expired", http.StatusForbidden) }))
		defer other.Close()
		var refuses atomic.Bool
		host := serveRegistry(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, digest, blob := strings.Cut(r.URL.Path, "/blobs/")
				switch {
				case !refuses.Load() || !blob || (digest == config.String()) != (part == "config"):
					h.ServeHTTP(w, r)
				case part == "missing":
					http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`, http.StatusNotFound)
				case part == "elsewhere":
					http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
				default:
					http.Error(w, `{"errors":[{"code":"DENIED"}]}`, http.StatusForbidden)
				}
			})
		})
		push(t, host+"/team/app:1", img)
		refuses.Store(true)
		_, err = openStore(t).Pull(t.Context(), parse(t, host+"/team/app:1"), nil)
		if got, ok := errors.AsType[*RegistryError](err); !ok || got.Problem != want || got.Registry != host {
			t.Errorf("%s: got %+v (%v), want the problem %v of %s", part, got, err, want, host)
		}
	}
	if got := problemOf(&net.OpError{Op: "dial", Err: &net.DNSError{Name: "nosuch.invalid", IsNotFound: true}}); got != Unreachable {
		t.Errorf("a name that does not resolve: got %v, want %v", got, Unreachable)
	}
}

// TestParseRef_ErrorsAreForPeople: the kind of an error is not in its text.
func TestParseRef_ErrorsAreForPeople(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := ParseRef("./none.tar")
	if want := `image "./none.tar": no such file or directory`; err == nil || err.Error() != want || !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestRegistry_BoundsManifests: a manifest beyond the limit is refused, also behind a
// redirect, and one below it is not.
func TestRegistry_BoundsManifests(t *testing.T) {
	for size, refused := range map[int]bool{maxManifest / 2: false, maxManifest + 1: true} {
		img := mutate.Annotations(sampleImage(t), map[string]string{"note": strings.Repeat("x", size)}).(v1.Image)
		host := serveRegistry(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/manifests/1") {
					http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
					return
				}
				if r.URL.Path == "/elsewhere" {
					b, err := img.RawManifest()
					if err != nil {
						t.Error(err)
					}
					w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
					w.Write(b)
					return
				}
				h.ServeHTTP(w, r)
			})
		})
		push(t, host+"/app:1", sampleImage(t)) // its config and layers
		_, err := openStore(t).Pull(t.Context(), parse(t, host+"/app:1"), nil)
		if errors.Is(err, ErrHostile) != refused || !refused && err != nil {
			t.Errorf("a manifest of %d bytes: got %v, want refused: %t", size, err, refused)
		}
	}
}

// TestRegistry_NeedsHTTPS: only a registry on this machine is asked without encryption.
func TestRegistry_NeedsHTTPS(t *testing.T) {
	asked := false
	tr := &transport{plain: true, registry: "127.0.0.1:5000", next: roundTripper(func(*http.Request) (*http.Response, error) { asked = true; return nil, io.EOF })}
	for url, want := range map[string]bool{
		"https://registry.example/v2/": true, "http://127.0.0.1:5000/v2/": true, "http://registry.example/v2/": false,
		"http://127.0.0.1:6000/": false, "http://169.254.169.254/latest/": false, "ftp://registry.example/": false,
	} {
		asked = false
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.RoundTrip(r); err == nil || asked != want {
			t.Errorf("%s: asked is %t, %v", url, asked, err)
		}
	}
	for host, want := range map[string]bool{"localhost:5000": true, "127.0.0.1": true, "[::1]:5000": true, "10.0.0.1:5000": false, "localhost.example": false, "registry.local": false} {
		if address.IsLoopback(host) != want {
			t.Errorf("%s: is this machine %t", host, !want)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// TestParseRef tells files from names.
func TestParseRef(t *testing.T) {
	t.Chdir(t.TempDir())
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"root", "layout"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"saved.tar", "layout/oci-layout", "a:b"} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"root": "dir:" + wd + "/root", "./layout": "oci:" + wd + "/layout", "saved.tar": "docker-archive:" + wd + "/saved.tar",
		"oci:layout:v1": "oci:" + wd + "/layout:v1", "oci:a:b": "oci:" + wd + "/a:b", "docker-archive:saved.tar:team/app:1": "docker-archive:" + wd + "/saved.tar:team/app:1",
		"dir:x": "dir:" + wd + "/x", "python:3.13-slim": "index.docker.io/library/python:3.13-slim", "docker://ghcr.io/a/b": "ghcr.io/a/b:latest",
	} {
		if got, err := ParseRef(text); err != nil || got.String() != want {
			t.Errorf("%s: got %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "./none", "/none", "~/none", "UPPER", "docker://", "a b", "name@sha256:12"} {
		if got, err := ParseRef(text); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: got %s, %v", text, got, err)
		}
	}
}
