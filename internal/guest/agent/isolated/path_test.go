//go:build linux && (amd64 || arm64) && !cgo

package isolated

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestLaunchers_FindInterpreters checks that commands find the kernels' interpreters under
// every usual name: in a virtual environment, where it is installed under another name,
// and where the system has no such name.
func TestLaunchers_FindInterpreters(t *testing.T) {
	root := hostRoot(t)
	venv := func(dir, name string) string {
		dir = filepath.Join("/opt", dir)
		must(t, os.MkdirAll(filepath.Join(root.Tree.Dir, dir, "bin"), 0o755))
		must(t, os.Symlink("/usr/bin/python3", filepath.Join(root.Tree.Dir, dir, "bin", name)))
		must(t, os.WriteFile(filepath.Join(root.Tree.Dir, dir, "pyvenv.cfg"), []byte("home = /usr/bin\n"), 0o644))
		return filepath.Join(dir, "bin", name)
	}
	node := "/opt/it's node/bin/node"
	must(t, os.MkdirAll(filepath.Join(root.Tree.Dir, filepath.Dir(node)), 0o755))
	must(t, os.WriteFile(filepath.Join(root.Tree.Dir, node), []byte("#!/bin/sh\necho node \"$@\"\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(root.Tree.Dir, filepath.Dir(node), "npm"), []byte("#!/usr/bin/env node\n"), 0o755))
	// Another interpreter on PATH is not taken for the configured one.
	other := venv("other", "python3.11")
	for _, name := range []string{"python", "python3", "pip", "pip3"} {
		must(t, os.WriteFile(filepath.Join(root.Tree.Dir, filepath.Dir(other), name), []byte("#!/bin/sh\necho the wrong one\n"), 0o755))
	}
	where := `-c "import sys; print(sys.prefix)"`
	for _, test := range []struct{ name, python, node, prefix string }{
		{"system", "/usr/bin/python3", node, "/usr"},
		{"virtual environment", venv("env", "python"), node, "/opt/env"},
		{"with another name", venv("named", "python3.11"), node, "/opt/named"},
		{"beside another", other, node, "/opt/other"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := connTo(t, root, map[string]string{"python": test.python, "javascript": test.node})
			for _, line := range []string{
				"python " + where, "python3 " + where, "sh -c 'python " + where + "'", "env python3 " + where,
				`python -c "import subprocess; subprocess.run(['python3', '-c', 'import sys; print(sys.prefix)'])"`,
			} {
				if _, r := sh(t, l, line); strings.TrimSpace(string(r.out)) != test.prefix {
					t.Errorf("%s: got %q, %q, want %s", line, r.out, r.err, test.prefix)
				}
				if _, r := python(t, l, "!"+line); strings.TrimSpace(string(r.out)) != test.prefix {
					t.Errorf("!%s: got %q, %q, want %s", line, r.out, r.err, test.prefix)
				}
			}
			// If there is a pip, it belongs to this interpreter.
			for _, pip := range []string{"pip --version", "pip3 --version"} {
				_, r := sh(t, l, pip)
				_, want := sh(t, l, "python -m pip --version")
				if string(r.out) != string(want.out) || string(r.err) != string(want.err) {
					t.Errorf("%s: got %q, %q, want %q, %q", pip, r.out, r.err, want.out, want.err)
				}
			}
			for line, want := range map[string]string{"node 1 '2 3'": "node 1 2 3", "npm ci": "node " + filepath.Dir(node) + "/npm ci"} {
				if _, r := sh(t, l, line); strings.TrimSpace(string(r.out)) != want {
					t.Errorf("%s: got %q, %q, want %q", line, r.out, r.err, want)
				}
			}
			if got := background(t, l, "python "+where); strings.TrimSpace(got) != test.prefix {
				t.Errorf("in the background: got %q, want %s", got, test.prefix)
			}
		})
	}
}

// TestLaunchers_CannotBeReplaced checks that the directory of launchers belongs to the
// agent.
func TestLaunchers_CannotBeReplaced(t *testing.T) {
	l := connTo(t, hostRoot(t), map[string]string{"python": "/usr/bin/python3", "javascript": "/usr/bin/env"})
	for _, attack := range []string{"rm /opt/glovebox/bin/*", "touch /opt/glovebox/bin/x", "mv /opt/glovebox /opt/y", "echo x > /opt/glovebox/bin/node"} {
		if res, r := sh(t, l, attack); res.Code == 0 {
			t.Errorf("%s: succeeded: %q", attack, r.out)
		}
	}
	if _, r := sh(t, l, "command -v node"); strings.TrimSpace(string(r.out)) != "/opt/glovebox/bin/node" {
		t.Errorf("got %q: the attacks had nothing to attack", r.out)
	}
}

// background runs a line in the background and returns what it printed.
func background(t *testing.T, l *client.Conn, line string) string {
	t.Helper()
	started, err := l.Exec(t.Context(), protocol.Exec{Shell: line, Background: true}, nil, nil)
	must(t, err)
	var r record
	_, err = l.Attach(t.Context(), protocol.Attach{ID: started.ID, Follow: true}, &r)
	must(t, err)
	return string(r.out) + string(r.err)
}
