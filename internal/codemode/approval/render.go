package approval

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/plural"
	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

const (
	// maxShown bounds the characters of argument values in a question. They are divided
	// between the calls and then the arguments, so that none hides another.
	maxShown = 4000
	// minShown is the least share of an argument.
	minShown = 80
	// maxArguments bounds the arguments of a call that are shown. The question counts the
	// others.
	maxArguments = 20
	// maxSummary bounds the summary of a tool.
	maxSummary = 160
)

// background is what a question says about other calls.
type background struct {
	more   int                 // calls of the run that wait for the next question
	others int                 // runs of the owner that wait for approval
	last   []map[string]digest // of each group: the last approved call of its tool; nil: unknown
}

func (a *Approver) backgroundLocked(q *question) background {
	b := background{more: len(q.run.pending)}
	for r := range a.runs {
		if r != q.run && r.caller.Owner == q.run.caller.Owner && (r.open != nil || len(r.pending) > 0) {
			b.others++
		}
	}
	for _, g := range q.groups {
		last, _ := a.lastOfLocked(g[0].Owner).Get(g[0].target())
		b.last = append(b.last, last)
	}
	return b
}

// render sets the text and the form of a question, and the choices for each group.
// Each call and argument has its share of the text, which says what it leaves out.
func (a *Approver) render(q *question, other background) {
	var b strings.Builder
	box := ""
	if id := q.groups[0][0].Box; id != "" {
		shown, _ := boxName.show(id)
		box = " in box " + shown
	}
	calls := 0
	for _, g := range q.groups {
		calls += len(g)
	}
	fmt.Fprintf(&b, "A program%s wants to make %s. Nothing is called before you allow it.\n", box, plural.N(calls, "tool call"))
	properties := make(map[string]any)
	var required []string
	for i, g := range q.groups {
		server, _ := serverName.show(g[0].Server)
		tool, _ := toolName.show(g[0].Tool)
		title := fmt.Sprintf("%d. %s.%s", i+1, server, tool)
		b.WriteByte('\n')
		b.WriteString(title)
		if len(g) > 1 {
			fmt.Fprintf(&b, ", %d times with the same arguments", len(g))
		}
		b.WriteString(effect(g[0].Annotations))
		b.WriteByte('\n')
		if s := summary(g[0].Description); s != "" {
			fmt.Fprintf(&b, "   The server describes it as: %s\n", s)
		}
		whole := renderArguments(&b, g[0], maxShown/len(q.groups), other.last[i])
		choices := []Decision{AllowOnce, AllowRun, AllowAlways, Deny}
		if !whole {
			// A person approves for good only a call that the question shows in full.
			choices = []Decision{AllowOnce, AllowRun, Deny}
			b.WriteString("   You cannot allow this call for future runs, because the question does not show all of it.\n")
		}
		q.choices = append(q.choices, choices)
		properties[field(i)] = formField(title, choices, len(g), q.run.caller.ByResult)
		required = append(required, field(i))
	}
	if n := other.more; n > 0 {
		fmt.Fprintf(&b, "\n%s.\n", count(n, "more call of this program waits", "more calls of this program wait"))
	}
	if others := other.others; others > 0 {
		fmt.Fprintf(&b, "\n%s for your approval.\n", count(others, "other program waits", "other programs wait"))
	}
	fmt.Fprintf(&b, "\nIf you do not answer within %s, nothing is called and the program continues.", duration(a.o.Expiry))
	q.params = &mcp.ElicitParams{Mode: "form", Message: b.String(), RequestedSchema: map[string]any{"type": "object", "properties": properties, "required": required}}
}

// formField returns the schema of the choice for a group of n equal calls. Revisions of the
// protocol differ in how a choice has a title: modern ones use oneOf, earlier ones
// enumNames.
func formField(title string, choices []Decision, n int, modern bool) map[string]any {
	var values, titles []string
	var options []map[string]any
	for _, c := range choices {
		values, titles = append(values, string(c)), append(titles, choiceTitle(c, n))
		options = append(options, map[string]any{"const": string(c), "title": choiceTitle(c, n)})
	}
	if modern {
		return map[string]any{"type": "string", "title": title, "oneOf": options}
	}
	return map[string]any{"type": "string", "title": title, "enum": values, "enumNames": titles}
}

// choiceTitle returns the text of a choice for n equal calls.
func choiceTitle(c Decision, n int) string {
	switch c {
	case AllowOnce:
		if n > 1 {
			return fmt.Sprintf("Allow these %d calls", n)
		}
		return "Allow this call"
	case AllowRun:
		return "Allow ALL calls of this tool, with any arguments, until this run ends, except calls that you deny"
	case AllowAlways:
		return "Always allow this call, with exactly these arguments, in any future run of yours"
	}
	return "Deny"
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// duration returns a duration for people.
func duration(d time.Duration) string {
	if d >= time.Minute && d%time.Minute == 0 {
		return plural.N(int64(d/time.Minute), "minute")
	}
	return d.String()
}

func field(i int) string { return fmt.Sprintf("call_%d", i+1) }

// brief shortens text from outside for a message.
func brief(s string) string { return truncate.Runes(visible.Line(s), 300) }

// effect returns the effects that the server declares for a tool. A server without
// declarations may do anything. It reports access to other systems only if that is
// declared: the default of the protocol is true, and few servers state it.
func effect(a *mcp.ToolAnnotations) string {
	text := "may change or delete data"
	switch {
	case a != nil && a.ReadOnlyHint:
		text = "its server says that it only reads"
	case a != nil && a.DestructiveHint != nil && !*a.DestructiveHint:
		text = "its server says that it only adds"
	}
	if a != nil && a.OpenWorldHint != nil && *a.OpenWorldHint {
		text += "; may contact other systems"
	}
	return " (" + text + ")"
}

// sentenceEnd is the end of a sentence. "e.g. x" and "e.g. X" contain none.
var sentenceEnd = lazyregexp.New(`[^.\s]{2}[.!?]( )[\p{Lu}\p{Lo}]`)

// summary returns the first sentence of a tool's description on one line, quoted.
func summary(description string) string {
	text, _, _ := strings.Cut(strings.TrimSpace(truncate.Bytes(description, 4*maxSummary)), "\n")
	text = strings.Join(strings.Fields(text), " ")
	if end := sentenceEnd().FindStringSubmatchIndex(text); end != nil {
		text = text[:end[2]]
	}
	if text == "" {
		return ""
	}
	return `"` + truncate.Runes(strings.ReplaceAll(withoutMarkup(visible.Line(text)), `"`, "'"), maxSummary) + `"`
}

// renderArguments writes the arguments of a call, with at most room characters of their values,
// and a comparison with the last call that was approved. It reports whether it shows the whole
// call. Arguments that the tool declares come first, then short ones, so that the program cannot
// hide them among arguments that the server ignores.
func renderArguments(b *strings.Builder, p *pendingCall, room int, last map[string]digest) (whole bool) {
	members := membersOf(p.Arguments)
	names := slices.Sorted(maps.Keys(members))
	if len(names) == 0 {
		b.WriteString("   without arguments\n")
	}
	same, differ := 0, []string(nil)
	for _, n := range names {
		if of, ok := last[n]; ok && of == sha256.Sum256(members[n]) {
			same++
		} else {
			name, _ := argumentName(p, n)
			differ = append(differ, name)
		}
	}
	isDeclared := func(n string) bool { return p.Declared[n] }
	slices.SortStableFunc(names, func(x, y string) int {
		switch {
		case isDeclared(x) == isDeclared(y):
			return len(members[x]) - len(members[y])
		case isDeclared(x):
			return -1
		}
		return 1
	})
	shown := names[:min(len(names), maxArguments)]
	hidden := names[len(shown):]
	declared := slices.IndexFunc(shown, func(n string) bool { return !isDeclared(n) })
	if declared < 0 {
		declared = len(shown)
	}
	_, wholeServer := serverName.show(p.Server)
	_, wholeTool := toolName.show(p.Tool)
	whole = len(hidden) == 0 && wholeServer && wholeTool
	exact := whole
	for i, n := range shown {
		// Short values leave their share to the longer ones, and declared arguments theirs to
		// the others.
		rest := len(shown) - i
		if i < declared {
			rest = declared - i
		}
		share := max(room/rest, minShown)
		room -= min(len(members[n]), share)
		line := withoutMarkup(visible.Line(string(members[n])))
		dense := withoutCrowds(line)
		text, all := excerpt(dense, share)
		name, wholeName := argumentName(p, n)
		whole = whole && all && wholeName
		exact = exact && whole && dense == line
		if notes := notesOn(p, n, text); notes != "" {
			name += " (" + notes + ")"
		}
		if lines := breakLines(text, share/8); len(lines) == 1 {
			fmt.Fprintf(b, "   %s: %s\n", name, text)
		} else {
			fmt.Fprintf(b, "   %s:\n   | %s\n", name, strings.Join(lines, "\n   | "))
		}
	}
	if n := len(hidden); n > 0 {
		ignored := ""
		if p.Declared != nil && !slices.ContainsFunc(hidden, isDeclared) {
			ignored = ", none of them declared by the tool"
		}
		fmt.Fprintf(b, "   and %s NOT SHOWN here%s\n", count(n, "more argument is", "more arguments are"), ignored)
	}
	if !exact {
		fmt.Fprintf(b, "   SHA-256 of the whole call: %s\n", p.hash)
	}
	switch {
	case last == nil:
	case len(differ) == 0 && same == len(last):
		b.WriteString("   The last call of this tool that you allowed had the same arguments.\n")
	case same > 0 && len(differ) == 0:
		fmt.Fprintf(b, "   Unlike the last call of this tool that you allowed, this one leaves out %s; the others are the same.\n", plural.N(len(last)-same, "argument"))
	case same > 0:
		fmt.Fprintf(b, "   Changed since the last call of this tool that you allowed: %s. Unchanged: %s.\n",
			strings.Join(differ[:min(len(differ), maxArguments)], ", "), plural.N(same, "argument"))
	}
	return whole
}

// argumentName returns the name of an argument for a question, and whether that is the whole name.
func argumentName(p *pendingCall, n string) (text string, whole bool) {
	if p.Declared[n] {
		return declaredName.show(n)
	}
	return undeclaredName.show(n)
}

// notesOn returns what a person should know about an argument besides its value, which is shown as
// text.
func notesOn(p *pendingCall, n, text string) string {
	var notes []string
	if p.Declared != nil && !p.Declared[n] {
		notes = append(notes, "not declared by the tool")
	}
	if strings.ContainsFunc(text, isRightToLeft) {
		notes = append(notes, "has right-to-left letters: characters next to them may appear in another order")
	}
	return strings.Join(notes, "; ")
}
