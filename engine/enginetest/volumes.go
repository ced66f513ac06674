package enginetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func volumesTests() []test {
	return []test{
		{"guest-reads-what-the-host-wrote", testVolumeRead},
		{"host-reads-what-the-guest-wrote", testVolumeWrite},
		{"read-only-volume-is-read-only", testVolumeReadOnly},
		{"frozen-volume-is-read-only", testVolumeFrozen},
		{"volume-is-another-after-a-restore", testVolumeExchanged},
		{"volume-outlives-the-guest", testVolumeOutlives},
		{"guests-share-a-volume", testVolumeShared},
		{"volume-belongs-to-the-user", testVolumeUser},
		{"file-can-be-a-volume", testVolumeFile},
		{"volume-does-not-open-the-host", testVolumeLinks},
	}
}

// withVolume boots a guest that sees host at /mnt/volume. It skips the test on
// engines without volumes.
func (t *tester) withVolume(host string, readOnly bool) *box {
	t.Helper()
	return t.withMount(engine.Mount{Host: host, Guest: "/mnt/volume", ReadOnly: readOnly})
}

// withMount boots a guest with a volume, as withVolume.
func (t *tester) withMount(m engine.Mount) *box {
	t.Helper()
	spec := t.spec()
	spec.Mounts = []engine.Mount{m}
	var g engine.Guest
	err := t.call("create", func(ctx context.Context) (err error) {
		g, err = t.e.Create(ctx, newID(), spec)
		return err
	})
	if errors.Is(err, engine.ErrUnsupported) {
		t.Skip("the engine has no volumes")
	}
	t.must("create with a volume", err)
	return t.own(g).talk()
}

// volume returns a directory of the host with a file in it. It is world-writable, so that
// the host id of the guest's user does not matter.
func (t *tester) volume() string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	t.must("find directory", err)
	file := filepath.Join(dir, "file")
	t.must("write", os.WriteFile(file, []byte("of the host\n"), 0o666))
	t.must("change mode", errors.Join(os.Chmod(file, 0o666), os.Chmod(dir, 0o777)))
	return dir
}

func testVolumeRead(t *tester) {
	dir := t.volume()
	b := t.withVolume(dir, false)
	if got := b.sh("cat /mnt/volume/file"); got != "of the host\n" {
		t.Errorf("the guest reads %q", got)
	}
	t.must("write", os.WriteFile(filepath.Join(dir, "later"), []byte("later\n"), 0o644))
	if got := b.sh("cat /mnt/volume/later"); got != "later\n" {
		t.Errorf("the guest reads %q from a file that the host wrote meanwhile", got)
	}
}

func testVolumeWrite(t *tester) {
	dir := t.volume()
	b := t.withVolume(dir, false)
	b.sh("echo of the guest > /mnt/volume/new; rm /mnt/volume/file")
	if got := content(filepath.Join(dir, "new")); got != "of the guest\n" {
		t.Errorf("the host reads %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err == nil {
		t.Error("a file that the guest removed is still there")
	}
}

func testVolumeReadOnly(t *tester) {
	dir := t.volume()
	b := t.withVolume(dir, true)
	for _, line := range []string{"echo x > /mnt/volume/new", "echo x >> /mnt/volume/file", "rm /mnt/volume/file", "chmod 777 /mnt/volume/file", "mount -o remount,rw /mnt/volume && echo x > /mnt/volume/new"} {
		if r := b.exec(protocol.Exec{Shell: line}, nil); r.err != nil || r.Code == 0 {
			t.Errorf("%s: exit code %d, %v; want a failure", line, r.Code, r.err)
		}
	}
	if got := content(dir) + content(filepath.Join(dir, "file")); got != "fileof the host\n" {
		t.Errorf("after the guest the volume holds %q", got)
	}
}

// writes are ways to write to the volume of withVolume; all are refused in a frozen one.
var writes = []string{"echo x > /mnt/volume/new", "echo x >> /mnt/volume/file", "rm /mnt/volume/file", "mkdir /mnt/volume/d",
	"mount -o remount,rw /mnt/volume && echo x > /mnt/volume/new"}

func testVolumeFrozen(t *tester) {
	dir := t.volume()
	b := t.withMount(engine.Mount{Host: dir, Guest: "/mnt/volume", Frozen: true})
	for _, line := range writes {
		if r := b.exec(protocol.Exec{Shell: line}, nil); r.err == nil && r.Code == 0 {
			t.Errorf("%s: in a frozen volume, it succeeded", line)
		}
	}
	// An engine may report success for a change of the mode that had no effect.
	b.exec(protocol.Exec{Shell: "chmod 700 /mnt/volume; chmod 600 /mnt/volume/file; touch -d @1000000000 /mnt/volume/file"}, nil)
	for _, path := range []string{dir, filepath.Join(dir, "file")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o066 != 0o066 || info.ModTime().Unix() == 1000000000 {
			t.Errorf("%s is changed on the host: %v, %v", path, info, err)
		}
	}
	if got := b.sh("cat /mnt/volume/file; ls /mnt/volume /mnt/volume/.. >/dev/null && echo listed"); got != "of the host\nlisted\n" {
		t.Errorf("the guest reads %q", got)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("after the guest the volume holds %v, %v", list, err)
	}
}

// testVolumeExchanged restores a snapshot with the directory of another owner, which is
// frozen, and that with the first one again.
func testVolumeExchanged(t *tester) {
	first, second := t.volume(), t.volume()
	t.must("write", os.WriteFile(filepath.Join(second, "second"), []byte("second\n"), 0o666))
	b := t.withVolume(first, false)
	b.sh("echo first > /mnt/volume/first; cat /mnt/volume/file >/dev/null")
	taken := b.snapshot()
	spec := t.spec()
	spec.Mounts = []engine.Mount{{Host: second, Guest: "/mnt/volume", Frozen: true}}
	other := t.restore(spec, taken).wake()
	if got := other.sh("ls /mnt/volume; cat /mnt/volume/second"); got != "file\nsecond\nsecond\n" {
		t.Errorf("restored with another volume, the guest sees %q", got)
	}
	for _, line := range writes {
		if r := other.exec(protocol.Exec{Shell: line}, nil); r.err == nil && r.Code == 0 {
			t.Errorf("%s: in a volume that is frozen since the snapshot, it succeeded", line)
		}
	}
	again := *spec
	again.Mounts = []engine.Mount{{Host: first, Guest: "/mnt/volume"}}
	back := t.restore(&again, other.snapshot()).wake()
	back.sh("echo thawed > /mnt/volume/thawed")
	if got, err := os.ReadFile(filepath.Join(first, "thawed")); string(got) != "thawed\n" {
		t.Errorf("after the restore without freezing the volume holds %q, %v", got, err)
	}
	if list, err := os.ReadDir(second); err != nil || len(list) != 2 {
		t.Errorf("the other volume holds %v, %v", list, err)
	}
}

func testVolumeOutlives(t *tester) {
	dir := t.volume()
	first := t.withVolume(dir, false)
	first.sh("echo kept > /mnt/volume/kept")
	t.destroy(first)
	if got := t.withVolume(dir, false).sh("cat /mnt/volume/kept"); got != "kept\n" {
		t.Errorf("the next guest reads %q", got)
	}
}

func testVolumeShared(t *tester) {
	dir := t.volume()
	a, b := t.withVolume(dir, false), t.withVolume(dir, true)
	a.sh("echo for you > /mnt/volume/message")
	if got := b.sh("cat /mnt/volume/message"); got != "for you\n" {
		t.Errorf("the other guest reads %q", got)
	}
}

// testVolumeUser writes as the user to a directory that only its owner on the host may write.
func testVolumeUser(t *tester) {
	dir := t.volume()
	t.must("change mode", os.Chmod(dir, 0o755))
	spec := t.spec()
	spec.Mounts = []engine.Mount{{Host: dir, Guest: "/mnt/volume"}}
	t.withVolume(dir, false) // skips without volumes
	b := t.create(spec).talk()
	r := b.exec(protocol.Exec{Shell: "cd /mnt/volume && echo mine > new && rm file && mkdir d && echo mine > d/new && cat new"}, nil)
	if r.err != nil || r.Code != 0 {
		t.Skipf("the engine does not give volumes to the user: %s%v", r.stderr, r.err)
	}
	if r.stdout != "mine\n" {
		t.Errorf("the user reads %q", r.stdout)
	}
	want, err := os.Stat(dir)
	t.must("look at volume", err)
	for _, name := range []string{"new", "d", "d/new"} {
		got, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("what the user made: %v", err)
		} else if !sameOwner(got, want) {
			t.Errorf("%s, which the user made, belongs to another one on the host than the volume", name)
		}
	}
}

func testVolumeFile(t *tester) {
	file := filepath.Join(t.volume(), "file")
	if got := t.withVolume(file, true).sh("cat /mnt/volume"); got != "of the host\n" {
		t.Errorf("the guest reads %q", got)
	}
}

// testVolumeLinks follows symbolic links and .. out of a volume.
func testVolumeLinks(t *tester) {
	dir, outside := t.volume(), t.volume()
	secret := filepath.Join(outside, "file")
	t.must("link", os.Symlink(secret, filepath.Join(dir, "link")))
	t.must("link", os.Symlink(outside, filepath.Join(dir, "directory")))
	b := t.withVolume(dir, false)
	b.sh("ln -s " + secret + " /mnt/volume/own")
	for _, path := range []string{"link", "directory/file", "own", "../" + filepath.Base(outside) + "/file"} {
		if r := b.exec(protocol.Exec{Argv: []string{"cat", "/mnt/volume/" + path}}, nil); r.Code == 0 {
			t.Errorf("by way of %s the guest reads %q from outside the volume", path, r.stdout)
		}
	}
}

// content returns what a file holds, or the names in a directory; "" for neither.
func content(name string) string {
	if entries, err := os.ReadDir(name); err == nil {
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, "\n")
	}
	b, _ := os.ReadFile(name)
	return string(b)
}
