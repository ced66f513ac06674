//go:build unix

package consent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// Files that cannot be hashed do not make a definition unusable.
func TestFiles_NotHashed(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("loop.js", filepath.Join(dir, "loop.js")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.env"), 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large.js")
	write(t, large, "", 0o600)
	if err := os.Truncate(large, maxFile+1); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	if err := os.Chtimes(large, at, at); err != nil {
		t.Fatal(err)
	}
	s := define(dir, "node", "large.js", "loop.js")
	s.EnvFile = mcpjson.Literal("pipe.env")
	got, err := Files(t.Context(), s, mcpjson.Resolver{})
	want := []File{{large, "67108865 bytes of 2026-01-02T03:04:05.000000006Z"}, {filepath.Join(dir, "loop.js"), "unreadable"}, {filepath.Join(dir, "pipe.env"), "special"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Fatalf("%v, (-want +got)\n%s", err, diff)
	}
	for _, f := range got {
		if f.Hashed() {
			t.Errorf("%s is hashed", f.Path)
		}
	}
}

// The files of a definition together are not read without bound.
func TestFiles_BoundedTotal(t *testing.T) {
	dir := t.TempDir()
	args := []string{"node"}
	for _, name := range strings.Split("abcdef", "") {
		write(t, filepath.Join(dir, name+".js"), "", 0o600)
		if err := os.Truncate(filepath.Join(dir, name+".js"), maxFile); err != nil { // sparse
			t.Fatal(err)
		}
		args = append(args, name+".js")
	}
	files, err := Files(t.Context(), define(dir, args...), mcpjson.Resolver{})
	hashed := 0
	for _, f := range files {
		if f.Hashed() {
			hashed++
		}
	}
	if err != nil || len(files) != 6 || hashed != maxTotal/maxFile {
		t.Errorf("%d of %d files are hashed, %v, want %d", hashed, len(files), err, maxTotal/maxFile)
	}
}

func TestFiles_EndsWithContext(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "server.js"), "1", 0o600)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Files(ctx, define(dir, "node", "server.js"), mcpjson.Resolver{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// A cache reads a file again after any change, also one that keeps size and time.
func TestCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.js")
	write(t, path, "good", 0o600)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	id, ok := identityOf(info)
	if !ok {
		t.Skip("files have no identity here")
	}
	c := &Cache{}
	c.put(id, "cached")
	sum := func() string {
		t.Helper()
		left := int64(maxTotal)
		got, err := c.describe(t.Context(), path, &left)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := sum(); got != "cached" {
		t.Errorf("an unchanged file: %q", got)
	}
	for range 2 {
		// Wait until a write changes the file's times, whose resolution is limited.
		for deadline := time.Now().Add(time.Minute); ; {
			write(t, path, "evil", 0o600)
			if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
			now, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if after, _ := identityOf(now); after != id || time.Now().After(deadline) {
				break
			}
		}
		if got := sum(); !(File{SHA256: got}).Hashed() {
			t.Errorf("a changed file: %q", got)
		}
	}
	if len(c.sums) != 1 {
		t.Errorf("%d hashes, want 1: a file that has just changed may change again at the same time", len(c.sums))
	}
}

// Whether a definition is approved is known without its files.
func TestMatch(t *testing.T) {
	s := open(t)
	d := Definition{Server: "srv", Source: "/a", Hash: "h", Files: []File{{"/a/server.js", "1"}}}
	for _, tt := range []struct {
		hash string
		want State
	}{{"", Unknown}, {"h", Granted}, {"other", Changed}} {
		if tt.hash == "h" {
			if err := s.Grant(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := s.Match(Definition{Server: "srv", Source: "/a", Hash: tt.hash}); err != nil || got != tt.want {
			t.Errorf("Match(%q) = %s, %v, want %s", tt.hash, got, err, tt.want)
		}
	}
}
