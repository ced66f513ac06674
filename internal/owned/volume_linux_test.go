package owned

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// volumeGroup is the group of a volume, of which the stranger is a member.
const volumeGroup = 54399

// asStranger calls f in a thread that runs as an ordinary user whose primary group has
// the same number, and who is in volumeGroup.
func asStranger(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run as another user")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		groups := []uint32{volumeGroup}
		// The functions of package syscall change all threads.
		for _, call := range [][4]uintptr{
			{syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0},
			{syscall.SYS_SETRESGID, stranger, stranger, stranger},
			{syscall.SYS_SETRESUID, stranger, stranger, stranger},
		} {
			if _, _, errno := syscall.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				done <- errno
				return
			}
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// open makes the directories that lead to dir accessible to the stranger, and safe.
func open(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		mode(t, dir, 0o755)
	}
}

// Volumes belong to root, and everybody or a group may write to them. In a container
// without other users that is this program; elsewhere the error has the remedy.
func TestDir_Volumes(t *testing.T) {
	t.Cleanup(func() { onlyUser = nil })
	for name, c := range map[string]struct {
		uid, gid int
		mode     os.FileMode
		below    string // the checked directory in the volume; empty for the volume
		alone    string // part of the error in a container without other users; empty: safe
		shared   string // the same elsewhere
	}{
		"emptyDir of Kubernetes":     {mode: 0o777, shared: "belongs to root, not to user 54321, who runs this program; type: sudo chown 54321 "},
		"volume with fsGroup":        {gid: volumeGroup, mode: 0o775 | os.ModeSetgid, shared: "type: sudo chown 54321 "},
		"tmpfs of docker":            {mode: 0o777 | os.ModeSticky, shared: "is shared with other users; use a directory in it, such as "},
		"directory of root":          {mode: 0o755, shared: "type: sudo chown 54321 "},
		"in an emptyDir":             {mode: 0o777, below: "state", shared: "other users can replace what is in it; type: sudo chmod go-w "},
		"missing in an emptyDir":     {mode: 0o777, below: "missing", shared: "other users can replace what is in it"},
		"in a volume with fsGroup":   {gid: volumeGroup, mode: 0o775 | os.ModeSetgid, below: "state", shared: "other users can replace what is in it"},
		"in a tmpfs of docker":       {mode: 0o777 | os.ModeSticky, below: "state"},
		"another user's":             {uid: stranger + 1, mode: 0o777, alone: "belongs to user 54322", shared: "belongs to user 54322"},
		"in another user's":          {uid: stranger + 1, mode: 0o777, below: "state", alone: "belongs to user 54322", shared: "belongs to user 54322"},
		"own, private group":         {uid: stranger, gid: stranger, mode: 0o775},
		"own, group of others":       {uid: stranger, gid: volumeGroup, mode: 0o775, shared: "has mode 0775: other users can write to it"},
		"own, writable for everyone": {uid: stranger, gid: stranger, mode: 0o777, shared: "has mode 0777: other users can write to it"},
	} {
		t.Run(name, func(t *testing.T) {
			volume := filepath.Join(t.TempDir(), "volume")
			mkdir(t, volume)
			mkdir(t, filepath.Join(volume, "state"))
			if os.Geteuid() == 0 {
				give(t, filepath.Join(volume, "state"), stranger, stranger)
				give(t, volume, c.uid, c.gid)
			}
			open(t, filepath.Dir(volume))
			mode(t, volume, c.mode)
			asStranger(t, func() {
				for _, alone := range []bool{true, false} {
					SetOnlyUser(func() bool { return alone })
					err := Dir(filepath.Join(volume, c.below))
					want := c.shared
					if alone {
						want = c.alone
					}
					switch {
					case want == "" && err != nil:
						t.Errorf("alone %v: got %v, want none", alone, err)
					case want != "" && (!errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), want)):
						t.Errorf("alone %v: got %v, want one with %q", alone, err, want)
					}
				}
			})
		})
	}
}

// Kubernetes gives the files of a volume to its group when a pod starts again.
func TestReadFile_OfVolume(t *testing.T) {
	t.Cleanup(func() { onlyUser = nil })
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		give(t, path, stranger, volumeGroup)
	}
	mode(t, path, 0o660)
	open(t, dir)
	asStranger(t, func() {
		for _, alone := range []bool{true, false} {
			SetOnlyUser(func() bool { return alone })
			if _, err := ReadFile(path, 10); errors.Is(err, ErrUnsafe) == alone {
				t.Errorf("alone %v: got %v", alone, err)
			}
		}
	})
}

// The exception for volumes is for the state directory, not for programs, nor for files
// with tokens.
func TestOnlyUser_StateOnly(t *testing.T) {
	t.Cleanup(func() { onlyUser = nil })
	SetOnlyUser(func() bool { return true })
	dir := filepath.Join(t.TempDir(), "volume")
	mkdir(t, dir)
	mode(t, dir, 0o777)
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		check func(string) error
		safe  bool
	}{
		"state directory":    {func(path string) error { return Dir(filepath.Dir(path)) }, true},
		"above a state file": {AboveState, true},
		"above another file": {Above, false},
		"program":            {File, false},
	} {
		if err := c.check(path); errors.Is(err, ErrUnsafe) == c.safe {
			t.Errorf("%s: %v", name, err)
		}
	}
	mode(t, dir, 0o700)
	mode(t, path, 0o777)
	if err := File(path); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a program that everybody can write: %v", err)
	}
}
