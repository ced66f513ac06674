// Package scripts tests the scripts of this directory.
package scripts

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// npm reads the machine's npmrc, which may name a registry or a proxy, when npm-ci installs
// the packages of a directory.
func TestNpmCI_ReadsGlobalNpmrc(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		// npm tells scripts of the package its settings.
		"package.json":      `{"name": "x", "version": "1.0.0", "scripts": {"preinstall": "printenv npm_config_globalconfig >globalconfig"}}`,
		"package-lock.json": `{"name": "x", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {"": {"name": "x", "version": "1.0.0"}}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := exec.Command("npm", "config", "get", "globalconfig").Output()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("./npm-ci", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := os.ReadFile(filepath.Join(dir, "globalconfig"))
	if err != nil || strings.TrimSpace(string(got)) != strings.TrimSpace(string(want)) {
		t.Errorf("npm reads %q, %v, want %q", got, err, want)
	}
}

// Other scripts install npm packages through npm-ci only.
func TestNpmCI_IsTheOnlyCaller(t *testing.T) {
	files, err := filepath.Glob("*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../Makefile", "../.ci/run") {
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file != "npm-ci" && !strings.HasSuffix(file, ".go") && strings.Contains(string(text), "npm ci") {
			t.Errorf("%s calls npm ci directly", file)
		}
	}
}

// The benchmark's set-up says what an old or missing Node.js keeps from running.
func TestBenchNode_Version(t *testing.T) {
	for _, c := range []struct {
		version string // of the machine's Node.js; empty: it fails
		want    string // in what is said; empty: nothing is said
	}{{"v22.23.3", ""}, {"v24.0.0", ""}, {"v20.20.2", "v20.20.2"}, {"v9.1.0", "v9.1.0"}, {"", "is missing"}} {
		dir := t.TempDir()
		program := "#!/bin/sh\nexit 1\n"
		if c.version != "" {
			program = "#!/bin/sh\necho " + c.version + "\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "node"), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("./bench-node", dir)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		text := string(out)
		if c.want == "" && (err != nil || text != "") {
			t.Errorf("with Node.js %s: %v, %s", c.version, err, text)
		}
		if c.want != "" && (err == nil || !strings.Contains(text, c.want) || !strings.Contains(text, "dbhub") || !strings.Contains(text, "node@22")) {
			t.Errorf("with Node.js %q: %v, %s; want the version, the server and what to type", c.version, err, text)
		}
	}
}

// The tests that scripts/test runs as one user only exist, in packages that it runs as both.
// No other package has a test of that name, which would run as neither.
func TestTest_RunsOnceWhatExists(t *testing.T) {
	script, err := os.ReadFile("test")
	if err != nil {
		t.Fatal(err)
	}
	both := []string{"../e2e", "../internal/cli", "../internal/engine/gvisor", "../internal/guest/agent/isolated", "../internal/chaos"}
	packages := make(map[string][]string) // with a test, by its name
	tests := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{`)
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range tests.FindAllStringSubmatch(string(text), -1) {
			packages[m[1]] = append(packages[m[1]], filepath.Dir(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, list := range []string{"once_as_root", "once_as_user", "once_over_directory"} {
		text := regexp.MustCompile(`(?s)\n` + list + `=\((.*?)\n\)`).FindSubmatch(script)
		if text == nil {
			t.Fatalf("scripts/test has no list %s", list)
		}
		expanded, err := exec.Command("bash", "-c", "echo "+strings.Join(strings.Fields(string(text[1])), " ")).Output()
		if err != nil {
			t.Fatal(err)
		}
		names := strings.Fields(string(expanded))
		if len(names) < 5 {
			t.Errorf("%s has the names %q, want those of several tests", list, names)
		}
		for _, name := range names {
			if seen[name] {
				t.Errorf("%s is left out twice", name)
			}
			seen[name] = true
			test, sub, _ := strings.Cut(name, "/")
			if len(packages[test]) == 0 {
				t.Errorf("%s is no test", test)
			}
			for _, pkg := range packages[test] {
				if !slices.Contains(both, pkg) && test != "TestScripts" {
					t.Errorf("%s is also a test of %s, which scripts/test runs as one user only", test, pkg)
				}
			}
			if test == "TestScripts" {
				if _, err := os.Stat("../internal/cli/testdata/script/" + sub + ".txtar"); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if _, err := os.Stat("../internal/cli/mcpcli/testdata/script/" + sub + ".txtar"); err == nil {
					t.Errorf("%s is also a test of internal/cli/mcpcli, which scripts/test runs as one user only", name)
				}
			}
		}
	}
}

// A promise whose test was skipped in every run is found by the name of the test or subtest; one
// that ran as one of the users is not.
func TestLists_PromisesThatNeverRan(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "docs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"docs/security.md":     "Nobody reads a saved snapshot (`TestSaved_Snapshots`).\n",
		"docs/threat-model.md": "The rate is counted per owner (`TestRate_OfOwner`).\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lists, err := filepath.Abs("testlists")
	if err != nil {
		t.Fatal(err)
	}
	outcomes := filepath.Join(dir, "outcomes")
	if err := os.WriteFile(outcomes, []byte(strings.Join([]string{
		"skip\tp\tTestSaved_Snapshots", // named by a document, and never ran
		"skip\tp\tTestRate_OfOwner", "pass\tp\tTestRate_OfOwner",
		"skip\tp\tTestAttack/http/control-flood", "skip\tx/internal/engine/kube\tTestSaved_Snapshots", "skip\tq\tTestUnknown", "pass\tq\tTestOther", "",
	}, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]string{
		"never_ran":              "p\tTestAttack/http/control-flood\np\tTestSaved_Snapshots\nq\tTestUnknown\nx/internal/engine/kube\tTestSaved_Snapshots\n",
		"promised_but_never_ran": "p TestAttack/http/control-flood\np TestSaved_Snapshots\n",
	} {
		cmd := exec.Command("bash", "-euc", `. "$3"; "$1" "$2"; rm -rf "$lists"`, "bash", what, outcomes, lists)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GLOVEBOX_TEST_FAILED=")
		out, err := cmd.Output()
		if err != nil || string(out) != want {
			t.Errorf("%s prints %q, %v, want %q", what, out, err, want)
		}
	}
}
