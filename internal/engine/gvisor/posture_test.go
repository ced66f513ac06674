//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/posture"
)

// TestPosture compares the processes of boxes with the threat model: with and without
// volumes, booted and restored.
func TestPosture(t *testing.T) {
	server, err := posture.Read(posture.Process{PID: os.Getpid(), Role: posture.Server})
	if err != nil {
		t.Fatal(err)
	}
	mode := posture.ModeOf(server)
	for _, d := range posture.Check(mode, server, server, false) {
		t.Errorf("server: %s", d)
	}
	e := open(t)
	plain, volumes := newSpec(t), withVolume(t, newSpec(t))
	volumes.Mounts = append(volumes.Mounts, engine.Mount{Host: t.TempDir(), Guest: "/read", ReadOnly: true})
	readOnly := newSpec(t)
	readOnly.Mounts = volumes.Mounts[1:]
	owners := make(map[string]string) // the box that each namespace is of
	roles := func(b *box) map[posture.Role]posture.Facts {
		t.Helper()
		if got := b.ask(t, "shu echo up"); got != "up\n" {
			t.Fatalf("%s: %q", b.ID(), got)
		}
		list, err := e.Processes(t.Context(), b.ID())
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[posture.Role]posture.Facts)
		for _, p := range list {
			f, err := posture.Read(p)
			if err != nil {
				t.Fatal(err)
			}
			found[p.Role] = f
			for _, d := range posture.Check(mode, server, f, e.groups != nil) {
				t.Errorf("%s of %s: %s", p.Role, b.ID(), d)
			}
			for _, ns := range append(f.Namespaces, f.UserNamespace) {
				if ns == server.UserNamespace || slices.Contains(server.Namespaces, ns) {
					continue // Check says which may be the server's
				}
				if other := owners[ns]; other != "" && other != b.ID() {
					t.Errorf("%s of %s is in the namespace %s of %s", p.Role, b.ID(), ns, other)
				}
				owners[ns] = b.ID()
			}
		}
		return found
	}
	first := create(t, e, "first", plain)
	one := roles(first)
	two := roles(restore(t, e, "second", plain, snapshotOf(t, e, first)))
	for _, found := range []map[posture.Role]posture.Facts{one, two} {
		if len(found) != 2 || found[posture.Stub].PID == 0 {
			t.Errorf("a box without volumes has the processes %+v", found)
		}
	}
	if mode == posture.ModeRoot && one[posture.Sentry].UID == two[posture.Sentry].UID {
		t.Errorf("two sentries run as user %d", one[posture.Sentry].UID)
	}
	third := create(t, e, "third", volumes)
	for _, b := range []*box{third, restore(t, e, "fourth", volumes, snapshotOf(t, e, third)), create(t, e, "fifth", readOnly)} {
		if found := roles(b); len(found) != 3 {
			t.Errorf("a box with volumes has the processes %+v", found)
		}
	}
	list, err := e.Processes(t.Context(), third.ID())
	if err != nil {
		t.Fatal(err)
	}
	gofers := 0
	for _, p := range list {
		if p.Role == posture.Gofer {
			gofers++
		}
	}
	if want := map[posture.Mode]int{posture.ModeRoot: 1, posture.ModeUser: 2}[mode]; want != 0 && gofers != want {
		t.Errorf("a box with a writable and a read-only volume has %d gofers, want %d", gofers, want)
	}
	file := fileSpec(t)
	sixth := create(t, e, "sixth", file)
	for _, b := range []*box{sixth, restore(t, e, "seventh", file, snapshotOf(t, e, sixth))} {
		if found := roles(b); len(found) != 2 {
			t.Errorf("a box with an image as root has the processes %+v", found)
		}
	}
	if err := first.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Processes(t.Context(), "first"); err == nil {
		t.Error("a guest that has ended has processes")
	}
}

// TestPosture_OrdinaryUser runs TestPosture as another user than root.
func TestPosture_OrdinaryUser(t *testing.T) {
	const user = 12345
	testAs(t, user, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}, "TestPosture")
}

// TestPosture_RootOfUserNamespace runs TestPosture as root of a user namespace that has
// some users of the host, as containers without privileges have.
func TestPosture_RootOfUserNamespace(t *testing.T) {
	const first = 200_000
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 1 << 16}}
	testAs(t, first, &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0},
	}, "TestPosture")
}

// testAs runs tests in a process of a user of the host.
func testAs(t *testing.T, user int, attr *syscall.SysProcAttr, tests ...string) {
	t.Helper()
	if !newUsers().ids.have(firstUser) {
		t.Skip("only root can run the test as another user")
	}
	path, err := agent()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gbposture")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, user, user); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "agent")
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), selfExe, "-test.run=^("+strings.Join(tests, "|")+")$", "-test.v")
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOME=" + dir, "GLOVEBOX_TEST_AGENT=" + path}
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	for _, test := range tests {
		if err != nil || !strings.Contains(string(out), "--- PASS: "+test+" ") {
			t.Errorf("%s as user %d: %v\n%s", test, user, err, out)
		}
	}
}

func TestUsers_DifferUntilReturned(t *testing.T) {
	u := newUsers()
	if !u.ids.have(firstUser) {
		t.Skip("this process has no users to give")
	}
	u.next = maxUsers - 2
	var got []uint32
	for range 4 {
		who, err := u.take()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, who.id)
	}
	want := []uint32{firstUser + maxUsers - 2, firstUser + maxUsers - 1, firstUser, firstUser + 1}
	if !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
	u.next = maxUsers - 2
	u.give(user{id: firstUser})
	if who, err := u.take(); err != nil || who.id != firstUser {
		t.Errorf("got %+v, %v, want the one given back, %d", who, err, firstUser)
	}
}

func TestExplainStart(t *testing.T) {
	for err, want := range map[error]string{
		&os.PathError{Op: "fork/exec", Path: selfExe, Err: unix.EACCES}: "chmod a+rx ",
		&os.PathError{Op: "fork/exec", Path: selfExe, Err: unix.ENOSPC}: "sysctl -w user.max_user_namespaces",
	} {
		host, ok := errors.AsType[*engine.HostError](explainStart(err))
		if !ok || !strings.Contains(host.Fix, want) || !errors.Is(host, err) {
			t.Errorf("%v: got %v, want the remedy %q", err, host, want)
		}
	}
	if err := explainStart(unix.ENOMEM); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got %v", err)
	}
}
