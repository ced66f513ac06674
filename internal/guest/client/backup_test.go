package client_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestBackupAndUnpack moves a home directory from one guest to another. Files that do
// not fit or are not the user's are omitted, and an unchanged home is not sent again.
func TestBackupAndUnpack(t *testing.T) {
	l, g := newConn(t)
	home := func(p string) string { return filepath.Join(g.home, p) }
	must(t, os.MkdirAll(home("venv/bin"), 0o755))
	must(t, os.MkdirAll(home("volume/sub"), 0o755))
	must(t, os.MkdirAll(home("empty"), 0o700))
	must(t, os.WriteFile(home("volume/sub/theirs"), []byte("x"), 0o644))
	must(t, os.WriteFile(home("venv/run"), []byte("#!/bin/sh\n"), 0o755))
	must(t, os.WriteFile(home("data.csv"), []byte(strings.Repeat("a,b\n", 1000)), 0o640))
	must(t, os.Symlink("/usr/bin/python3", home("venv/bin/python")))
	// A file larger than any disk must neither be sent nor prevent the others from
	// being sent.
	must(t, os.WriteFile(home("0sparse"), nil, 0o644))
	must(t, os.Truncate(home("0sparse"), 1<<40))
	when := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	must(t, os.Chtimes(home("data.csv"), when, when))

	ask := protocol.Backup{MaxBytes: 1 << 20, Exclude: []string{home("volume")}}
	var b bytes.Buffer
	res, err := l.Backup(t.Context(), ask, &b)
	must(t, err)
	if res.Files != 2 || res.Omitted != 1 || !slices.Equal(res.Examples, []string{"0sparse"}) || res.Mark == "" || res.Unchanged {
		t.Errorf("got %+v", res)
	}

	ask.Unless = res.Mark
	var again bytes.Buffer
	same, err := l.Backup(t.Context(), ask, &again)
	must(t, err)
	if !same.Unchanged || again.Len() > 0 {
		t.Errorf("an unchanged home: got %+v and %d bytes", same, again.Len())
	}
	// New content of the same size with the old modification time: only the change time
	// differs.
	must(t, os.WriteFile(home("data.csv"), []byte(strings.Repeat("c,d\n", 1000)), 0o640))
	must(t, os.Chtimes(home("data.csv"), when, when))
	if other, err := l.Backup(t.Context(), ask, &again); err != nil || other.Unchanged || again.Len() == 0 {
		t.Errorf("a changed home: got %+v, %v and %d bytes", other, err, again.Len())
	}

	to, og := newConn(t)
	must(t, to.Unpack(t.Context(), &b))
	at := func(p string) string { return filepath.Join(og.home, p) }
	if got, err := os.ReadFile(at("data.csv")); err != nil || string(got) != strings.Repeat("a,b\n", 1000) {
		t.Errorf("data.csv: %d bytes, %v", len(got), err)
	}
	if fi, err := os.Stat(at("data.csv")); err != nil || fi.Mode().Perm() != 0o640 || !fi.ModTime().Equal(when) {
		t.Errorf("data.csv: %v, %v", fi, err)
	}
	if fi, err := os.Stat(at("venv/run")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("venv/run: %v, %v", fi, err)
	}
	if target, err := os.Readlink(at("venv/bin/python")); target != "/usr/bin/python3" {
		t.Errorf("link of a virtual environment leads to %q: %v", target, err)
	}
	if fi, err := os.Stat(at("empty")); err != nil || !fi.IsDir() {
		t.Errorf("empty: %v, %v", fi, err)
	}
	for _, p := range []string{"volume", "0sparse"} {
		if _, err := os.Lstat(at(p)); err == nil {
			t.Errorf("%s is in the backup", p)
		}
	}
}
