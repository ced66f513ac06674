//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
)

// TestVolume_ReadOnlyBesideWritable: what only the owner of a read-only volume may read
// stays closed to code in a box that has writable volumes of the same owner, also in a guest
// that was restored, whatever order and place the volumes have.
func TestVolume_ReadOnlyBesideWritable(t *testing.T) {
	e := open(t)
	ro, rw, inner := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{ro, rw, inner} {
		for name, mode := range map[string]os.FileMode{"private": 0o600, "public": 0o644} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec := newSpec(t)
	spec.Mounts = []engine.Mount{
		{Host: ro, Guest: "/in", ReadOnly: true},
		{Host: rw, Guest: "/out"},
		{Host: inner, Guest: "/out/in", ReadOnly: true},
		{Host: rw, Guest: "/in/out"},
		{Host: filepath.Join(ro, "private"), Guest: "/one", ReadOnly: true},
		{Host: rw, Guest: "/same", ReadOnly: true},
	}
	check := func(b *box) {
		t.Helper()
		for _, dir := range []string{"/in", "/out/in", "/same"} {
			if got := b.ask(t, "shu cat "+dir+"/public "+dir+"/private; echo x >"+dir+"/new"); !strings.HasPrefix(got, "public") || strings.Contains(got, "private\n") || strings.Count(got, "ermission denied") != 2 {
				t.Errorf("%s: %q", dir, got)
			}
		}
		if got := b.ask(t, "shu cat /one"); !strings.Contains(got, "ermission denied") {
			t.Errorf("file as a volume: %q", got)
		}
		for _, dir := range []string{"/out", "/in/out"} {
			if got := b.ask(t, "shu cd "+dir+" && cat private && echo -n x >new && chmod 600 new && stat -c %u:%g new && rm new"); got != "private1000:1000\n" {
				t.Errorf("%s: %q", dir, got)
			}
		}
	}
	create(t, e, "warm", spec).Destroy(t.Context()) // its tree stays
	before := held(t)
	b := create(t, e, "first", spec)
	check(b)
	r := restore(t, e, "second", spec, snapshotOf(t, e, b))
	check(r)
	for _, b := range []*box{b, r} {
		if err := b.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	after := held(t)
	for _, what := range []string{"processes", "descriptors"} {
		if after[what] != before[what] {
			t.Errorf("%d %s before, %d after", before[what], what, after[what])
		}
	}
}

// TestVolume_OpenToAll has a writable volume of another user in which everybody may write,
// for a server that has no user of the host for the guest's.
func TestVolume_OpenToAll(t *testing.T) {
	e := open(t)
	if holds(e.vols.uids, engine.UserID) {
		t.Skip("needs an ordinary user")
	}
	dir := openDir(t)
	own, err := os.MkdirTemp(dir, "glovebox-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(own)
	spec := newSpec(t)
	spec.Mounts = []engine.Mount{{Host: dir, Guest: "/open"}}
	b := create(t, e, "open", spec)
	name := filepath.Base(own) + ".of-box"
	defer os.RemoveAll(filepath.Join(dir, name))
	if got := b.ask(t, "shu cd /open && mkdir "+name+" && cd "+name+" && echo -n inside >new && chmod 600 new && mv new kept && stat -c %u:%g kept && cat kept"); got != "1000:1000\ninside" {
		t.Errorf("in a volume open to all: %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(dir, name, "kept")); string(got) != "inside" {
		t.Errorf("on the host: %q, %v", got, err)
	}
}

// openDir returns a directory of another user in which everybody may write.
func openDir(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/var/tmp", "/dev/shm", "/tmp"} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err == nil && st.Uid != uint32(os.Geteuid()) && st.Mode&0o7 == 0o7 {
			return dir
		}
	}
	t.Skip("needs a directory of another user that is open to all")
	return ""
}

// TestVolume_OrdinaryUser runs the tests above as another user than root.
func TestVolume_OrdinaryUser(t *testing.T) {
	const user = 12345
	testAs(t, user, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}, "TestVolume_ReadOnlyBesideWritable", "TestVolume_OpenToAll")
}

// TestFixedSpec_NamesVolumes: the error about a snapshot of other volumes is in plain words.
func TestFixedSpec_NamesVolumes(t *testing.T) {
	of := fixedSpec{Mounts: []string{"/shared/in,ro", "/out,rw"}}
	if got, want := of.differs(fixedSpec{}), "of a box with the volumes /shared/in (read-only), /out, and boxes have no volumes now"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
