//go:build linux && (amd64 || arm64) && !cgo

package isolated

import (
	"os"
	"strings"
	"testing"
)

// A global package of npm lands below the home directory, which is kept, and its program is
// on PATH.
func TestInstall_GlobalNPMPackage(t *testing.T) {
	if _, err := os.Stat("/usr/bin/npm"); err != nil {
		t.Skip("npm is not installed in /usr/bin")
	}
	l := networked(t, nil)
	const line = `mkdir greet && cd greet &&
echo '{"name": "greet", "version": "1.0.0", "bin": {"greet": "greet.js"}}' >package.json &&
printf '#!/usr/bin/env node\nconsole.log("hello")\n' >greet.js && npm pack --silent >/dev/null && cd / && npm install -g ~/greet/greet-1.0.0.tgz >&2 &&
greet && command -v greet && npm ls -g --parseable | grep greet`
	res, r := sh(t, l, line)
	const want = "hello\n/home/user/.local/bin/greet\n/home/user/.local/lib/node_modules/greet\n"
	if res.Code != 0 || string(r.out) != want {
		t.Errorf("got exit code %d, %q, want %q\n%s", res.Code, r.out, want, r.err)
	}
}

// pip in a virtual environment of the box says the same as the one outside.
func TestInstall_VirtualEnvironment(t *testing.T) {
	if _, err := os.Stat("/usr/bin/pip3"); err != nil {
		t.Skip("pip is not installed in /usr/bin")
	}
	root := networkedRoot(t) // Debian's pip wants authorities even where it connects to nothing
	must(t, os.MkdirAll(root.Tree.Dir+"/etc/ssl/certs", 0o755))
	must(t, os.WriteFile(root.Tree.Dir+"/etc/ssl/certs/ca-certificates.crt", []byte(newAuthority(t)), 0o644))
	root.Key = "with-an-authority"
	l := connTo(t, root, map[string]string{"python": "/usr/bin/python3"})
	if res, r := sh(t, l, "python3 -m venv ~/v"); res.Code != 0 {
		t.Skipf("python3 -m venv does not work here: %s%s", r.out, r.err)
	}
	res, r := sh(t, l, "~/v/bin/pip install nosuch")
	if res.Code == 0 || !strings.Contains(string(r.err), "Glovebox: this box has no network; its operator can allow this with --network pypi") {
		t.Errorf("offline: got exit code %d\n%s\n%s", res.Code, r.out, r.err)
	}
}
