// Package erofstest makes root file systems for tests that boot guests.
package erofstest

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/erofs"
)

// Busybox returns the path of a static busybox. If this machine has none, it skips the test or, with
// GLOVEBOX_TEST_COMPLETE set, after scripts/setup test, fails it.
func Busybox(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err == nil {
		var f *elf.File
		if f, err = elf.Open(path); err == nil {
			libraries, _ := f.ImportedLibraries() // none if the file has no dynamic section
			f.Close()
			if len(libraries) == 0 {
				return path
			}
		}
	}
	const missing = "no static busybox; type: apt-get install busybox-static"
	if os.Getenv("GLOVEBOX_TEST_COMPLETE") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// Applets returns the names under which busybox is found.
func Applets(t testing.TB) []string {
	t.Helper()
	out, err := exec.Command(Busybox(t), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// Root writes an EROFS image with busybox and what the engine contract demands of a root,
// and returns its path. change, if not nil, changes the root before; files it adds have
// their content in *content, to which it may append.
func Root(t testing.TB, change func(root *erofs.Inode, content *[]byte)) string {
	t.Helper()
	content, err := os.ReadFile(Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	busybox := &erofs.Inode{Mode: erofs.TypeRegular | 0o755, Size: int64(len(content))}
	dir := func(mode uint16, entries map[string]*erofs.Inode) *erofs.Inode {
		if entries == nil {
			entries = make(map[string]*erofs.Inode)
		}
		return &erofs.Inode{Mode: erofs.TypeDir | mode, Entries: entries}
	}
	bin := dir(0o755, map[string]*erofs.Inode{"busybox": busybox})
	for _, name := range Applets(t) {
		if name != "busybox" {
			bin.Entries[name] = &erofs.Inode{Mode: erofs.TypeSymlink | 0o777, Target: "busybox"}
		}
	}
	home := dir(0o755, nil)
	home.UID, home.GID = 1000, 1000
	root := dir(0o755, map[string]*erofs.Inode{
		"bin": bin, "usr": dir(0o755, map[string]*erofs.Inode{"bin": {Mode: erofs.TypeSymlink | 0o777, Target: "../bin"}}),
		"proc": dir(0o755, nil), "sys": dir(0o755, nil), "dev": dir(0o755, nil), ".glovebox": dir(0o755, nil),
		"tmp": dir(0o1777, map[string]*erofs.Inode{".glovebox": dir(0o700, nil)}), "var": dir(0o755, map[string]*erofs.Inode{"tmp": dir(0o1777, nil)}),
		"etc": dir(0o755, nil), "run": dir(0o755, nil), "root": dir(0o700, nil), "home": dir(0o755, map[string]*erofs.Inode{"user": home}),
	})
	if change != nil {
		change(root, &content)
	}
	path := filepath.Join(t.TempDir(), "root.erofs")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := erofs.Write(f, root, bytes.NewReader(content), [16]byte{'t'}); err != nil {
		t.Fatal(err)
	}
	return path
}
