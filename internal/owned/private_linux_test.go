package owned

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// privateEnv has the directory of TestPrivate for the processes that it starts.
const privateEnv = "GLOVEBOX_TEST_PRIVATE"

// TestPrivate: a group is private if the files of the system list no member but the user. The test runs
// itself in a mount namespace in which those files are its own.
func TestPrivate(t *testing.T) {
	if dir := os.Getenv(privateEnv); dir != "" {
		for _, file := range []string{"passwd", "group"} {
			if err := syscall.Mount(filepath.Join(dir, file), "/etc/"+file, "", syscall.MS_BIND, ""); err != nil {
				t.Fatalf("replace /etc/%s: %v", file, err)
			}
		}
		if private(1001, 1001) {
			t.Log("the group is private")
		} else {
			t.Log("the group has others")
		}
		return
	}
	for name, c := range map[string]struct {
		passwd, group string
		want          string
	}{
		"alone":                   {"a:x:1001:1001::/:/bin/sh\n", "a:x:1001:\n", "is private"},
		"listed itself":           {"a:x:1001:1001::/:/bin/sh\n", "a:x:1001:a\n", "is private"},
		"another member":          {"a:x:1001:1001::/:/bin/sh\n", "a:x:1001:b\n", "has others"},
		"primary group of others": {"a:x:1001:1001::/:/bin/sh\nb:x:1002:1001::/:/bin/sh\n", "a:x:1001:\n", "has others"},
		"not its primary group":   {"a:x:1001:100::/:/bin/sh\n", "g:x:1001:\n", "has others"},
		"unlisted group":          {"a:x:1001:1001::/:/bin/sh\n", "", "has others"},
		"unlisted user":           {"b:x:1002:1002::/:/bin/sh\n", "a:x:1001:\n", "has others"}, // it is not this process's
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"passwd": c.passwd, "group": c.group} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestPrivate$", "-test.v")
		cmd.Env = append(os.Environ(), privateEnv+"="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "the group "+c.want) {
			t.Errorf("%s: got %v, %s, want that it %s", name, err, out, c.want)
		}
	}
}
