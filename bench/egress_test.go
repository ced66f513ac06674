//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// host returns a bench with the Python of this machine.
func host(t *testing.T) *bench {
	t.Helper()
	python, err := findPython(t.Context())
	if err != nil {
		t.Skipf("nothing to run: %v", err)
	}
	return &bench{options: options{python: python}}
}

// TestFetch_OnTheHost runs the client of the scenario egress against its server.
func TestFetch_OnTheHost(t *testing.T) {
	b := host(t)
	server, err := serveOutside()
	if err != nil {
		t.Fatal(err)
	}
	defer server.close()
	script, err := os.ReadFile("peers/fetch.py")
	if err != nil {
		t.Fatal(err)
	}
	calls := []string{
		fmt.Sprintf("requests('127.0.0.1', %d, 0.01, 0)", server.port),
		fmt.Sprintf("megabytes('127.0.0.1', %d, 0.01, 0)", server.port),
	}
	if exec.Command(b.python, "-m", "pip", "--version").Run() == nil {
		calls = append(calls, fmt.Sprintf("install('http://127.0.0.1:%d/simple', '127.0.0.1')", server.port))
	}
	for _, call := range calls {
		if x, err := printed(t.Context(), append(os.Environ(), "no_proxy=*"), b.python, "-c", string(script)+"\nprint("+call+")"); err != nil || x <= 0 {
			t.Errorf("%s: got %v, %v, want a number above 0", call, x, err)
		}
	}
}

// TestWriteImage_Layout follows the digests of an image to its layer, which has the shell,
// Python, and a module of it.
func TestWriteImage_Layout(t *testing.T) {
	b := host(t)
	dir := filepath.Join(t.TempDir(), "layout")
	made, err := b.writeImage(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	blob := func(d descriptor) []byte {
		t.Helper()
		digest := strings.TrimPrefix(d.Digest, "sha256:")
		data, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", digest))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != digest || int64(len(data)) != d.Size {
			t.Errorf("%s has digest %s and %d bytes, want %s and %d", d.MediaType, got, len(data), digest, d.Size)
		}
		return data
	}
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil || json.Unmarshal(text, &index) != nil || len(index.Manifests) != 1 {
		t.Fatalf("index.json: %s, %v, want one manifest", text, err)
	}
	if text := blob(index.Manifests[0]); json.Unmarshal(text, &manifest) != nil || len(manifest.Layers) != 1 {
		t.Fatalf("the manifest: %s, want one layer", text)
	}
	blob(manifest.Config)
	blob(manifest.Layers[0])
	modules := 0
	for name := range made.files {
		if strings.HasSuffix(name, "/json/decoder.py") {
			modules++
		}
	}
	if !made.files["/bin/sh"] || !made.files["/usr/bin/python3"] || modules == 0 {
		t.Errorf("%d files without /bin/sh, /usr/bin/python3 or Python's own module json", len(made.files))
	}
}
