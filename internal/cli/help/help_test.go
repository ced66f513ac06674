package help

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// sample returns a command with groups of flags, and one below it.
func sample() (parent, child *cobra.Command) {
	nothing := func(*cobra.Command, []string) {}
	parent = &cobra.Command{Use: "tool", Short: "A tool", Long: "Tool does\nmany things.\n\n  as it is  written\n\nAnd more.", Run: nothing}
	parent.PersistentFlags().String("shared", "", "shared by all")
	parent.PersistentFlags().String("secret", "", "hidden")
	parent.PersistentFlags().MarkHidden("secret")
	child = &cobra.Command{Use: "child", Short: "A child", Run: nothing}
	f := child.Flags()
	f.String("zeta", "z", "the last `letter` of the alphabet in Greek as it has been written since long ago")
	f.Int("alpha", 0, "`n` first")
	f.Bool("loose", false, "in no group")
	f.String("a-flag-whose-name-is-longer-than-the-column", "", "described below its name")
	Group(f, "Letters", "zeta", "alpha", "a-flag-whose-name-is-longer-than-the-column", "no-such-flag")
	Footer(child, "See also.")
	parent.AddCommand(child)
	Install(parent)
	return parent, child
}

func TestText(t *testing.T) {
	parent, child := sample()
	if got, want := Text(child, 60), `A child

Usage:
  tool child [flags]

Letters:
  --zeta letter  the last letter of the alphabet in Greek as
                 it has been written since long ago [z]
  --alpha n      first
  --a-flag-whose-name-is-longer-than-the-column string
                 described below its name

Other flags:
  --loose  in no group

Defaults are in [brackets].

Global flags, explained by "tool --help":
  --shared

See also.
`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Text(parent, 60); !strings.HasPrefix(got, "Tool does many things.\n\n  as it is  written\n\nAnd more.\n\nUsage:\n  tool [flags]\n  tool COMMAND\n") {
		t.Errorf("got\n%s", got)
	}
}

// No line exceeds the width, unless a single word does.
func TestWidth(t *testing.T) {
	parent, child := sample()
	for _, cmd := range []*cobra.Command{parent, child} {
		for _, width := range []int{minWidth, 60, 80, 200} {
			for line := range strings.Lines(Text(cmd, width)) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width && !strings.Contains(line, "longer-than-the-column") {
					t.Errorf("%s at %d columns: got %d: %q", cmd.Name(), width, n, line)
				}
			}
		}
	}
	if got := Width(&bytes.Buffer{}); got != defaultWidth {
		t.Errorf("without a terminal: got %d columns, want %d", got, defaultWidth)
	}
}

// Requested help goes to standard output.
func TestInstall(t *testing.T) {
	parent, child := sample()
	var out bytes.Buffer
	parent.SetOut(&out)
	parent.SetArgs([]string{"child", "--help"})
	if err := parent.Execute(); err != nil {
		t.Fatal(err)
	}
	// Cobra has added its own flag, --help, by now.
	if got, want := out.String(), Text(child, defaultWidth); got != want || !strings.Contains(got, "-h, --help") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
