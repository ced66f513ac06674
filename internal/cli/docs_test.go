//go:build linux

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
)

// docCommand is a command or a file that a document shows.
type docCommand struct {
	line   string
	want   string // its output, not compared if ""; or the content of file
	file   string // not a command: the name of a file
	inline bool   // a sentence mentions it
}

// programNames matches the beginning of a command, up to its arguments.
const programNames = `(?:[A-Z_]+=\S+ )*((?:bin/|\./)?glovebox|make|claude|codex|gemini|curl|sudo|apt-get|apt|npm|npx|pip|go|docker|podman|` +
	`systemctl|git|python3?|install|useradd|chown|(?:scripts|packaging|conformance|~)/[^\s\x60]+)`

var (
	// fence begins a block: its language, and the name of a file.
	fence = regexp.MustCompile("^\\s*```(\\w*)(?: (\\S+))?$")
	// typedCommand matches a line that is a command although no $ says so.
	typedCommand = regexp.MustCompile(`^` + programNames + `(?: |$)`)
	// mention matches a command in a sentence.
	mention = regexp.MustCompile("`(" + programNames + "(?: [^`]*)?)`")
	comment = regexp.MustCompile(`\s+# .*$`)
)

// docCommands returns the commands and named files of a document: those in blocks in
// order, then those in sentences. In an indented or plain block that begins with a
// command, each line is one; in a block with prompts, the lines after $ are commands and
// the others their output.
func docCommands(text string) []docCommand {
	var blocks, inline []docCommand
	var (
		fenced, plain bool   // in a fenced block; in a block of commands without prompts
		kind          string // of the fenced block
		last          *docCommand
	)
	add := func(c docCommand) {
		blocks = append(blocks, c)
		last = &blocks[len(blocks)-1]
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := fence.FindStringSubmatch(line); m != nil || fenced && strings.TrimSpace(line) == "```" {
			fenced, plain, last = !fenced, false, nil
			if fenced {
				if kind = m[1]; m[2] != "" {
					add(docCommand{file: m[2]})
				}
			}
			continue
		}
		body, indented := strings.CutPrefix(line, "    ")
		if fenced {
			body = line
		} else if !indented {
			plain, last = false, nil
			for _, m := range mention.FindAllStringSubmatch(line, -1) {
				inline = append(inline, docCommand{line: m[1], inline: true})
			}
			continue
		}
		typed, prompt := strings.CutPrefix(body, "$ ")
		switch {
		case last != nil && last.file != "":
			last.want += line + "\n"
		case last != nil && strings.HasSuffix(last.line, "\\"):
			last.line = strings.TrimSuffix(last.line, "\\") + strings.TrimSpace(body)
		case prompt:
			plain = false
			add(docCommand{line: typed})
		case plain && body != "" || last == nil && typedCommand.MatchString(body) && (!fenced || kind == "" || kind == "sh" || kind == "bash"):
			plain = true
			add(docCommand{line: body})
		case last != nil && !plain:
			last.want += body + "\n"
		}
	}
	for i := range blocks {
		blocks[i].line = comment.ReplaceAllString(blocks[i].line, "")
	}
	return append(blocks, inline...)
}

// Every command of every document runs, or is listed with the reason why not; what a
// document shows of its output is what it prints.
func TestDocuments(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"../../docs/*.md", "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	ran := &notRunLines{met: map[string]bool{}}
	total, documents := 0, sync.Map{}
	t.Run("of", func(t *testing.T) {
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			commands := docCommands(string(text))
			total += len(commands)
			t.Run(filepath.Base(path), func(t *testing.T) {
				t.Parallel()
				documents.Store(path, nil)
				r := newReader(t, filepath.Base(path), commands, ran)
				for _, c := range commands {
					r.follow(c)
				}
			})
		}
	})
	if total < 100 {
		t.Errorf("%d commands were found", total)
	}
	for _, path := range paths {
		if _, ok := documents.Load(path); !ok {
			return // -run selected some documents
		}
	}
	ran.checkUnused(t)
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
	list := docCommands("Say `glovebox doctor --json` or `pip`.\n\n    make demo    # builds\n    ~/x/pip \\\n      install\n\n    not a command\n\n" +
		"```json a.json\n{}\n```\n\n```console\n$ glovebox \\\n    version\nv1\n...\n$ true\n```\n\n" +
		"```\nglovebox serve   # here\nother\n```\n\n```go\nmake(x)\n```\n")
	want := []docCommand{
		{line: "make demo"}, {line: "~/x/pip install"}, {file: "a.json", want: "{}\n"},
		{line: "glovebox version", want: "v1\n...\n"}, {line: "true"}, {line: "glovebox serve"}, {line: "other"},
		{line: "glovebox doctor --json", inline: true}, {line: "pip", inline: true},
	}
	if fmt.Sprintf("%+v", list) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", list, want)
	}
}
