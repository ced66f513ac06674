package image

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// TestRecall finds an image again, with and without a record of it, and names what an
// incomplete one lacks.
func TestRecall(t *testing.T) {
	state := t.TempDir()
	img, err := Toolchain(t.Context(), ToolchainConfig{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	key := img.Root.Key
	if _, err := Recall(state, key, Python); err == nil {
		t.Error("an image without a record is recalled")
	}
	if old, ok := img.Unrecorded(state, key); !ok || !reflect.DeepEqual(old.Root, img.Root) {
		t.Errorf("the image of an earlier version: got %+v, %t, want %+v", old, ok, img.Root)
	}
	for _, bad := range []string{"", "../x", "0123456789abcdef"} {
		if _, ok := img.Unrecorded(state, bad); ok {
			t.Errorf("there is an image %q", bad)
		}
	}
	if err := img.Remember(state); err != nil {
		t.Fatal(err)
	}
	got, err := Recall(state, key, Python)
	if err != nil || !reflect.DeepEqual(got.Root, img.Root) || !reflect.DeepEqual(got.Interpreters, img.Interpreters) {
		t.Errorf("got %+v, %v; want %+v", got, err, img)
	}
	gone := *img
	gone.Root.Key = "gone"
	gone.Interpreters = map[string]Interpreter{JavaScript: {Language: JavaScript, Path: "/nonexistent/node", Version: "20.20.2"}}
	if err := gone.Remember(state); err != nil {
		t.Fatal(err)
	}
	if _, err := Recall(state, "gone", JavaScript); err == nil || !strings.Contains(err.Error(), "made with node 20.20.2 at /nonexistent/node") {
		t.Errorf("without its node: %v", err)
	}
	if got, err := Recall(state, "gone", Python); err != nil || len(got.Interpreters) != 0 {
		t.Errorf("a box of the other language: %+v, %v", got, err)
	}
	if err := os.WriteFile(recordPath(state, key), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Recall(state, key, Python); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a damaged record: %v", err)
	}
}

// TestRecall_ReadsRecordsOfEarlierVersions reads a record as version 1 of the
// format has always been written.
func TestRecall_ReadsRecordsOfEarlierVersions(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	text := `{
	"format": 1,
	"root": {
		"Key": "k1",
		"Dir": "` + dir + `",
		"Binds": [
			{
				"Host": "/usr",
				"Guest": "/usr",
				"ReadOnly": true
			}
		]
	},
	"interpreters": {}
}`
	if err := os.MkdirAll(filepath.Dir(recordPath(state, "k1")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recordPath(state, "k1"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := Recall(state, "k1", Python)
	if err != nil {
		t.Fatal(err)
	}
	want := engine.Root{Key: "k1", Tree: &engine.Tree{Dir: dir, Binds: []engine.Mount{{Host: "/usr", Guest: "/usr", ReadOnly: true}}}}
	if !reflect.DeepEqual(img.Root, want) {
		t.Errorf("got %+v, want %+v", img.Root, want)
	}
	if err := img.Remember(state); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(recordPath(state, "k1")); err != nil || string(got) != text {
		t.Errorf("Remember writes another format: %s, %v", got, err)
	}
}

// TestRecall_DirectoryGone names a directory that was an image and is not there any more, for
// then no other file system takes its place.
func TestRecall_DirectoryGone(t *testing.T) {
	state, dir := t.TempDir(), filepath.Join(t.TempDir(), "root\nfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	img, err := Directory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := img.Remember(state); err != nil {
		t.Fatal(err)
	}
	if _, err := Recall(state, img.Root.Key, Python); err != nil {
		t.Errorf("while it is there: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	_, err = Recall(state, img.Root.Key, Python)
	if gone, ok := errors.AsType[*RemovedError](err); !ok || gone.Pulled || !strings.Contains(gone.Error(), `root\nfs`) {
		t.Errorf("after its removal: %v, want a *RemovedError with the name in one line", err)
	} else if public := gone.Public() + " " + gone.PublicRemedy(); strings.Contains(public, filepath.Dir(dir)) || !strings.Contains(public, img.Root.Key[:maxShownKey]) {
		t.Errorf("clients are told %q, want the key of the image and no path", public)
	}
}

// TestRemovedError_Public: clients learn the name of an image of a registry. Of one that came from
// a file they learn the digest, and no path of the host.
func TestRemovedError_Public(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for name, named := range map[string]bool{
		"python:3.13-slim": true, "registry.example.org:5000/app:1": true, "index.docker.io/library/oci@" + digest: true,
		"docker-archive:/srv/secret/app.tar": false, "oci:secret/layout:1": false, "/srv/secret/app.tar": false, "./secret": false, "~/secret": false,
	} {
		e := &RemovedError{Key: "k", Name: name, Digest: digest, Pulled: true}
		want := digest
		if named {
			want = name
		}
		for _, public := range []string{e.Public(), e.PublicRemedy()} {
			if !strings.Contains(public, want) || strings.Contains(public, "secret") || strings.Contains(public, "IMAGE") {
				t.Errorf("of %s, clients are told %q, want %s", name, public, want)
			}
		}
		if !strings.Contains(e.Error(), name) {
			t.Errorf("of %s, the operator is told %q", name, e)
		}
		e.Digest = "" // of a record of an earlier version
		if public := e.Public() + " " + e.PublicRemedy(); strings.Contains(public, "secret") || strings.Contains(public, "IMAGE") {
			t.Errorf("of %s without a digest, clients are told %q", name, public)
		}
	}
	if e := (&RemovedError{Key: "0123456789abcdef", Pulled: true}); !strings.Contains(e.Public(), "key 0123") || e.PublicRemedy() == "" {
		t.Errorf("of an image without a name, clients are told %q and %q", e.Public(), e.PublicRemedy())
	}
}

// TestRecall_RefusesOtherDirectories: a record cannot add directories of the host to an
// image.
func TestRecall_RefusesOtherDirectories(t *testing.T) {
	state := t.TempDir()
	skeleton := filepath.Join(state, "images", "k")
	if err := os.MkdirAll(skeleton, 0o755); err != nil {
		t.Fatal(err)
	}
	remember := func(dir string, hosts ...string) {
		t.Helper()
		img := Image{Root: engine.Root{Key: "k", Tree: &engine.Tree{Dir: dir}}}
		for _, host := range hosts {
			img.Root.Tree.Binds = append(img.Root.Tree.Binds, engine.Mount{Host: host, Guest: "/x" + host, ReadOnly: true})
		}
		if err := img.Remember(state); err != nil {
			t.Fatal(err)
		}
	}
	venv := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	remember(skeleton, "/usr", venv)
	if _, err := Recall(state, "k", Python); err != nil {
		t.Errorf("an ordinary image: %v", err)
	}
	for _, host := range []string{"/", "/etc", "/etc/passwd", "/home", "/var", "/proc/self/root", "/dev", state, filepath.Join(state, "images"), filepath.Dir(state), link} {
		remember(skeleton, "/usr", host)
		if _, err := Recall(state, "k", Python); err == nil {
			t.Errorf("an image that shows %s was recalled", host)
		}
		remember(host)
		if _, err := Recall(state, "k", Python); err == nil {
			t.Errorf("an image in %s was recalled", host)
		}
	}
	remember(skeleton, "/usr")
	if err := os.Chmod(recordPath(state, "k"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Recall(state, "k", Python); err == nil || !strings.Contains(err.Error(), "other users can write") {
		t.Errorf("a record that everybody can write: %v", err)
	}
}

// TestCache_RefusesOtherDirectories: a cached answer cannot add more of the host to an
// image than an interpreter's own answer.
func TestCache_RefusesOtherDirectories(t *testing.T) {
	found, err := find(t.Context(), FindOptions{})
	if err != nil || len(found) == 0 {
		t.Skipf("no interpreters: %v", err)
	}
	a := found[0]
	mark := a.Language + " 1"
	file := filepath.Join(t.TempDir(), "interpreters.json")
	save := func(a answer) *cache {
		t.Helper()
		c := openCache(file)
		c.put("/x", mark, a)
		if err := c.save(); err != nil {
			t.Fatal(err)
		}
		return openCache(file)
	}
	if _, ok := save(a).get("/x", mark); !ok {
		t.Fatalf("the answer %+v is not in the cache", a)
	}
	for _, need := range []string{"/", "/etc", "/etc/ssl", "/home", t.TempDir()} {
		bad := a
		bad.Needs = append([]string{need}, a.Needs...)
		if _, ok := save(bad).get("/x", mark); ok {
			t.Errorf("an answer that needs %s was used", need)
		}
	}
	save(a)
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, ok := openCache(file).get("/x", mark); ok {
		t.Error("an answer from a file that everybody can write was used")
	}
}
