package owned

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// settleEnv has the directory of TestSettle for the process that it starts.
const settleEnv = "GLOVEBOX_TEST_SETTLE"

// settledPaths are the paths that TestSettle checks, with what File says of them when the
// program has started and another user has replaced what can be replaced.
var settledPaths = map[string]bool{ // true: safe
	"shared/own":         true,
	"shared/replaced":    false,
	"shared/gone/file":   false,
	"shared/renewed":     false, // root's file was removed
	"shared/exchanged":   false, // another file was renamed to it
	"shared/changed":     true,  // root has written to its file
	"shared/new":         false,
	"shared/known/file":  true,
	"shared/link":        false,
	"private/root":       true,
	"private/new":        true, // only root can have made it
	"private/up/private": true,
}

// TestSettle: in a user namespace that does not show the owners of files, another user's file
// that took the place of one in a shared directory is refused when it is read again.
func TestSettle(t *testing.T) {
	if dir := os.Getenv(settleEnv); dir != "" {
		inNamespace(t, dir)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of other users")
	}
	dir := t.TempDir()
	open(t, dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	file := func(name string, uid int) {
		t.Helper()
		if err := os.WriteFile(at(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		give(t, at(name), uid, -1)
	}
	for _, name := range []string{"shared", "private", "shared/gone", "shared/known", "private/up"} {
		mkdir(t, at(name))
		mode(t, at(name), 0o755)
	}
	mode(t, at("shared"), 0o777|os.ModeSticky)
	give(t, at("shared/known"), stranger, -1) // stands for root, which the namespace of a user does not map either
	for _, name := range []string{"shared/own", "shared/replaced", "shared/gone/file", "private/root"} {
		file(name, 0)
	}
	file("shared/known/file", stranger)
	for _, name := range []string{"shared/renewed", "shared/exchanged", "shared/changed"} {
		file(name, stranger)
	}
	link(t, at("private/root"), at("shared/link"))
	link(t, "../../shared/../private/root", at("private/up/private"))

	cmd := exec.Command(os.Args[0], "-test.run=^TestSettle$", "-test.v")
	cmd.Env = append(os.Environ(), settleEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // a second time after an error
	defer in.Close()
	lines := bufio.NewReader(out)
	text := ""
	for !strings.HasSuffix(text, "settled\n") {
		line, err := lines.ReadString('\n')
		if text += line; err != nil {
			t.Fatalf("the process in the namespace ended: %v\n%s", err, text)
		}
	}
	if err := os.WriteFile(at("shared/changed"), []byte("more"), 0o644); err != nil {
		t.Fatal(err)
	}
	file("shared/other", stranger)
	if err := os.Rename(at("shared/other"), at("shared/exchanged")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"shared/replaced", "shared/gone", "shared/link", "shared/renewed"} {
		if err := os.RemoveAll(at(name)); err != nil {
			t.Fatal(err)
		}
	}
	mkdir(t, at("shared/gone"))
	mode(t, at("shared/gone"), 0o755)
	for _, name := range []string{"shared/replaced", "shared/renewed", "shared/gone/file", "shared/new", "private/new"} {
		file(name, stranger)
	}
	give(t, at("shared/gone"), stranger, -1)
	link(t, at("private/root"), at("shared/link"))
	give(t, at("shared/link"), stranger, -1)
	in.Close()
	rest, _ := io.ReadAll(lines)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process in the namespace: %v\n%s%s", err, text, rest)
	}
}

// inNamespace is the part of TestSettle in a namespace that maps root only.
func inNamespace(t *testing.T, dir string) {
	if MapsAllUsers() {
		t.Fatal("the namespace maps all users")
	}
	for name := range settledPaths {
		if err := File(filepath.Join(dir, name)); err != nil {
			t.Errorf("before: %s: %v", name, err)
		}
	}
	Settle()
	os.Stdout.WriteString("settled\n")
	io.ReadAll(os.Stdin)
	for name, safe := range settledPaths {
		if err := File(filepath.Join(dir, name)); errors.Is(err, ErrUnsafe) == safe {
			t.Errorf("after: %s: %v, want it safe: %v", name, err, safe)
		}
	}
}
