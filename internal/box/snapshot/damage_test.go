//go:build linux

package snapshot

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/crc32c"
)

// framed returns a file with a record and a right checksum.
func framed(version int, record string) string {
	b, _ := json.Marshal(frame{Format: version, Sum: crc32c.Of([]byte(record)), Record: json.RawMessage(record)})
	return string(b)
}

// TestRecord_Damaged damages a record in many ways.
func TestRecord_Damaged(t *testing.T) {
	elsewhere := t.TempDir()
	precious := filepath.Join(elsewhere, "precious")
	if err := os.WriteFile(precious, []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600) }
	}
	instead := func(name string, do func(path string) error) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			return errors.Join(os.Rename(path, filepath.Join(elsewhere, filepath.Base(dir)+"-"+name)), do(path))
		}
	}
	data := dataName(1)
	for name, c := range map[string]struct {
		spoil func(dir string) error
		stays bool // a sweep leaves it alone
	}{
		"empty":         {put(savedName, ""), false},
		"no JSON":       {put(savedName, "record"), false},
		"other JSON":    {put(savedName, `["box"]`), false},
		"deep JSON":     {put(savedName, strings.Repeat("[", 50_000)), false},
		"huge":          {put(savedName, `{"x":"`+strings.Repeat("x", 1<<20)+`"}`), false},
		"no format":     {put(savedName, framed(0, "{}")), false},
		"later format":  {put(savedName, framed(2, "{}")), true},
		"no class":      {put(savedName, framed(1, `{"gen":1,"saved":"2026-01-01T00:00:00Z"}`)), false},
		"path as class": {put(savedName, framed(1, `{"class":"../box","gen":1,"saved":"2026-01-01T00:00:00Z"}`)), false},
		"long name":     {put(savedName, framed(1, `{"class":"box","name":"`+blob(65)+`","gen":1,"saved":"2026-01-01T00:00:00Z"}`)), false},
		"negative":      {put(savedName, framed(1, `{"class":"box","bytes":-1,"gen":1,"saved":"2026-01-01T00:00:00Z"}`)), false},
		"enormous":      {put(savedName, framed(1, `{"class":"box","bytes":9223372036854775807,"gen":1,"saved":"2026-01-01T00:00:00Z"}`)), false},
		"path as data":  {put(savedName, framed(1, `{"class":"box","gen":"../x","saved":"2026-01-01T00:00:00Z"}`)), false},
		"no data named": {put(savedName, framed(1, `{"class":"box","saved":"2026-01-01T00:00:00Z"}`)), false},
		"other data":    {put(savedName, framed(1, `{"class":"box","gen":7,"saved":"2026-01-01T00:00:00Z"}`)), false},
		"flipped bit": {func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, savedName))
			b[strings.Index(string(b), "someone")] ^= 4
			return errors.Join(err, os.WriteFile(filepath.Join(dir, savedName), b, 0o600))
		}, false},
		"data missing": {instead(data, func(string) error { return nil }), false},
		"only later meta": {instead(savedName, func(path string) error {
			return put(metaName, framed(1, `{"class":"box","gen":1,"saved":"2026-01-01T00:00:00Z"}`))(filepath.Dir(path))
		}), false},
		"meta of later":    {put(metaName, framed(2, "{}")), true},
		"saved is a link":  {instead(savedName, func(path string) error { return os.Symlink(precious, path) }), true},
		"saved is twice":   {func(dir string) error { return os.Link(filepath.Join(dir, savedName), filepath.Join(dir, "twice")) }, true},
		"saved is a pipe":  {instead(savedName, func(path string) error { return syscall.Mkfifo(path, 0o600) }), true},
		"saved is a dir":   {instead(savedName, func(path string) error { return os.Mkdir(path, 0o700) }), true},
		"saved is open":    {func(dir string) error { return os.Chmod(filepath.Join(dir, savedName), 0o644) }, true},
		"data are a link":  {instead(data, func(path string) error { return os.Symlink(elsewhere, path) }), true},
		"data are a file":  {instead(data, func(path string) error { return os.WriteFile(path, nil, 0o600) }), true},
		"data are open":    {func(dir string) error { return os.Chmod(filepath.Join(dir, data), 0o755) }, true},
		"record is open":   {func(dir string) error { return os.Chmod(dir, 0o777) }, true},
		"record is a file": {func(dir string) error { return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)) }, true},
		"record is a link": {func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Symlink(elsewhere, dir)) }, true},
		"record is a link inside": {func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"-moved"), os.Symlink(filepath.Base(dir)+"-moved", dir))
		}, true},
		"somebody else's record": {func(dir string) error { return chown(dir) }, true},
		"somebody else's data":   {func(dir string) error { return chown(filepath.Join(dir, data)) }, true},
		"somebody else's saved":  {func(dir string) error { return chown(filepath.Join(dir, savedName)) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{})
			fine := stored(t, s, box("fine"), "fine")
			id := stored(t, s, box("a"), "data")
			dir := filepath.Join(s.dir, recordsDir, id)
			spoil(t, c.spoil, dir)
			for range 2 {
				_, err := s.Acquire(id)
				wantErr(t, "acquire", err, ErrDamaged)
				_, _, _, err = s.Read(id)
				wantErr(t, "read", err, ErrDamaged)
			}
			if got := list(t, s); len(got) == 0 || got[0].ID != fine && got[1].ID != fine {
				t.Errorf("listed: %+v", got)
			}
			removed := sweep(t, s)
			_, err := os.Lstat(dir)
			switch {
			case c.stays && (len(removed) > 0 || err != nil):
				t.Errorf("removed %+v, %v", removed, err)
			case !c.stays && (len(removed) != 1 || removed[0].ID != id || removed[0].Why != Damaged || !errors.Is(err, fs.ErrNotExist)):
				t.Errorf("not removed: %+v, %v", removed, err)
			}
			if c.stays {
				if err := s.Delete(id); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
			if got := list(t, s); len(got) != 1 || got[0].ID != fine {
				t.Errorf("left: %+v", got)
			}
			if b, err := os.ReadFile(precious); string(b) != "keep me" {
				t.Fatalf("elsewhere: %q, %v", b, err)
			}
		})
	}
}

// chown gives a file away, which only root can.
func chown(path string) error { return os.Chown(path, 12345, 12345) }

// spoil does what do says, or skips the test.
func spoil(t *testing.T, do func(dir string) error, dir string) {
	t.Helper()
	err := do(dir)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		t.Skipf("needs root: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestStore_KeepsForeignFiles puts files into the store that are not records.
func TestStore_KeepsForeignFiles(t *testing.T) {
	s := open(t, Config{})
	records := filepath.Join(s.dir, recordsDir)
	for _, name := range []string{"x", "lost+found", "...", strings.Repeat("n", 255), "a b\nc"} {
		if err := os.Mkdir(filepath.Join(records, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	before := len(tree(t, records))
	if got := list(t, s); len(got) > 0 {
		t.Errorf("listed: %+v", got)
	}
	if s.damaged.Load() {
		t.Error("each look-up of a box that is not there would scan the store again")
	}
	if removed := sweep(t, s); len(removed) > 0 || len(tree(t, records)) != before {
		t.Errorf("removed: %+v", removed)
	}
}

// TestMeta_TornByPowerFailure: a power failure leaves unsynced files in any state, and
// synced ones intact.
func TestMeta_TornByPowerFailure(t *testing.T) {
	for _, torn := range []string{"", "\x00\x00\x00", `{"format":1`, framed(1, `{"class":"box"}`), blob(maxEntry + 1)} {
		s := open(t, Config{})
		c := create(t, s, usedOn(1))
		write(t, c, usedOn(2), "data")
		if err := c.Update(usedOn(3)); err != nil {
			t.Fatal(err)
		}
		c.Release()
		if err := os.WriteFile(filepath.Join(s.dir, recordsDir, c.ID(), metaName), []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		if removed := sweep(t, s); len(removed) > 0 {
			t.Errorf("%.20q: removed %+v", torn, removed)
		}
		c, err := s.Acquire(c.ID())
		if err != nil {
			t.Errorf("%.20q: %v", torn, err)
			continue
		}
		if !c.Meta().Used.Equal(day(2)) || content(t, c.Dir()) != "data" {
			t.Errorf("%.20q: %+v", torn, c.Meta())
		}
		c.Release()
	}
}

// TestMeta_OlderThanSaved: after a power failure brings back older metadata, the store
// still knows that the box continued.
func TestMeta_OlderThanSaved(t *testing.T) {
	s := open(t, Config{})
	c := create(t, s, usedOn(1))
	write(t, c, usedOn(2), "data")
	if err := c.Update(usedOn(3)); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(s.dir, recordsDir, c.ID(), metaName)
	old, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	for _, live := range []bool{true, false, true} {
		m := usedOn(4)
		m.Stale = live
		if err := c.Update(m); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(meta, old, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := list(t, s); len(got) != 1 || got[0].Stale != live || !got[0].Used.Equal(day(3)) {
			t.Errorf("live %t: %+v", live, got)
		}
	}
}

func TestOpen_InvalidDirectory(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(dir string) error{
		"a file": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"records elsewhere": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink(link, filepath.Join(dir, recordsDir)))
		},
		"trash elsewhere": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink(link, filepath.Join(dir, trashDir)))
		},
		"lock elsewhere": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "x"), nil, 0o600), os.Symlink("x", filepath.Join(dir, lockName)))
		},
		"somebody else's": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), chown(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(dir, name)
			spoil(t, do, dir)
			if s, err := Open(Config{Dir: dir}); err == nil {
				s.Close()
				t.Error("opened")
			}
		})
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: open})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if info, err := os.Stat(open); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
