//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A block of a tutorial is a file to write, named after its language, or commands
// with what they print.
var block = regexp.MustCompile("(?ms)^```(json|console)(?: (\\S+))?\n(.*?)^```$")

// commandLimit bounds one command: npx is slow on a busy machine.
const commandLimit = 2 * time.Minute

// The tutorial does what it says: its files are written, its commands run one after
// the other, and print what it shows. In that, … stands for any text, and a line of
// it for any lines.
func TestTutorial(t *testing.T) {
	text, err := os.ReadFile("../../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(stock(t), filepath.Join(dir, "node_modules")); err != nil { // npx takes what is there
		t.Fatal(err)
	}
	program, err := exec.LookPath("glovebox")
	if err != nil {
		t.Fatal(err)
	}
	// Servers get little of the environment; this one is started by itself.
	script := fmt.Sprintf("#!/bin/sh\nGLOVEBOX_STATE_DIR='%s/state' exec '%s' \"$@\"\n", dir, program)
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/glovebox"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, b := range block.FindAllStringSubmatch(string(text), -1) {
		kind, name, body := b[1], b[2], b[3]
		if kind == "json" {
			if name == "" {
				continue // for another program
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !strings.HasPrefix(body, "$ ") {
			t.Fatalf("a console that does not begin with a command:\n%s", body)
		}
		for _, one := range strings.Split("\n"+body, "\n$ ")[1:] {
			line, want, _ := strings.Cut(strings.TrimRight(one, "\n"), "\n")
			commands++
			if got := tutorialCommand(t, dir, line); !shown(want, got) {
				t.Fatalf("$ %s\nprints\n%s\nand the tutorial says\n%s", line, got, want)
			}
		}
	}
	if commands < 10 {
		t.Errorf("%d commands were found", commands)
	}
}

// tutorialCommand runs a line in a shell and returns what a person would see.
func tutorialCommand(t *testing.T, dir, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("$ %s\n%v after %v:\n%s", line, err, commandLimit, out)
	}
	return strings.TrimRight(string(out), "\n")
}

// shown reports whether what was printed is what a document shows of it.
func shown(want, got string) bool {
	pattern := regexp.QuoteMeta(want)
	pattern = regexp.MustCompile(`(?m)^…\n`).ReplaceAllString(pattern+"\n", `(?:.*\n)*?`)
	pattern = strings.ReplaceAll(pattern, "…", `.*`)
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString(got + "\n")
}

func TestShown(t *testing.T) {
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{"a\nb", "a\nb", true}, {"a\nb", "a\nc", false}, {"a…b", "a 12 b", true}, {"a…b", "a\nb", false},
		{"a\n…\nb", "a\nx\ny\nb", true}, {"a\n…\nb", "a\nb", true}, {"…\nb", "x\nb", true}, {"a\n…", "a\nx", true}, {"a\n…", "b\nx", false},
		{"", "", true}, {"", "x", false}, {"a.c", "abc", false},
	} {
		if got := shown(c.want, c.got); got != c.ok {
			t.Errorf("shown(%q, %q) = %v, want %v", c.want, c.got, got, c.ok)
		}
	}
}
