package cli

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// allCommands returns root and all commands below it.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		list = append(list, allCommands(sub)...)
	}
	return list
}

// No line of any help is wider than the terminal.
func TestHelp_FitsTheTerminal(t *testing.T) {
	a := &app{lookup: os.LookupEnv}
	root := a.root()
	root.InitDefaultCompletionCmd()
	for _, cmd := range allCommands(root) {
		for _, width := range []int{80, 100} {
			for line := range strings.Lines(help.Text(cmd, width)) {
				if strings.HasPrefix(line, `  {"`) {
					continue // to copy
				}
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
					t.Errorf("%s --help at %d columns: got %d: %s", cmd.CommandPath(), width, n, line)
				}
			}
		}
	}
	for line := range strings.Lines(settingsText(80)) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("settings: got %d columns: %s", n, line)
		}
	}
	_, out, _ := run("serve", "--help")
	for line := range strings.Lines(out) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("without a terminal: %s", line)
		}
	}
}

// Help lists every setting's flag below the heading of the documentation, in one line.
func TestHelp_GroupsSettings(t *testing.T) {
	titles, names := config.GroupTitles()
	_, out, _ := run("serve", "--help")
	var found []string
	for _, m := range regexp.MustCompile(`(?m)^([A-Z].*):$`).FindAllStringSubmatch(out, -1) {
		if m[1] != "Usage" && m[1] != "Other flags" {
			found = append(found, m[1])
		}
	}
	if !slices.Equal(found, titles) {
		t.Errorf("got headings %q, want %q", found, titles)
	}
	settings := settingsText(80)
	secret := map[string]bool{}
	for _, k := range config.Keys() {
		secret[k.Name] = !k.HasFlag()
	}
	for _, title := range titles {
		_, section, _ := strings.Cut(out, "\n"+title+":\n")
		section, _, _ = strings.Cut(section, "\n\n")
		for _, name := range names[title] {
			if secret[name] {
				continue
			}
			if !regexp.MustCompile(`(?m)^  --` + name + `\b`).MatchString(section) {
				t.Errorf("--%s is not under %s:\n%s", name, title, section)
			}
			if !strings.Contains(settings, "--"+name) {
				t.Errorf("the topic settings lacks --%s", name)
			}
		}
	}
	for _, k := range config.Keys() {
		if n := utf8.RuneCountInString(k.Short); n == 0 || n > 42 || strings.HasSuffix(k.Short, ".") {
			t.Errorf("%s: the short description must have 1 to 42 characters and no period, got %q", k.Name, k.Short)
		}
	}
	if n := strings.Count(out, "\n"); n > 140 {
		t.Errorf("serve --help has %d lines", n)
	}
}
