package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rootInNameEnv makes the test binary start a program from a user namespace in which the
// user is root. Its value is a directory for the results.
const rootInNameEnv = "CHILD_TEST_ROOT_IN_NAME"

// report is a script that writes what the program is and may do.
const report = `cd "$DIR" || exit 1
{ id -u; id -g; awk '/^CapEff/ {print $2}' /proc/self/status; } > ids
echo "$HOME" > home
mkdir m
if mount -t tmpfs none m 2> /dev/null || nsenter -t $PPID -U -m true 2> /dev/null; then echo yes > power; else echo no > power; fi
if unshare -U true 2> /dev/null; then echo yes > sandbox; else echo no > sandbox; fi
touch done`

func startAsRootInName(dir string) int {
	c := &Command{Name: "srv", Argv: []string{"/bin/sh", "-c", report + "; cat > /dev/null"}, Env: []string{"PATH=" + os.Getenv("PATH"), "DIR=" + dir, "HOME=" + dir}, Stderr: os.Stderr}
	conn, err := c.Connect(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
			break
		}
	}
	conn.Close()
	return 0
}

// TestConnect_UserNamespace starts a program from a server that has executed itself in a
// user namespace, where its user is root.
func TestConnect_UserNamespace(t *testing.T) {
	uid, gid := os.Geteuid(), os.Getegid()
	dir, err := os.MkdirTemp("", "child-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd := exec.Command("/proc/self/exe") // which another user may execute wherever it is
	cmd.Env = append(os.Environ(), rootInNameEnv+"="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS}
	if uid == 0 {
		uid, gid = 54321, 54322
		cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	cmd.Dir = "/"
	if err := cmd.Run(); err != nil {
		t.Skipf("this host allows no user namespaces: %v", err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(b))
	}
	if got, want := strings.Fields(read("ids")), []string{strconv.Itoa(uid), strconv.Itoa(gid), "0000000000000000"}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the program has the ids and capabilities %v, want %v", got, want)
	}
	if got := read("home"); got != dir {
		t.Errorf("HOME is %q, want %q", got, dir)
	}
	if got := read("power"); got != "no" {
		t.Error("the program can mount, or enter the namespaces of its parent")
	}
	if exec.Command("unshare", "-U", "true").Run() == nil && read("sandbox") != "yes" {
		t.Error("the program cannot make a user namespace, as browsers do")
	}
	info, err := os.Stat(filepath.Join(dir, "done"))
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); int(s.Uid) != uid || int(s.Gid) != gid {
		t.Errorf("a file of the program belongs to %d:%d, want %d:%d", s.Uid, s.Gid, uid, gid)
	}
}
