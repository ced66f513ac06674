package embed

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestInstall_WritesTheAgentOnceAndReplacesATruncatedOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agents")
	b := []byte("#!/bin/sh\nexit 7\n")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := install(dir, b)
			if err != nil || filepath.Dir(path) != dir {
				t.Errorf("got %q, %v", path, err)
			}
		})
	}
	wg.Wait()
	path, err := install(dir, b)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	if _, err := install(dir, b); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) || after.Mode().Perm() != 0o755 {
		t.Errorf("the file was written again or has mode %v", after.Mode())
	}
	// A truncated one is replaced.
	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	if path, err = install(dir, b); err != nil {
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
