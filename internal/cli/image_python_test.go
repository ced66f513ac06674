//go:build linux

package cli

import (
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// systemPython is the interpreter whose files are all below /usr and /lib.
const systemPython = "/usr/bin/python3"

// unusedModules are large parts of Python's library that boxes do not need.
var unusedModules = []string{
	"__pycache__", "dist-packages", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tkinter", "turtledemo", "unittest",
}

// sharedLibrary matches the libraries in what ldd prints.
var sharedLibrary = regexp.MustCompile(`(?m)^\t(?:\S+ => )?(/\S+) \(0x`)

// addPython adds this machine's Python with its library, and the shared libraries of both at
// the paths where the linker looks. It skips the test if there is none.
func (l *testLayer) addPython() {
	l.t.Helper()
	python, err := filepath.EvalSymlinks(systemPython)
	if err != nil {
		l.t.Skipf("no %s: %v", systemPython, err)
	}
	out, err := exec.Command(python, "-I", "-c", `import sysconfig; print(sysconfig.get_path("stdlib"))`).Output()
	if err != nil {
		l.t.Fatal(err)
	}
	library := strings.TrimSpace(string(out))
	linked := []string{python}
	err = filepath.WalkDir(library, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(unusedModules, d.Name()) || strings.HasPrefix(d.Name(), "config-")):
			return fs.SkipDir
		case filepath.Ext(path) == ".so":
			linked = append(linked, path)
			fallthrough
		case filepath.Ext(path) == ".py":
			l.addHostFile(path, path)
		}
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	out, err = exec.Command("ldd", linked...).Output()
	if err != nil {
		l.t.Fatalf("ldd: %v", err)
	}
	added := make(map[string]bool)
	for _, m := range sharedLibrary.FindAllStringSubmatch(string(out), -1) {
		if !added[m[1]] {
			added[m[1]] = true
			l.addHostFile(m[1], m[1])
		}
	}
	l.addHostFile(python, python)
	l.add("usr/bin/python3", 0, nil, filepath.Base(python))
}

// descriptionOf returns the description of a tool, as a client gets it.
func descriptionOf(t *testing.T, b boxes, tool string) string {
	t.Helper()
	list, err := b.c.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, def := range list.Tools {
		if def.Name == tool {
			return def.Description
		}
	}
	t.Fatalf("the tool %s is not listed", tool)
	return ""
}

// TestImage_PythonByDigest serves boxes of an image with Python, which it pulls from a
// registry by digest: the tag has another content then. Boxes of that content, which has no
// interpreter, run commands only.
func TestImage_PythonByDigest(t *testing.T) {
	r := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer r.Close()
	repository := strings.TrimPrefix(r.URL, "http://") + "/team/analysis"
	l := newTestLayer(t)
	l.addBusybox()
	l.addPython()
	l.add("etc/mark", 0o644, []byte("of the image\n"), "")
	withPython := l.push(repository + ":1")
	without := pushBusybox(t, repository+":1", "moved\n")
	if withPython == without {
		t.Fatalf("two images have the digest %s", without)
	}
	state := t.TempDir()

	s := startServer(t, state, append([]string{"--image", repository + "@" + withPython}, plain...)...)
	b := boxes{t, s.connect()}
	if d := descriptionOf(t, b, "execute_code"); !strings.Contains(d, "container image") || strings.Contains(d, "this machine") || strings.Contains(d, "Fails here") {
		t.Errorf("the description of execute_code does not speak of the image: %s", d)
	}
	b.execute("box", "import json, sys, ctypes, hashlib; x = 6; mark = open('/etc/mark').read()")
	b.want(b.execute, "box", "print(x * 7, mark.strip(), sys.executable, json.dumps([x]))", "42 of the image "+systemPython+" [6]")
	b.must("execute_command", args{"session_id": "box", "command": "echo of the shell > file"})
	b.want(b.execute, "box", "print(x, open('file').read().strip())", "6 of the shell")
	if out := b.must("execute_command", args{"session_id": "box", "command": "cat /etc/mark; id -un; python3 -c 'print(6 * 7)'"}); out["stdout"] != "of the image\nuser\n42\n" {
		t.Errorf("execute_command: got %v", out)
	}
	b.refused("execute_code", args{"code": "1", "language": "javascript"}, "UNSUPPORTED_LANGUAGE", "no interpreter for it")
	s.stop()

	s = startServer(t, state, append([]string{"--image", repository + ":1"}, plain...)...)
	b = boxes{t, s.connect()}
	if d := descriptionOf(t, b, "execute_code"); !strings.HasPrefix(d, "Fails here, unless you name a template with an interpreter: ") {
		t.Errorf("the description of execute_code in a server without interpreters: %s", d)
	}
	if out := b.must("execute_command", args{"session_id": "other", "command": "cat /etc/mark; command -v python3 || echo none"}); out["stdout"] != "moved\nnone\n" {
		t.Errorf("a box of the tag: got %v", out)
	}
	b.refused("execute_code", args{"session_id": "other", "code": "1"}, "UNSUPPORTED_LANGUAGE", "boxes run commands only", "execute_command")
	before := len(b.items("get_sessions", "sessions"))
	b.refused("execute_code", args{"code": "1"}, "UNSUPPORTED_LANGUAGE", "boxes run commands only")
	if after := len(b.items("get_sessions", "sessions")); after != before {
		t.Errorf("code that no box can run leaves %d sessions", after-before)
	}
	b.refused("create_context", args{"name": "none", "language": "python"}, "INVALID_LANGUAGE", "boxes run commands only")
	// The box of the digest wakes with its own interpreter and variables.
	b.want(b.execute, "box", "print(x + 1, mark.strip())", "7 of the image")
	s.stop()
}
