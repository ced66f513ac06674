//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/erofs"
	"github.com/glovebox-dev/glovebox/internal/erofs/erofstest"
)

// fileSpec returns a spec whose root is an EROFS image with a file of each kind of access.
func fileSpec(t *testing.T) *engine.Spec {
	t.Helper()
	spec := newSpec(t)
	file := erofstest.Root(t, func(root *erofs.Inode, content *[]byte) {
		add := func(name string, mode uint16, owner uint32, text string) {
			root.Entries["etc"].Entries[name] = &erofs.Inode{Mode: erofs.TypeRegular | mode, UID: owner, GID: owner, Offset: int64(len(*content)), Size: int64(len(text))}
			*content = append(*content, text...)
		}
		add("mark", 0o644, 0, "of the image\n")
		add("shadow", 0o600, 0, "of root\n")
		add("mine", 0o600, engine.UserID, "of the user\n")
		add("script", 0o4755, 0, "#!/bin/sh\necho ran as $(id -u)\n")
	})
	spec.Root = engine.Root{Key: "file", Tree: &engine.Tree{File: file}}
	return spec
}

// TestFile boots guests from an EROFS image: its owners and modes apply, for the user as
// for root, with and without a gofer, and after a restore.
func TestFile(t *testing.T) {
	e := open(t)
	plain, volumes := fileSpec(t), withVolume(t, fileSpec(t))
	look := func(b *box) {
		t.Helper()
		for _, tc := range [][2]string{
			{"sh cat /etc/mark /etc/shadow", "of the image\nof root\n"},
			{"shu cat /etc/mark /etc/mine", "of the image\nof the user\n"},
			{"shu cat /etc/shadow 2>&1; true", "cat: can't open '/etc/shadow': Permission denied\n"},
			{"shu /etc/script", "ran as 1000\n"},
			{"shu stat -c '%u %a %h' /etc/script", "0 4755 1\n"},
			{"shu (echo x > /etc/mark) 2>&1; true", "can't create /etc/mark: Permission denied\n"},
			{"sh echo changed > /etc/run && cat /etc/run", "changed\n"},
			{"sh stat -c %a /.glovebox/agent", "755\n"},
			{"sh echo x 2>&1 > /.glovebox/agent; echo $?", "1\n"},
			{"sh rm -r /etc/mark && ls /etc/mark 2>&1; echo back", "ls: /etc/mark: No such file or directory\nback\n"},
		} {
			command, want := tc[0], tc[1]
			if got := b.ask(t, command); !strings.HasSuffix(got, want) {
				t.Errorf("%s: %s: got %q, want %q", b.ID(), command, got, want)
			}
		}
	}
	for name, spec := range map[string]*engine.Spec{"plain": plain, "volumes": volumes} {
		b := create(t, e, name, spec)
		dir := snapshotOf(t, e, b)
		look(b)
		look(restore(t, e, name+"-restored", spec, dir))
	}
}

// TestFile_OfAnotherContent: a snapshot is not restored on an image with another
// superblock, and what is no image boots no guest.
func TestFile_OfAnotherContent(t *testing.T) {
	e := open(t)
	spec := fileSpec(t)
	dir := snapshotOf(t, e, create(t, e, "original", spec))
	other := filepath.Join(t.TempDir(), "other.erofs")
	content, err := os.ReadFile(spec.Root.Tree.File)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(other, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	content[1024+48] ^= 1 // its identity; the checksum does not fit any more
	changed := *spec
	changed.Root = engine.Root{Key: "file", Tree: &engine.Tree{File: other}}
	for name, b := range map[string][]byte{"damaged superblock": content, "empty": nil, "text": []byte(strings.Repeat("no image", 1000)), "half": content[:5000]} {
		write(b)
		if g, err := e.Create(t.Context(), "other", &changed); err == nil {
			t.Errorf("%s: it boots", name)
			g.Destroy(t.Context())
		}
		if g, err := e.Restore(t.Context(), "other", &changed, engine.Snapshot{Dir: dir}); err == nil {
			t.Errorf("%s: a guest is restored on it", name)
			g.Destroy(t.Context())
		}
	}
	missing := *spec
	missing.Root = engine.Root{Key: "file", Tree: &engine.Tree{File: other + "-missing"}}
	if _, err := e.Create(t.Context(), "missing", &missing); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a missing image: %v", err)
	}
	missing.Root.Tree.File = t.TempDir()
	if _, err := e.Create(t.Context(), "missing", &missing); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a directory as image: %v", err)
	}
	// The image that it was made on is still good.
	restore(t, e, "restored", spec, dir)
}
