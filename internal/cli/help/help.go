// Package help renders the help of commands: flags in named groups, and no
// line wider than the terminal. It knows nothing of what the commands do.
package help

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

const (
	// groupKey annotates a flag with the title of its group.
	groupKey = "glovebox_help_group"
	// footerKey annotates a command with the text below its flags.
	footerKey = "glovebox_help_footer"

	// defaultWidth is the line length where the output is not a terminal.
	defaultWidth = 80
	// minWidth keeps help readable in a tiny window, which then wraps by itself.
	minWidth = 40
	// maxLeft is the width of the left column above which a description starts on a
	// line of its own.
	maxLeft = 30
)

// Install makes root and every command below it print help with this package.
// Help wraps at the width of the terminal that the command's output is, or at 80
// columns.
func Install(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		io.WriteString(cmd.OutOrStdout(), Text(cmd, Width(cmd.OutOrStdout())))
	})
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := io.WriteString(cmd.OutOrStderr(), usage(cmd, Width(cmd.OutOrStderr())))
		return err
	})
}

// Group puts flags of fs under a title. Groups appear in the order of their first
// flag; flags without a group come last, under "Other flags". A name that fs does
// not have is ignored, so that commands with fewer flags can share a list.
func Group(fs *pflag.FlagSet, title string, names ...string) {
	for _, name := range names {
		if fs.Lookup(name) != nil {
			_ = fs.SetAnnotation(name, groupKey, []string{title}) // the flag exists
		}
	}
}

// Footer sets the text that follows the flags of cmd.
func Footer(cmd *cobra.Command, text string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[footerKey] = text
}

// Width returns how many columns a line written to w may have.
func Width(w io.Writer) int {
	if f, ok := w.(interface{ Fd() uintptr }); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return max(columns, minWidth)
		}
	}
	return defaultWidth
}

// Text returns the whole help of cmd in lines of at most width columns, where no
// single word is longer.
func Text(cmd *cobra.Command, width int) string {
	long := cmd.Long
	if long == "" {
		long = cmd.Short
	}
	if long = Reflow(strings.TrimSpace(long), width); long != "" {
		long += "\n\n"
	}
	if !cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		return strings.TrimRight(long, "\n") + "\n" // a help topic, which is no command
	}
	return long + usage(cmd, width)
}

// usage is the help below the description.
func usage(cmd *cobra.Command, width int) string {
	// Flags appear as they are declared, which is how the groups are ordered.
	cmd.Flags().SortFlags, cmd.PersistentFlags().SortFlags = false, false
	local, inherited := cmd.LocalFlags(), cmd.InheritedFlags()
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.Runnable() {
		fmt.Fprintf(&b, "%s\n", wrap("  ", "    ", cmd.UseLine(), width))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "%s\n", wrap("  ", "    ", cmd.CommandPath()+" COMMAND", width))
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n%s\n", wrap("  ", "  ", cmd.NameAndAliases(), width))
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	var commands, topics []entry
	for _, sub := range cmd.Commands() {
		switch {
		case sub.IsAvailableCommand() || sub.Name() == "help":
			commands = append(commands, entry{sub.Name(), sub.Short})
		case sub.IsAdditionalHelpTopicCommand():
			topics = append(topics, entry{sub.Name(), sub.Short})
		}
	}
	section(&b, "Commands", commands, width)
	section(&b, "Topics", topics, width)
	defaults := false
	for _, g := range flagGroups(local) {
		section(&b, g.title, g.entries, width)
		defaults = defaults || g.defaults
	}
	if defaults {
		b.WriteString("\nDefaults are in [brackets].\n")
	}
	if names := flagNames(inherited); names != "" {
		title := fmt.Sprintf("Global flags, explained by %q:", cmd.Parent().CommandPath()+" --help")
		fmt.Fprintf(&b, "\n%s\n%s\n", wrap("", "", title, width), wrap("  ", "  ", names, width))
	}
	if text := cmd.Annotations[footerKey]; text != "" {
		fmt.Fprintf(&b, "\n%s\n", Reflow(text, width))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s\n", wrap("", "", fmt.Sprintf("%q explains a command.", cmd.CommandPath()+" COMMAND --help"), width))
	}
	return b.String()
}

// entry is a line of a section: a name and what it is for.
type entry struct{ left, right string }

type flagGroup struct {
	title    string
	entries  []entry
	defaults bool // a default is shown
}

// flagGroups returns the flags that are not hidden, by group.
func flagGroups(fs *pflag.FlagSet) []flagGroup {
	var groups []flagGroup
	rest := flagGroup{title: "Flags"}
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		group := &rest
		if title := f.Annotations[groupKey]; len(title) > 0 {
			i := slices.IndexFunc(groups, func(g flagGroup) bool { return g.title == title[0] })
			if i < 0 {
				i, groups = len(groups), append(groups, flagGroup{title: title[0]})
			}
			group = &groups[i]
		}
		group.add(f)
	})
	if len(groups) > 0 {
		rest.title = "Other flags"
	}
	return append(groups, rest)
}

// add appends a flag in one line. A word in backquotes at the beginning of its usage
// names the value and is not part of the description.
func (g *flagGroup) add(f *pflag.Flag) {
	value, text := pflag.UnquoteUsage(f)
	if rest, ok := strings.CutPrefix(f.Usage, "`"+value+"` "); ok {
		text = rest
	}
	left := "--" + f.Name
	if f.Shorthand != "" {
		left = "-" + f.Shorthand + ", " + left
	}
	if value != "" {
		left += " " + value
	}
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
	default:
		text += " [" + strings.Trim(f.DefValue, "[]") + "]"
		g.defaults = true
	}
	g.entries = append(g.entries, entry{left, text})
}

// flagNames lists the flags that are not hidden.
func flagNames(fs *pflag.FlagSet) string {
	var names []string
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return strings.Join(names, " ")
}

// section writes a titled list in two columns.
func section(b *strings.Builder, title string, entries []entry, width int) {
	if len(entries) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n", title)
	most := min(maxLeft, width/2)
	column := 0
	for _, e := range entries {
		if n := utf8.RuneCountInString(e.left); n <= most {
			column = max(column, n)
		}
	}
	indent := strings.Repeat(" ", column+4)
	for _, e := range entries {
		n := utf8.RuneCountInString(e.left)
		if n > column {
			fmt.Fprintf(b, "  %s\n%s\n", e.left, wrap(indent, indent, e.right, width))
			continue
		}
		fmt.Fprintln(b, wrap("  "+e.left+strings.Repeat(" ", column-n+2), indent, e.right, width))
	}
}

// Reflow wraps every paragraph of text to width columns. Lines that begin with a
// space or a tab, such as examples, stay as they are.
func Reflow(text string, width int) string {
	var out, paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			out = append(out, wrap("", "", strings.Join(paragraph, " "), width))
			paragraph = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		if line == "" || line[0] == ' ' || line[0] == '\t' {
			flush()
			out = append(out, line)
			continue
		}
		paragraph = append(paragraph, line)
	}
	flush()
	return strings.Join(out, "\n")
}

// Indent wraps text to width columns with indent before every line.
func Indent(indent, text string, width int) string { return wrap(indent, indent, text, width) }

// wrap breaks text between words into lines of at most width columns, which begin
// with first and then with rest.
func wrap(first, rest, text string, width int) string {
	var b strings.Builder
	b.WriteString(first)
	column, begun := utf8.RuneCountInString(first), false
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case begun && column+1+n > width:
			b.WriteString("\n" + rest)
			column = utf8.RuneCountInString(rest)
		case begun:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column, begun = column+n, true
	}
	return strings.TrimRight(b.String(), " ")
}
