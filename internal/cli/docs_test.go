//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// commandLimit bounds one command: npx is slow on a busy machine.
const commandLimit = 2 * time.Minute

// notRun lists the documents' commands that a test does not run, by prefix, with the
// reason. Commands of glovebox and their flags must exist in any case.
var notRun = []struct{ prefix, reason string }{
	{"claude ", "another program, which needs an account"},
	{"code ", "another program"},
	{"codex ", "another program, which needs an account"},
	{"gemini ", "another program, which needs an account"},
	{"sudo ", "changes the machine"},
	{"apt-get ", "changes the machine"},
	{"apt ", "changes the machine"},
	{"curl ", "needs a server that runs"},
	{"docker ", "another program"},
	{"podman ", "another program"},
	{"systemctl ", "changes the machine"},
	{"install ", "changes the machine"},
	{"useradd ", "changes the machine"},
	{"git clone ", "downloads"},
	{"npm ", "downloads"},
	{"npx ", "downloads"},
	{"pip ", "downloads"},
	{"python3 -m venv ", "downloads"},
	{"~/", "a program of the reader's own"},
	{"make", "CI runs the targets"},
	{"go ", "compiles for minutes; CI does the same"},
	{"glovebox serve", "does not end; TestServe covers it"},
	{"glovebox stdio", "waits for a client; the script stdio covers it"},
	{"glovebox mcp", "needs the reader's servers; the tutorial has those that are run"},
	{"glovebox run analysis.py", "needs the reader's files; the script run_python covers it"},
	{"glovebox attack", "takes minutes; TestAttack covers it"},
	{"glovebox template", "takes long; the script template covers it"},
	{"bin/glovebox", "the program as it is built from source"},
	{"scripts/", "the development of Glovebox"},
}

// alwaysRun are the commands, by prefix, that run and must succeed wherever a document
// shows them: they are fast and need no files of the reader.
var alwaysRun = []string{"glovebox token", "glovebox doctor", "glovebox run -- ", "glovebox version", "glovebox completion"}

// docCommand is a command that a document shows.
type docCommand struct {
	line string
	want string // what it prints; "" is not compared
	run  bool   // it stands in a console block
	file string // in place of a command: the name of a file, which want is
}

var (
	// fence begins a block: its language, and the name of a file.
	fence = regexp.MustCompile("^\\s*```(\\w*)(?: (\\S+))?$")
	// program is the beginning of a line that is a command where no $ says so.
	program = regexp.MustCompile(`^(?:[A-Z_]+=\S+ )*((?:bin/|\./)?glovebox|make|claude|codex|gemini|curl|sudo|apt-get|apt|npm|npx|pip|go|docker|podman|systemctl|git|scripts/\w+|python3|install|useradd)(?: |$)`)
	// mention is a command of ours in a sentence.
	mention = regexp.MustCompile("`(glovebox [a-z][^`]*)`")
	comment = regexp.MustCompile(`\s+# .*$`)
)

// docCommands returns the commands and named files of a document, in order.
func docCommands(text string) (list []docCommand, mentions []string) {
	inside, kind := false, ""
	var current *docCommand // whose output or content follows
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := fence.FindStringSubmatch(line); m != nil || inside && strings.TrimSpace(line) == "```" {
			current, inside = nil, !inside
			if inside {
				if kind = m[1]; m[2] != "" {
					list = append(list, docCommand{file: m[2]})
					current = &list[len(list)-1]
				}
			}
			continue
		}
		if !inside {
			if command, ok := strings.CutPrefix(line, "    "); ok && program.MatchString(command) {
				list = append(list, docCommand{line: comment.ReplaceAllString(command, "")})
				continue
			}
			for _, m := range mention.FindAllStringSubmatch(line, -1) {
				mentions = append(mentions, m[1])
			}
			continue
		}
		command, shown := strings.CutPrefix(line, "$ ")
		switch {
		case current != nil && current.file != "":
			current.want += line + "\n"
		case current != nil && strings.HasSuffix(current.line, "\\"):
			current.line = strings.TrimSuffix(current.line, "\\") + strings.TrimSpace(line)
		case shown || (kind == "" || kind == "sh" || kind == "bash") && program.MatchString(command):
			list = append(list, docCommand{line: comment.ReplaceAllString(command, ""), run: kind == "console"})
			current = &list[len(list)-1]
			if !shown && !strings.HasSuffix(command, "\\") {
				current = nil
			}
		case current != nil && kind == "console":
			current.want += line + "\n"
		}
	}
	return list, mentions
}

// Every command of every document is run, or listed with the reason why not; what a
// console block shows of its output is what it prints.
func TestDocuments(t *testing.T) {
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, path := range append(paths, "../../README.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		commands, mentions := docCommands(string(text))
		total += len(commands)
		t.Run(filepath.Base(path), func(t *testing.T) {
			for _, m := range mentions {
				checkSyntax(t, m)
			}
			t.Run("commands", func(t *testing.T) { runDocument(t, commands) })
		})
	}
	if total < 30 {
		t.Errorf("%d commands were found", total)
	}
}

// runDocument runs the commands of one document in a directory of their own, which is
// their HOME as well.
func runDocument(t *testing.T, commands []docCommand) {
	dir := ""
	for _, c := range commands {
		if c.file == "" {
			checkSyntax(t, c.line)
		}
		if c.file == "" && !c.run {
			if slices.ContainsFunc(alwaysRun, func(prefix string) bool { return strings.HasPrefix(c.line, prefix) }) {
				if dir == "" {
					dir = documentDir(t, commands)
				}
				// The test must not write to /etc.
				if out, err := documentCommand(t, dir, strings.ReplaceAll(c.line, "/etc/glovebox/", dir+"/")); err != nil {
					t.Errorf("$ %s\n%s\n%v", c.line, out, err)
				}
			} else if !listed(c.line) {
				t.Errorf("%q is neither in a console block, which is run, nor in notRun with a reason", c.line)
			}
			continue
		}
		if dir == "" {
			dir = documentDir(t, commands)
		}
		if c.file != "" {
			if !filepath.IsLocal(c.file) {
				t.Fatalf("the document names a file outside of its directory: %s", c.file)
			}
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.want), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, _ := documentCommand(t, dir, c.line); c.want != "" && !shown(c.want, got) {
			t.Fatalf("$ %s\nprints\n%s\nand the document says\n%s", c.line, got, c.want)
		}
	}
}

func listed(line string) bool {
	for _, n := range notRun {
		if strings.HasPrefix(line, n.prefix) {
			return true
		}
	}
	return false
}

// checkSyntax fails if a command of ours, or one of its flags, does not exist.
func checkSyntax(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if len(words) < 2 || words[0] != "glovebox" || strings.HasPrefix(words[1], "-") {
		return
	}
	cmd, rest, err := (&app{lookup: os.LookupEnv}).root().Find(words[1:])
	if err != nil || !cmd.HasParent() || cmd.HasSubCommands() && len(rest) > 0 && regexp.MustCompile(`^[a-z]+$`).MatchString(rest[0]) && cmd.ValidateArgs(rest[:1]) != nil {
		t.Errorf("%q: there is no such command", line)
		return
	}
	cmd.InitDefaultHelpFlag()
	cmd.InheritedFlags() // merges them
	for _, word := range rest {
		if word == "--" || word == "|" || word == "&&" {
			return // what follows is another program's
		}
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(name, "=")
		name = strings.TrimRight(name, ".,;:…]")
		var found *pflag.Flag
		if isFlag {
			found = cmd.Flags().Lookup(name)
		}
		if isFlag && found == nil {
			t.Errorf("%q: %s has no flag --%s", line, cmd.CommandPath(), name)
		}
	}
}

// documentDir returns a directory in which a reader could have typed the commands.
func documentDir(t *testing.T, commands []docCommand) string {
	t.Helper()
	dir := t.TempDir()
	if needsNode := func(c docCommand) bool { return strings.Contains(c.line+c.want, "npx") }; slices.ContainsFunc(commands, needsNode) {
		if err := os.Symlink(stock(t), filepath.Join(dir, "node_modules")); err != nil { // npx takes what is there
			t.Fatal(err)
		}
	}
	path, err := exec.LookPath("glovebox")
	if err != nil {
		t.Fatal(err)
	}
	// Servers get little of the environment; this one is started by itself.
	script := fmt.Sprintf("#!/bin/sh\nGLOVEBOX_STATE_DIR='%s/state' exec '%s' \"$@\"\n", dir, path)
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/glovebox"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// documentCommand runs a line in a shell and returns its output, and its error.
func documentCommand(t *testing.T, dir, line string) (string, error) {
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
	return strings.TrimRight(string(out), "\n"), err
}

// shown reports whether what was printed is what a document shows of it: … and ...
// stand for any text, and a line of it for any lines.
func shown(want, got string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(want, "\n")), `\.\.\.`, "…")
	pattern = regexp.MustCompile(`(?m)^…\n`).ReplaceAllString(pattern+"\n", `(?:.*\n)*?`)
	pattern = strings.ReplaceAll(pattern, "…", `.*`)
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString(got + "\n")
}

func TestShown(t *testing.T) {
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{"a\nb", "a\nb", true}, {"a\nb", "a\nc", false}, {"a…b", "a 12 b", true}, {"a...b", "a 12 b", true}, {"a…b", "a\nb", false},
		{"a\n…\nb", "a\nx\ny\nb", true}, {"a\n…\nb", "a\nb", true}, {"…\nb", "x\nb", true}, {"a\n…", "a\nx", true}, {"a\n…", "b\nx", false},
		{"", "", true}, {"", "x", false}, {"a.c", "abc", false},
	} {
		if got := shown(c.want, c.got); got != c.ok {
			t.Errorf("shown(%q, %q) = %v, want %v", c.want, c.got, got, c.ok)
		}
	}
}

func TestDocCommands(t *testing.T) {
	list, mentions := docCommands("Say `glovebox doctor --json`.\n\n    make demo    # builds\n    not a command\n\n```json a.json\n{}\n```\n\n```console\n$ glovebox \\\n    version\nv1\n...\n$ true\n```\n\n```sh\nglovebox serve\n```\n\n```go\nmake(x)\n```\n")
	want := []docCommand{
		{line: "make demo"}, {file: "a.json", want: "{}\n"},
		{line: "glovebox version", want: "v1\n...\n", run: true}, {line: "true", run: true}, {line: "glovebox serve"},
	}
	if fmt.Sprint(list) != fmt.Sprint(want) || fmt.Sprint(mentions) != "[glovebox doctor --json]" {
		t.Errorf("got  %+v, %q\nwant %+v", list, mentions, want)
	}
	if listed("rm -rf /") || !listed("sudo true") {
		t.Error("the list of commands that are not run is not consulted")
	}
}
