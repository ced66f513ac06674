package embed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/owned"
)

func TestInstall_WritesTheAgentOnceAndReplacesATruncatedOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agents")
	b := []byte("#!/bin/sh\nexit 7\n")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := install(dir, bytes.NewReader(b))
			if err != nil || filepath.Dir(path) != dir {
				t.Errorf("got %q, %v", path, err)
			}
		})
	}
	wg.Wait()
	path, err := install(dir, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	if _, err := install(dir, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) || after.Mode().Perm() != 0o755 {
		t.Errorf("the file was written again or has mode %v", after.Mode())
	}
	// A truncated one is replaced.
	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	if path, err = install(dir, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != string(b) {
		t.Errorf("got %q", got)
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 1 {
		t.Errorf("left: %v", names)
	}
	p, err := Install(dir)
	if err != nil || len(p.Args) != 1 || p.Args[0] != Name {
		t.Errorf("got %+v, %v", p, err)
	}
	if fi, err := os.Stat(p.Path); err != nil || fi.Mode()&0o111 == 0 {
		t.Errorf("got %v, %v", fi, err)
	}
}

// TestInstall_ReplacesAnAgentOfTheSameSize: an agent with the right size and mode but
// other content is replaced.
func TestInstall_ReplacesAnAgentOfTheSameSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agents")
	b := []byte("#!/bin/sh\nexit 7\n")
	path, err := install(dir, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 8\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := install(dir, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(b) {
		t.Errorf("the agent is %q, %v", got, err)
	}
	// In a directory that others can write, they could replace it.
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := install(dir, bytes.NewReader(b)); !errors.Is(err, owned.ErrUnsafe) {
		t.Errorf("in a directory that everybody can write: %v", err)
	}
}

// TestFind verifies the whole file, not its name.
func TestFind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agents")
	b := []byte("#!/bin/sh\nexit 7\n")
	path, err := install(dir, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(b)
	sum := hex.EncodeToString(hash[:])
	for range 2 {
		if p, ok := Find(dir, sum); !ok || p.Path != path {
			t.Fatalf("got %+v, %t", p, ok)
		}
	}
	if _, ok := Find(dir, sum[:16]+strings.Repeat("0", 48)); ok {
		t.Error("found by the beginning of its hash")
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 88\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, ok := Find(dir, sum); ok {
		t.Error("found with other content")
	}
}
