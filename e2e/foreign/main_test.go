package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	expected, err := parseDifferences("# why\ns known always gVisor says 0\ns flaky sometimes slow\ns gone always mended since\n")
	if err != nil {
		t.Fatal(err)
	}
	host := map[string]string{"same": "passed", "known": "passed", "flaky": "passed", "gone": "passed", "new": "passed", "only": "skipped"}
	box := map[string]string{"same": "passed", "known": "failed", "flaky": "passed", "gone": "passed", "new": "failed"}
	lines, bad := compare("s", host, box, expected)
	want := []string{
		"NO LONGER DIFFERS gone: passed",
		"known: host passed, box failed (gVisor says 0)",
		"UNEXPLAINED new: host passed, box failed",
		"UNEXPLAINED only: host skipped, box not run",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") || bad != 3 {
		t.Errorf("compare found %d unexplained:\n%s\nwant 3:\n%s", bad, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestParseDifferences(t *testing.T) {
	for _, text := range []string{"s test", "s test maybe reason", "s test always"} {
		if _, err := parseDifferences(text); err == nil {
			t.Errorf("parseDifferences(%q) accepts the line", text)
		}
	}
	if _, err := parseDifferences(differences); err != nil {
		t.Error(err)
	}
}

func TestReadJUnit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.xml")
	text := `<testsuites><testsuite><testcase classname="a.B" name="one two"/><testcase name="a.B.three"><failure/></testcase>` +
		`<testcase classname="a" name="four"><skipped/></testcase></testsuite></testsuites>`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readJUnit(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a.B.one_two": "passed", "a.B.three": "failed", "a.four": "skipped"}
	for name, outcome := range want {
		if got[name] != outcome {
			t.Errorf("test %q is %q, want %q", name, got[name], outcome)
		}
	}
	if err := os.WriteFile(path, []byte("<testsuites></testsuites>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readJUnit(path); err == nil {
		t.Error("readJUnit accepts a report without tests")
	}
}
