package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestToolchain(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("guests run Linux")
	}
	state := t.TempDir()
	var asked int
	cfg := ToolchainConfig{StateDir: state, Progress: func(string) { asked++ }}
	img, err := Toolchain(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	python, ok := img.Interpreters[Python]
	if !ok {
		t.Skip("no python3 on PATH")
	}
	t.Logf("%+v %q\n%+v", img.Interpreters, img.Notes, img.Root)
	var covered bool
	for _, b := range img.Root.Tree.Binds {
		covered = covered || isWithin(python.Path, b.Guest)
		for _, private := range []string{"/etc/shadow", "/root/.ssh", "/home/someone", "/var/run", "/run/docker.sock", "/etc/ssl/private"} {
			if isWithin(private, b.Guest) {
				t.Errorf("%s shows %s", b.Guest, private)
			}
		}
		if target := filepath.Join(img.Root.Tree.Dir, b.Guest); !exists(target) && !isWithin(b.Guest, "/usr") {
			t.Errorf("no mount point %s", target)
		}
	}
	if !covered {
		t.Errorf("%s is not in the image", python.Path)
	}
	for _, i := range img.Interpreters {
		if !slices.Contains(i.Files, i.Path) || !slices.Contains(i.Files, "/usr/lib") {
			t.Errorf("%s changes with %q", i.Path, i.Files)
		}
	}
	if lib := filepath.Dir(sysPath(t, python.Path)); !slices.Contains(python.Files, lib) {
		t.Errorf("%s is not in %q", lib, python.Files)
	}
	if b, err := os.ReadFile(filepath.Join(img.Root.Tree.Dir, "etc/passwd")); err != nil || strings.Count(string(b), "\n") != 3 {
		t.Errorf("passwd: %q, %v", b, err)
	}
	if info, err := os.Stat(filepath.Join(img.Root.Tree.Dir, "tmp")); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("tmp: %v, %v", info, err)
	}

	before, start := asked, time.Now()
	again, err := Toolchain(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("second time: %v", time.Since(start))
	if asked != before {
		t.Errorf("asked %d interpreters again", asked-before)
	}
	if got, want := again.Interpreters[Python].Files, python.Files; !slices.Equal(got, want) {
		t.Errorf("files changed from %q to %q", want, got)
	}
	if again.Root.Key != img.Root.Key || again.Root.Tree.Dir != img.Root.Tree.Dir {
		t.Errorf("key changed from %s to %s", img.Root.Key, again.Root.Key)
	}
}

// sysPath returns the file of a module of the standard library.
func sysPath(t *testing.T, python string) string {
	t.Helper()
	out, err := exec.Command(python, "-I", "-c", "import os; print(os.__file__)").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestToolchain_FileReplacedByAnotherLanguage: what the cache knows of a file as another
// language's interpreter does not count.
func TestToolchain_FileReplacedByAnotherLanguage(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on PATH")
	}
	cfg := ToolchainConfig{StateDir: t.TempDir(), Python: python}
	if _, err := Toolchain(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Node = python
	if img, err := Toolchain(t.Context(), cfg); err == nil {
		t.Errorf("%s is taken for Node.js: %+v", python, img.Interpreters[JavaScript])
	}
}

func TestFind_PrefersLibraries(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	fake := func(name, version, have string) string {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		answer := `{"executable": "` + dir + `/python3", "version": "` + version + `", "prefix": "` + dir + `", "base": [], "have": ` + have + `, "paths": []}`
		script := "#!/bin/sh\necho noise\necho '" + answer + "'\n"
		if err := os.WriteFile(filepath.Join(dir, "python3"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "python3"), []byte("#!/bin/sh\necho broken >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	bare := fake("bare", "3.12.0", `[]`)
	full := fake("full", "3.11.0", `["numpy", "pandas"]`)
	found, err := find(t.Context(), FindOptions{Dirs: []string{broken, bare, full, bare}, Node: ""})
	if err != nil {
		t.Fatal(err)
	}
	var versions []string
	for _, i := range found {
		versions = append(versions, i.Version)
	}
	if got, want := strings.Join(versions, " "), "3.11.0 3.12.0"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	if _, err := find(t.Context(), FindOptions{Dirs: []string{bare}, Python: filepath.Join(broken, "python3")}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a named interpreter that is broken: %v", err)
	}
}

func TestNeededFor_RefusesHomes(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, prefix := range []string{"/", "/home", "/etc", home, filepath.Dir(home)} {
		if !exists(prefix) {
			continue
		}
		if got, err := neededFor(prefix); err == nil {
			t.Errorf("neededFor(%q) = %q, want an error", prefix, got)
		}
	}
	inside := filepath.Join(home, "venv")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := neededFor(inside); err != nil || filepath.Base(got) != "venv" {
		t.Errorf("neededFor(%q) = %q, %v", inside, got, err)
	}
}

func TestDirectory(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"usr/bin", "usr/lib/python3.11", "usr/lib/python3/dist-packages/numpy"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	os.WriteFile(filepath.Join(dir, "usr/bin/python3.11"), nil, 0o755)
	os.Symlink("python3.11", filepath.Join(dir, "usr/bin/python3"))
	os.WriteFile(filepath.Join(dir, "usr/lib/python3/dist-packages/numpy/__init__.py"), nil, 0o644)
	img, err := Directory(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := img.Interpreters[Python]
	files := []string{filepath.Join(dir, "usr/bin/python3"), filepath.Join(dir, "usr/lib/python3/dist-packages")}
	if p.Path != "/usr/bin/python3" || p.Version != "3.11" || !slices.Equal(p.Libraries, []string{"numpy"}) || !slices.Equal(p.Files, files) {
		t.Errorf("python: %+v", p)
	}
	if _, err := Directory(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory is an image")
	}
	if _, err := Directory("/"); err == nil {
		t.Error("the host's root is an image")
	}
}
