package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	name, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(name, "one")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	w := New(link)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan struct{}, 10)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx, func() { told <- struct{}{} })
	}()
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"written, same size", func() { write(name, "two") }},
		{"replaced by another", func() {
			write(name+".new", "two")
			if err := os.Rename(name+".new", name); err != nil {
				t.Fatal(err)
			}
		}},
		{"other permissions", func() {
			if err := os.Chmod(name, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		{"removed", func() {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}},
		{"there again", func() { write(name, "two") }},
		{"the link leads elsewhere", func() {
			write(name+".2", "two")
			if err := os.Symlink(name+".2", link+".new"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(link+".new", link); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		step.do()
		select {
		case <-told:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: change not reported", step.what)
		}
	}
	cancel()
	<-ended
	if len(told) != 0 {
		t.Errorf("%d reports without a change", len(told))
	}
}
