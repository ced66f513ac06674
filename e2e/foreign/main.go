// Command foreign runs test suites that other projects wrote, on this machine and in a
// box, and compares the outcome of every test: CPython's, NumPy's and pandas' as
// Debian packages them, and Node's own tests of Buffer as the npm package buffer
// carries them. differences.txt lists the tests whose outcome differs, each with
// its reason. The program fails if another test differs, or a listed one does not.
//
//	go run ./e2e/foreign [-glovebox FILE] [-only SUITE] [-list]
package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

//go:embed differences.txt
var differences string

// suiteTime bounds one suite on one side. The slowest, CPython's asyncio, takes
// about a minute on two busy processors.
const suiteTime = 15 * time.Minute

// boxUser is the user of code in a box. Root runs the host's side as this user,
// because many suites skip or change tests for root.
const boxUser = 1000

// suite is one run of a test program. Its command writes JUnit XML to "{out}" and
// runs in an empty directory, or in a copy of dir.
type suite struct {
	name    string
	dir     string
	command []string
}

// cpython are the modules of CPython's tests that use the most of an operating
// system: files, processes, signals, sockets, threads and memory.
var cpython = []string{
	"test_os", "test_posix", "test_subprocess", "test_shutil", "test_tempfile", "test_pathlib", "test_io",
	"test_mmap", "test_signal", "test_threading", "test_select", "test_selectors", "test_socket", "test_asyncio",
	"test_tarfile", "test_zipfile", "test_random", "test_multiprocessing_fork", "test_fcntl", "test_time",
}

func suites(node string) []suite {
	var list []suite
	for _, module := range cpython {
		// Where the kernel has no UDP-Lite its tests end test_socket as a whole.
		list = append(list, suite{"cpython/" + module, "", []string{"/usr/bin/python3", "-m", "test", "--timeout", "300", "--ignore", "*UDPLITE*", "--junit-xml", "{out}", module}})
	}
	pytest := func(name string, what ...string) {
		args := []string{"/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml={out}"}
		list = append(list, suite{name, "", append(args, what...)})
	}
	pytest("numpy", "--pyargs", "numpy.core.tests.test_multiarray", "numpy.core.tests.test_memmap", "numpy.lib.tests.test_io", "numpy.linalg.tests", "numpy.random.tests.test_random")
	// pandas' tests take options that only their own conftest.py defines, which
	// pytest reads ahead of the options for files, not for module names.
	const pandas = "/usr/lib/python3/dist-packages/pandas/"
	files := []string{"frame/test_constructors.py", "groupby/test_groupby.py", "io/test_common.py", "io/parser/common", "reshape/merge/test_merge.py"}
	for i := range files {
		files[i] = pandas + "tests/" + files[i]
	}
	pytest("pandas", append([]string{"--rootdir=" + pandas, "-c", "/dev/null"}, files...)...)
	if node != "" {
		list = append(list, suite{"node", node, []string{"node", "--test", "--test-reporter=junit", "--test-reporter-destination={out}", "test/node"}})
	}
	return list
}

func main() {
	glovebox := flag.String("glovebox", "bin/glovebox", "the program")
	only := flag.String("only", "", "run the suites whose name begins with this")
	list := flag.Bool("list", false, "list the suites")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *glovebox, *only, *list); err != nil {
		fmt.Fprintln(os.Stderr, "foreign: error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, glovebox, only string, list bool) error {
	program, err := filepath.Abs(glovebox)
	if err != nil {
		return err
	}
	expected, err := parseDifferences(differences)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "glovebox-foreign-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	node, err := nodeTests(ctx, filepath.Join(work, "node"))
	if err != nil {
		fmt.Println("note: Node's tests are left out:", err)
	}
	var wrong, tests int
	for _, s := range suites(node) {
		if !strings.HasPrefix(s.name, only) {
			continue
		}
		if list {
			fmt.Println(s.name)
			continue
		}
		host, hostTime, err := runHost(ctx, s, work)
		if err != nil {
			return fmt.Errorf("run %s on this machine: %w", s.name, err)
		}
		box, boxTime, err := runBox(ctx, s, program, work)
		if err != nil {
			return fmt.Errorf("run %s in a box: %w", s.name, err)
		}
		if late := late(hostTime, boxTime); late != "" {
			wrong++
			fmt.Printf("%-34s NOT COMPARED: it did not end within %v %s\n", s.name, suiteTime, late)
			continue
		}
		diff, bad := compare(s.name, host, box, expected)
		wrong += bad
		tests += len(host)
		fmt.Printf("%-34s %5d tests  host %5.1f s  box %5.1f s  %d differ, %d unexplained\n", s.name, len(host), hostTime.Seconds(), boxTime.Seconds(), len(diff), bad)
		for _, line := range diff {
			fmt.Println("   ", line)
		}
	}
	switch {
	case list:
		return nil
	case tests == 0 && wrong == 0:
		return fmt.Errorf("run suites: the name of none begins with %q; -list lists them", only)
	case wrong > 0:
		return fmt.Errorf("%d tests or suites differ without a line in differences.txt, no longer differ, or did not end", wrong)
	}
	fmt.Printf("%d tests end alike, or differ for a known reason\n", tests)
	return nil
}

// late returns where a suite ran into its time-out, or "".
func late(host, box time.Duration) string {
	switch {
	case host >= suiteTime:
		return "on this machine"
	case box >= suiteTime:
		return "in the box"
	}
	return ""
}

// compare returns a line for each test whose outcome differs, and how many of
// these lines are not expected or are expected and missing.
func compare(name string, host, box map[string]string, expected map[string]difference) (lines []string, bad int) {
	seen := map[string]bool{}
	for test := range host {
		seen[test] = true
	}
	for test := range box {
		seen[test] = true
	}
	for _, test := range slices.Sorted(maps.Keys(seen)) {
		h, b := orMissing(host[test]), orMissing(box[test])
		want, known := expected[name+" "+test]
		switch {
		case h == b && !known:
		case h == b:
			if want.sometimes {
				continue
			}
			bad++
			lines = append(lines, fmt.Sprintf("NO LONGER DIFFERS %s: %s", test, h))
		case known:
			lines = append(lines, fmt.Sprintf("%s: host %s, box %s (%s)", test, h, b, want.reason))
		default:
			bad++
			lines = append(lines, fmt.Sprintf("UNEXPLAINED %s: host %s, box %s", test, h, b))
		}
	}
	return lines, bad
}

func orMissing(outcome string) string {
	if outcome == "" {
		return "not run"
	}
	return outcome
}

type difference struct {
	reason    string
	sometimes bool // the outcome depends on the machine's load
}

// parseDifferences reads lines "SUITE TEST always|sometimes REASON".
func parseDifferences(text string) (map[string]difference, error) {
	known := map[string]difference{}
	scanner := bufio.NewScanner(strings.NewReader(text))
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.SplitN(line, " ", 4)
		if len(f) < 4 || f[2] != "always" && f[2] != "sometimes" {
			return nil, fmt.Errorf("read differences.txt:%d: want SUITE TEST always|sometimes REASON, got %q", n, line)
		}
		known[f[0]+" "+f[1]] = difference{f[3], f[2] == "sometimes"}
	}
	return known, scanner.Err()
}

// runHost runs a suite on this machine, as an ordinary user.
func runHost(ctx context.Context, s suite, work string) (map[string]string, time.Duration, error) {
	dir, err := os.MkdirTemp(work, "host-")
	if err != nil {
		return nil, 0, err
	}
	if s.dir != "" {
		if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
			return nil, 0, err
		}
	}
	args := withOut(s.command, filepath.Join(dir, "out.xml"))
	ctx, cancel := context.WithTimeout(ctx, suiteTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if os.Getuid() == 0 {
		if err := chownTree(dir); err != nil {
			return nil, 0, err
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: boxUser, Gid: boxUser}
	}
	start := time.Now()
	out, _ := cmd.CombinedOutput() // tests that fail are in the file
	took := time.Since(start)
	return outcomes(filepath.Join(dir, "out.xml"), out), took, nil
}

// outcomes reads a report. Of a suite that ended without one, for example because
// it ran out of memory, it prints the end of the output; "(report)" failed then.
func outcomes(path string, output []byte) map[string]string {
	results, err := readJUnit(path)
	if err != nil {
		fmt.Printf("    %v; the end of its output:\n%s\n", err, tail(output))
		return map[string]string{"(report)": "failed"}
	}
	results["(report)"] = "passed"
	return results
}

func chownTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, boxUser, boxUser)
	})
}

// runBox runs a suite in a box of its own.
func runBox(ctx context.Context, s suite, program, work string) (map[string]string, time.Duration, error) {
	out := filepath.Join(work, strings.ReplaceAll(s.name, "/", "-")+".xml")
	args := []string{"run", "--flavor", "large", "--python", "/usr/bin/python3", "--state-dir", filepath.Join(work, "state"), "--out", "out.xml:" + out}
	if s.dir != "" {
		args = append(args, "--copy", s.dir+"/.:.")
	}
	args = append(args, "--")
	args = append(args, withOut(s.command, "out.xml")...)
	ctx, cancel := context.WithTimeout(ctx, suiteTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	start := time.Now()
	text, _ := cmd.CombinedOutput()
	took := time.Since(start)
	return outcomes(out, text), took, nil
}

func withOut(command []string, out string) []string {
	args := slices.Clone(command)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{out}", out)
	}
	return args
}

func tail(b []byte) []byte { return b[max(0, len(b)-2000):] }

// readJUnit returns the outcome of each test: passed, failed or skipped.
func readJUnit(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	type testcase struct {
		Class   string    `xml:"classname,attr"`
		Name    string    `xml:"name,attr"`
		Failure *struct{} `xml:"failure"`
		Error   *struct{} `xml:"error"`
		Skipped *struct{} `xml:"skipped"`
	}
	results := map[string]string{}
	decoder := xml.NewDecoder(f)
	decoder.Strict = false // CPython's report repeats attributes of failures unquoted in places
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Local != "testcase" {
			continue
		}
		var c testcase
		if err := decoder.DecodeElement(&c, &start); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		name := strings.TrimPrefix(c.Class+"."+c.Name, ".")
		if _, file, ok := strings.Cut(name, "/test/node/"); ok {
			name = file // Node names tests by their whole path
		}
		name = strings.ReplaceAll(name, " ", "_")
		outcome := "passed"
		switch {
		case c.Failure != nil || c.Error != nil:
			outcome = "failed"
		case c.Skipped != nil:
			outcome = "skipped"
		}
		results[name] = outcome
	}
	if len(results) == 0 {
		return nil, fmt.Errorf("read %s: no tests in it", path)
	}
	return results, nil
}

// nodeTests unpacks Node's own tests of Buffer from npm's buffer package and has
// them test Node's Buffer instead of the package's.
func nodeTests(ctx context.Context, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	pack := exec.CommandContext(ctx, "npm", "pack", "--silent", "buffer@4.9.2")
	pack.Dir = dir
	out, err := pack.Output()
	if err != nil {
		return "", fmt.Errorf("npm pack buffer: %w", err)
	}
	archive := strings.TrimSpace(string(out))
	untar := exec.CommandContext(ctx, "tar", "xzf", archive, "--warning=no-unknown-keyword", "--no-same-owner")
	untar.Dir = dir
	if err := untar.Run(); err != nil {
		return "", fmt.Errorf("unpack %s: %w", archive, err)
	}
	src := filepath.Join(dir, "suite")
	if err := os.MkdirAll(filepath.Join(src, "test"), 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(dir, "package", "test", "node"), filepath.Join(src, "test", "node")); err != nil {
		return "", err
	}
	return src, os.WriteFile(filepath.Join(src, "index.js"), []byte("module.exports = require('node:buffer')\n"), 0o644)
}
