//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// owner returns the owner of a host path.
func owner(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

func TestVolume_OfGuestUser(t *testing.T) {
	e := open(t)
	type test struct{ uid, gid int }
	tests := []test{{0, 0}}
	if holdsAll(e.vols.uids) {
		tests = append(tests, test{4711, 4712}, test{1000, 1000}, test{0, 1000}, test{1000, 0}, test{65534, 65534})
	}
	spec := newSpec(t)
	create(t, e, "warm", spec).Destroy(t.Context()) // its tree stays
	for _, tt := range tests {
		want := fmt.Sprintf("%d:%d", tt.uid, tt.gid)
		t.Run(want, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			if err := os.MkdirAll(at("deep/er"), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string]string{"old": "of the host", "secret": "of the owner", "deep/old": "deep", "gone": "x"} {
				if err := os.WriteFile(at(name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"", "old", "secret", "gone", "deep", "deep/er", "deep/old"} {
				if err := os.Chown(at(name), tt.uid, tt.gid); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), "file")
			os.WriteFile(file, []byte("one"), 0o644)
			os.Chown(file, tt.uid, tt.gid)
			spec := *spec
			spec.Mounts = []engine.Mount{{Host: dir, Guest: "/shared/input"}, {Host: file, Guest: "/home/user/file"}}
			before := held(t)
			b := create(t, e, "owned", &spec)
			sh := func(want, script string) {
				t.Helper()
				if got := b.ask(t, "shu cd /shared/input && "+script); got != want {
					t.Errorf("%s: %q, want %q", script, got, want)
				}
			}
			sh("1000:1000\n1000:1000\n1000:1000\n", "stat -c %u:%g . old deep/er")
			sh("of the hostof the owner", "cat old secret")
			sh("", "echo -n inside >new && echo -n changed >old && echo -n more >>deep/old")
			sh("", "mkdir -p a/b && echo -n nested >a/b/c && ln -s new link && ln new hard")
			sh("", "mv a/b/c deep/er/moved && mv deep/er newer && rm gone && rmdir a/b")
			sh("", "chmod 640 new && touch -d @1000000000 new && chmod 700 deep")
			sh("", "echo -n two >/home/user/file")
			sh("200\n", "i=0; while [ $i -lt 200 ]; do echo $i >f$i; i=$((i+1)); done; ls f* | wc -l")
			for name, content := range map[string]string{"new": "inside", "old": "changed", "deep/old": "deepmore", "newer/moved": "nested", "hard": "inside"} {
				if got, err := os.ReadFile(at(name)); string(got) != content {
					t.Errorf("%s on the host: %q, %v", name, got, err)
				}
			}
			for _, name := range []string{"", "new", "old", "a", "link", "newer/moved", "f7"} {
				if got := owner(t, at(name)); got != want {
					t.Errorf("%q belongs to %s, want %s", name, got, want)
				}
			}
			if got, err := os.ReadFile(file); string(got) != "two" || owner(t, file) != want {
				t.Errorf("file: %q, %v, %s", got, err, owner(t, file))
			}
			for _, name := range []string{"gone", "a/b"} {
				if _, err := os.Lstat(at(name)); !os.IsNotExist(err) {
					t.Errorf("%s is not gone: %v", name, err)
				}
			}
			if info, err := os.Stat(at("new")); err != nil || info.Mode().Perm() != 0o640 || info.ModTime().Unix() != 1000000000 {
				t.Errorf("new: %v, %v", info, err)
			}
			// The guest sees changes that the host makes while it runs.
			if err := os.WriteFile(at("late"), []byte("from the host"), 0o600); err != nil {
				t.Fatal(err)
			}
			os.Chown(at("late"), tt.uid, tt.gid)
			os.WriteFile(at("old"), []byte("once more"), 0o600)
			sh("from the host", "cat late && echo -n and back >late")
			sh("once more", "cat old")
			if got, _ := os.ReadFile(at("late")); string(got) != "and back" {
				t.Errorf("late on the host: %q", got)
			}
			if err := b.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			after := held(t)
			for _, what := range []string{"mounts", "processes", "descriptors"} {
				if after[what] != before[what] {
					t.Errorf("%d %s before, %d after", before[what], what, after[what])
				}
			}
		})
	}
}

func TestVolume_LeadsNowhere(t *testing.T) {
	e := open(t)
	outside, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("host only"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"abs": secret, "dir": outside, "shadow": "/etc/shadow", "up": "../../../../../.." + secret, "proc": "/proc/1/root" + secret} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	ro := t.TempDir()
	os.WriteFile(filepath.Join(ro, "file"), []byte("host"), 0o666)
	os.Chmod(ro, 0o777)
	spec := newSpec(t)
	spec.Mounts = []engine.Mount{
		{Host: dir, Guest: "/shared/rw"},
		{Host: ro, Guest: "/shared/ro", ReadOnly: true},
		{Host: dir, Guest: "/shared/same", ReadOnly: true},
		{Host: dir, Guest: "/shared/twice"},
	}
	b := create(t, e, "links", spec)
	for _, cmd := range []string{"sh", "shu"} {
		for _, name := range []string{"abs", "dir/secret", "shadow", "up", "proc"} {
			if got := b.ask(t, cmd+" cat /shared/rw/"+name); strings.Contains(got, "host only") || !strings.Contains(got, "No such file") && !strings.Contains(got, "ermission denied") {
				t.Errorf("%s reads %s: %q", cmd, name, got)
			}
		}
		for _, script := range []string{
			"echo x >/shared/ro/file", "echo x >/shared/ro/new", "rm /shared/ro/file", "mkdir /shared/ro/d",
			"mv /shared/ro/file /shared/ro/other", "chmod 700 /shared/ro/file", "ln -s x /shared/ro/link", "echo x >/shared/same/new",
		} {
			if got := b.ask(t, cmd+" "+script); !strings.Contains(got, "ead-only") && !strings.Contains(got, "ermi") {
				t.Errorf("%s %s: %q", cmd, script, got)
			}
		}
	}
	for _, name := range []string{"abs", "dir/secret", "dir/new", "up", "proc"} {
		b.ask(t, "sh echo inside >/shared/rw/"+name)
		b.ask(t, "shu echo inside >/shared/rw/"+name)
	}
	if got := b.ask(t, "shu echo new >/shared/rw/both && cat /shared/twice/both /shared/same/both /shared/ro/file"); got != "new\nnew\nhost" {
		t.Errorf("the same directory thrice: %q", got)
	}
	if got, err := os.ReadFile(secret); string(got) != "host only" {
		t.Errorf("secret: %q, %v", got, err)
	}
	if entries, err := os.ReadDir(ro); len(entries) != 1 {
		t.Errorf("read-only volume: %v, %v", entries, err)
	}
	if entries, err := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("outside of the volume: %v, %v", entries, err)
	}
	// No device works, whichever user creates it.
	b.ask(t, "sh mknod /shared/rw/dev c 1 3")
	if _, err := os.Lstat(filepath.Join(dir, "dev")); err == nil {
		t.Error("a guest has made a device")
	}
}

// TestVolume_FilesOfOtherUsers has files in a volume that belong to neither its owner nor
// the guest's user.
func TestVolume_FilesOfOtherUsers(t *testing.T) {
	e := open(t)
	if !holdsAll(e.vols.uids) {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	os.Chown(dir, 4711, 4712)
	for name, uid := range map[string]int{"roots": 0, "users": 1000, "others": 4713, "groups": 4711} {
		os.WriteFile(filepath.Join(dir, name), []byte("of the host"), 0o640)
		os.Chown(filepath.Join(dir, name), uid, 4800)
	}
	spec := newSpec(t)
	spec.Mounts = []engine.Mount{{Host: dir, Guest: "/shared"}}
	b := create(t, e, "others", spec)
	for _, name := range []string{"roots", "users", "others"} {
		if got := b.ask(t, "shu cat /shared/"+name+"; echo x >/shared/"+name); strings.Count(got, "ermission denied") != 2 {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := b.ask(t, "shu echo inside >/shared/groups && stat -c %u:%g /shared/groups"); got != "1000:4800\n" {
		t.Errorf("file in another group: %q", got)
	}
	// The guest's root is not the host's.
	b.ask(t, "sh cp /bin/sh /shared/shell && chmod 6755 /shared/shell")
	if got := owner(t, filepath.Join(dir, "shell")); strings.HasPrefix(got, "0:") {
		t.Errorf("a program of the guest's root belongs to %s", got)
	}
	if got := b.ask(t, "sh chown 0:0 /shared/groups && stat -c %u /shared/groups"); !strings.HasPrefix(got, "0\n") {
		t.Logf("chown: %q", got)
	}
	if got := owner(t, filepath.Join(dir, "groups")); strings.HasPrefix(got, "0:") {
		t.Errorf("the guest's root has given a file to the host's")
	}
}

// TestVolume_WithoutIDMapping uses a file system that does not support id mappings.
func TestVolume_WithoutIDMapping(t *testing.T) {
	e := open(t)
	if !holdsAll(e.vols.uids) {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "ramfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	for name, uid := range map[string]int{"roots": 0, "others": 4711, "open": 4711} {
		os.Mkdir(filepath.Join(dir, name), 0o755)
		os.Chown(filepath.Join(dir, name), uid, uid)
	}
	os.Chmod(filepath.Join(dir, "open"), 0o777)
	closed := t.TempDir() // what the gofer must reach although it is another's
	os.WriteFile(filepath.Join(closed, "file"), []byte("mapped"), 0o600)
	for _, name := range []string{"file", ""} {
		os.Chown(filepath.Join(closed, name), 4711, 4711)
	}
	os.Chmod(closed, 0o700)
	if tree, err := e.vols.mapOwner(dir, make(spaces)); err == nil {
		tree.Close()
		t.Skip("ramfs lets owners be mapped")
	}
	spec := newSpec(t)
	spec.Mounts = []engine.Mount{
		{Host: filepath.Join(dir, "roots"), Guest: "/shared/roots"},
		{Host: filepath.Join(dir, "others"), Guest: "/shared/others"},
		{Host: filepath.Join(dir, "open"), Guest: "/shared/open"},
		{Host: closed, Guest: "/shared/mapped"},
		{Host: closed, Guest: "/shared/closed", ReadOnly: true},
	}
	b := create(t, e, "refused", spec)
	if got := b.ask(t, "shu cat /shared/mapped/file; echo x >/shared/mapped/new"); got != "mapped" {
		t.Errorf("mapped volume beside: %q", got)
	}
	if got := b.ask(t, "shu echo inside >/shared/roots/new; stat -c %u:%g /shared/roots/new"); got != "1000:1000\n" {
		t.Errorf("volume of root: %q", got)
	}
	if got := owner(t, filepath.Join(dir, "roots/new")); got != "0:0" {
		t.Errorf("new file belongs to %s", got)
	}
	if got := b.ask(t, "shu echo inside >/shared/others/new"); !strings.Contains(got, "ermission denied") {
		t.Errorf("volume of another: %q", got)
	}
	if got := b.ask(t, "shu echo inside >/shared/open/new; stat -c %u:%g /shared/open/new"); got != "1000:1000\n" {
		t.Errorf("volume open to all: %q", got)
	}
	if got := b.ask(t, "shu cat /shared/closed/file"); !strings.Contains(got, "ermission denied") {
		t.Errorf("read-only volume closed to others: %q", got)
	}
	if got := b.ask(t, "sh stat -c %u /usr /bin/sh /home"); got != "65534\n65534\n65534\n" {
		t.Errorf("owners in the root: %q", got)
	}
}

// TestVolume_UnmappedIsLoggedOnce: a volume whose owners cannot be mapped at all is mounted
// as it is, and one warning says that guests cannot write it.
func TestVolume_UnmappedIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	v := newVolumes(slog.New(slog.NewTextHandler(&log, nil)))
	v.uids = v.uids[:0] // as in a user namespace
	v.nests = func() error { return unix.ENOSPC }
	dir := t.TempDir()
	for range 3 {
		s, err := v.open([]engine.Mount{{Host: dir, Guest: "/shared"}, {Host: dir, Guest: "/ro", ReadOnly: true}})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range s.list {
			if m.how != asIs {
				t.Errorf("owners of %s: mapping %v, want none", m.Guest, m.how)
			}
		}
		s.close()
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "cannot write") || !strings.Contains(got, dir) || !strings.Contains(got, "fix=") {
		t.Errorf("log: %s", got)
	}
}

func TestSwapIDs(t *testing.T) {
	type ids = [][3]int // inside, outside, how many
	all := ids{{0, 0, allIDs}}
	for _, tt := range []struct {
		ids  ids
		a, b int
		want ids
	}{
		{ids{{0, 0, 1}}, 0, 1000, ids{{1000, 0, 1}}},
		{all, 0, 1000, ids{{1000, 0, 1}, {1, 1, 999}, {0, 1000, 1}, {1001, 1001, allIDs - 1001}}},
		{all, 1000, 1000, ids{{0, 0, 1000}, {1000, 1000, 1}, {1001, 1001, allIDs - 1001}}},
		{all, 4711, 1000, ids{{0, 0, 1000}, {4711, 1000, 1}, {1001, 1001, 3710}, {1000, 4711, 1}, {4712, 4712, allIDs - 4712}}},
		{ids{{0, 0, 1}, {1, 1, 65536}}, 0, 1000, ids{{1000, 0, 1}, {1, 1, 999}, {0, 1000, 1}, {1001, 1001, 64536}}},
		{nil, 0, 1000, nil},
	} {
		var in []syscall.SysProcIDMap
		for _, r := range tt.ids {
			in = append(in, syscall.SysProcIDMap{ContainerID: r[0], HostID: r[1], Size: r[2]})
		}
		var got ids
		for _, m := range swapIDs(in, tt.a, tt.b) {
			got = append(got, [3]int{m.ContainerID, m.HostID, m.Size})
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("swap %d and %d in %v: %v, want %v", tt.a, tt.b, tt.ids, got, tt.want)
		}
	}
}
