package codemode

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/glovebox-dev/glovebox/internal/visible"
)

// DetailSchema is the detail of a description that has the JSON schemas of a tool. For
// any other detail it has the signature and documentation.
const DetailSchema = "schema"

// The other details, which programs may ask for.
const (
	detailFull       = "full"
	detailSignatures = "signatures" // a line as of a search
	detailNames      = "names"
)

type describeQuery struct {
	Names    []string `json:"names"`
	Detail   string   `json:"detail"` // "": the documentation
	Language string   `json:"language"`
}

const (
	// maxDocumented bounds the documentation in one answer, in bytes: a model reads it.
	maxDocumented = 24 << 10
	// maxParameterText bounds the description of a parameter, in bytes.
	maxParameterText = 600
)

// needsApproval marks tools that a person must approve, and deniedMark those that the policy
// denies.
const (
	needsApproval = "[needs approval]"
	deniedMark    = "[denied: do not call it]"
)

// mark returns what marks a tool; "" if code may call it.
func (b *Broker) mark(t Tool) string {
	switch b.policy.Load().Decide(t) {
	case Ask:
		return needsApproval
	case Deny:
		return deniedMark
	}
	return ""
}

// Describe returns the documentation or, for DetailSchema, the JSON schemas of the tools
// that names mean: SERVER.TOOL, or SERVER for all its tools. If they do not fit in one
// answer, a last entry without a name says how many are missing. notes has a sentence for
// each name that means no tool; the error is for names none of which means one.
func (b *Broker) Describe(ctx context.Context, names []string, detail string, l Language) (described []Entry, notes []string, err error) {
	tools, notes, err := b.selected(ctx, names)
	if err != nil {
		return nil, nil, err
	}
	described = []Entry{}
	size := 0
	for i, t := range tools {
		e := entryOf(t)
		if detail == DetailSchema {
			e.Text = schemaText(t, b.mark(t))
		} else {
			e.Text = b.documentation(t, l)
		}
		if size += len(e.Text); i > 0 && size > maxDocumented {
			return append(described, Entry{Text: l.comment() + moreTools(len(tools)-i, len(names) < len(tools))}), notes, nil
		}
		params := b.declarations.of(t.Tool).parameters
		e.Parameters = params[:min(len(params), maxParameters)]
		described = append(described, e)
	}
	return described, notes, nil
}

// describe answers a program. Entries without a name are notes.
func (r *Run) describe(ctx context.Context, in describeQuery) (any, error) {
	l := LanguageOf(in.Language)
	var described []Entry
	var notes []string
	var err error
	switch in.Detail {
	case "", detailFull, DetailSchema:
		described, notes, err = r.b.Describe(ctx, in.Names, in.Detail, l)
	case detailSignatures, detailNames:
		described, notes, err = r.b.Lines(ctx, in.Names, l)
		for i := range described {
			if e := &described[i]; in.Detail == detailNames {
				e.Text = e.Named()
			} else {
				e.Text = e.Line
			}
		}
	default:
		err = &Error{Code: InvalidArguments, Message: fmt.Sprintf("invalid detail %q: take %q, %q, %q or %q", brief(in.Detail), detailNames, detailSignatures, detailFull, DetailSchema)}
	}
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		described = append(described, Entry{Text: l.comment() + note})
	}
	return described, nil
}

// moreTools says that n tools are missing. named says that servers were named, for all their
// tools: then fewer names may be none.
func moreTools(n int, named bool) string {
	advice := "ask for fewer at once"
	if named {
		advice = "name single tools, which a search lists"
	}
	if n == 1 {
		return "1 more tool did not fit: " + advice
	}
	return fmt.Sprintf("%d more tools did not fit: %s", n, advice)
}

// maxNote bounds the note about a name that means no tool, in bytes.
const maxNote = 1000

// selected returns the tools that names mean, each once, and a note of one line for each name
// that means none. If all names mean none, it returns an error.
func (b *Broker) selected(ctx context.Context, names []string) (selected []Tool, notes []string, err error) {
	servers := b.o.Servers.Names()
	tooMany := &Error{Code: InvalidArguments, Message: fmt.Sprintf("the names mean more than %d tools: name single tools, which a search lists", maxFound)}
	if len(names) == 0 {
		return nil, nil, &Error{Code: InvalidArguments, Message: fmt.Sprintf("no name is given: name tools as SERVER.TOOL, or servers; the servers are %s", list(spelled(servers, serverIdentifier)))}
	}
	names = distinct(names)
	if len(names) > maxFound {
		return nil, nil, &Error{Code: InvalidArguments, Message: fmt.Sprintf("%d names are given: name at most %d at once", len(names), maxFound)}
	}
	var failed *Error                // of the first such name
	seen := make(map[[2]string]bool) // by server and name: lists are replaced as a whole
	down := make(map[string]bool)    // servers whose note says why none of their tools can be used
	unknown := false                 // a name means no tool of any server that is known now
	for _, name := range names {
		if ctx.Err() != nil { // nobody waits, and with thousands of tools a name takes long
			return nil, nil, &Error{Code: Timeout, Message: "the time for the answer is over: name fewer tools at once"}
		}
		if down[serverOf(name, servers)] {
			continue
		}
		tools, err := b.meant(ctx, name, servers)
		if err != nil {
			e := asError(ctx, err)
			unknown = unknown || e.Code == UnknownServer
			if failed == nil {
				failed = e
			}
			if note := oneLine(e.Message, maxNote); !slices.Contains(notes, note) {
				notes = append(notes, note)
			}
			if (e.Code == Unavailable || e.Code == Untrusted) && e.Server != "" && len(b.tools(ctx, e.Server)) == 0 {
				down[e.Server] = true
			}
		}
		for _, t := range tools {
			if is := [2]string{t.Server, t.Name}; !seen[is] {
				seen[is] = true
				selected = append(selected, t)
			}
		}
		if len(selected) > maxFound {
			return nil, nil, tooMany
		}
	}
	if n := len(notes) - maxListed; n > 0 {
		notes = append(notes[:maxListed], fmt.Sprintf("%d more names mean no tool", n))
	}
	if unknown {
		if note := b.starting(ctx); note != "" {
			notes = append(notes, note)
		}
	}
	switch {
	case failed == nil || len(selected) > 0:
		return selected, notes, nil
	case len(notes) == 1:
		return nil, nil, failed
	}
	return nil, nil, &Error{Code: failed.Code, Message: strings.Join(notes, "\n")}
}

// distinct returns each of the names once, in their order.
func distinct(names []string) (once []string) {
	seen := make(map[string]bool)
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			once = append(once, n)
		}
	}
	return once
}

// serverOf returns the server that a name is of, "" if there is none or it is not clear.
func serverOf(name string, servers []string) string {
	if server, _ := find(name, servers, serverIdentifier); server != "" {
		return server
	}
	word, _, _ := split(name, servers)
	server, _ := find(word, servers, serverIdentifier)
	return server
}

// meant returns the tools that a name means: a tool, a server for all its tools, or a tool
// without its server for all tools of that name.
func (b *Broker) meant(ctx context.Context, name string, servers []string) ([]Tool, error) {
	server, several := find(name, servers, serverIdentifier)
	switch {
	case len(several) > 1:
		return nil, ambiguousServer(name, several)
	case server != "":
		tools := b.tools(ctx, server)
		if len(tools) == 0 {
			if why := b.o.Servers.Unavailable(ctx, server, ""); why != nil {
				return nil, &Error{Server: server, Code: why.Code, Message: safe(why.Message)}
			}
		}
		return tools, nil
	case !strings.Contains(name, "."):
		if tools := b.toolsNamed(ctx, name, servers); len(tools) > 0 {
			return tools, nil
		}
		return nil, unknownServer(name, servers)
	}
	t, err := b.resolve(ctx, toolCall{Name: name})
	if err != nil {
		return nil, err
	}
	return []Tool{t}, nil
}

// Lines returns entries with one line for each of the tools that names mean, and notes,
// as Describe does.
func (b *Broker) Lines(ctx context.Context, names []string, l Language) (entries []Entry, notes []string, err error) {
	tools, notes, err := b.selected(ctx, names)
	entries = []Entry{}
	for _, t := range tools {
		entries = append(entries, b.line(t, l))
	}
	return entries, notes, err
}

// documentation returns the signature of a tool with its explanation.
func (b *Broker) documentation(t Tool, l Language) string {
	text := signatureWriter{&b.declarations, l}.signature(t)
	explanation := b.explanation(t, l)
	if note := others(b.declarations.of(t.Tool).parameters); note != "" && l == Python {
		explanation = strings.TrimPrefix(explanation+"\n"+note, "\n")
	}
	if explanation == "" {
		return text
	}
	return text + "\n    " + strings.ReplaceAll(explanation, "\n", "\n    ")
}

// explanation returns the description of a tool and of its arguments. It also says
// whether code may call it, and whether the signature is incomplete.
func (b *Broker) explanation(t Tool, l Language) string {
	var lines []string
	if text := safe(strings.TrimSpace(t.Description)); text != "" {
		lines = append(lines, text)
	}
	d := b.declarations.of(t.Tool)
	shown := d.parameters[:min(len(d.parameters), maxParameters)]
	shortened := d.unknown || len(shown) < len(d.parameters)
	sign := signatureWriter{&b.declarations, JavaScript} // the types of both languages are alike
	for _, p := range shown {
		shortened = shortened || sign.shortens(p.schema, 0, true)
		if len(p.Name) > maxParameter {
			continue
		}
		parts := []string{}
		if text := oneLine(p.Description, maxParameterText); text != "" {
			parts = append(parts, text)
		}
		if limits := constraints(p.schema); limits != "" {
			parts = append(parts, "("+limits+")")
		}
		if len(parts) > 0 {
			lines = append(lines, propertyName(p.Name)+": "+strings.Join(parts, " "))
		}
	}
	if mark := b.mark(t); mark != "" {
		lines = append(lines, mark)
	}
	if shortened || sign.shortens(d.output, 0, false) {
		lines = append(lines, shortenedNote(l))
	}
	return strings.Join(lines, "\n")
}

// shortenedNote says where the rest of a shortened description is.
func shortenedNote(l Language) string {
	if l == Shell {
		return "(shortened: see --schema)"
	}
	return `(shortened: see detail "schema")`
}

// maxSafeInteger is the largest integer of JavaScript. Generators of schemas add it as the
// bound of an integer that has none.
const maxSafeInteger = 1<<53 - 1

// constraints returns the constraints of a schema that its type does not show, on one
// line; "" if there are none.
func constraints(s *jsonschema.Schema) string {
	var parts []string
	number := func(name string, v *float64) {
		if v != nil && math.Abs(*v) < maxSafeInteger {
			parts = append(parts, fmt.Sprintf("%s %v", name, *v))
		}
	}
	count := func(name string, v *int) {
		if v != nil {
			parts = append(parts, fmt.Sprintf("%s %d", name, *v))
		}
	}
	number("minimum", s.Minimum)
	number("maximum", s.Maximum)
	number("more than", s.ExclusiveMinimum)
	number("less than", s.ExclusiveMaximum)
	number("multiple of", s.MultipleOf)
	count("minimum length", s.MinLength)
	count("maximum length", s.MaxLength)
	count("minimum items", s.MinItems)
	count("maximum items", s.MaxItems)
	if s.UniqueItems {
		parts = append(parts, "unique items")
	}
	if s.Pattern != "" {
		parts = append(parts, "pattern "+oneLine(quoted(s.Pattern), 200))
	}
	if s.Format != "" {
		parts = append(parts, "format "+oneLine(s.Format, 50))
	}
	return strings.Join(parts, ", ")
}

// hasNotes reports whether a schema has a description or constraints, which types do not show.
func hasNotes(s *jsonschema.Schema) bool { return s.Description != "" || constraints(s) != "" }

// shortens reports whether the type of a schema, nested in so many others, omits
// something: members, alternatives and, if notes is set, descriptions and constraints
// of what is nested.
func (s signatureWriter) shortens(schema *jsonschema.Schema, depth int, notes bool) bool {
	switch {
	case schema == nil, s.isWhole(schema) && !(notes && depth > 0 && hasNotes(schema)):
		return false
	case depth > maxDepth, schema.Ref != "", len(schema.AllOf) > 0, len(schema.PrefixItems) > 0,
		len(schema.Properties) > maxMembers, len(schema.Enum) > maxEnum, len(schema.AnyOf)+len(schema.OneOf) > maxUnion,
		notes && depth > 0 && hasNotes(schema),
		len(s.exactType(schema, depth)) > maxType:
		return true
	}
	if s.shortens(schema.Items, depth+1, notes) {
		return true
	}
	for _, all := range [][]*jsonschema.Schema{schema.AnyOf, schema.OneOf} {
		for _, part := range all {
			if s.shortens(part, depth+1, notes) {
				return true
			}
		}
	}
	for _, part := range schema.Properties {
		if s.shortens(part, depth+1, notes) {
			return true
		}
	}
	return false
}

// schemaText returns the JSON schemas of a tool on one line, with what marks it.
func schemaText(t Tool, mark string) string {
	b, err := json.Marshal(struct {
		Name   string `json:"name"`
		Input  any    `json:"input_schema"`
		Output any    `json:"output_schema,omitempty"`
		Mark   string `json:"note,omitempty"`
	}{t.dotted(), t.InputSchema, t.OutputSchema, mark})
	switch {
	case err != nil:
		return fmt.Sprintf("%s: encode schemas: %v", t.dotted(), err)
	case len(b) > maxSchema:
		return fmt.Sprintf("%s: the schemas have %d bytes, more than %d", t.dotted(), len(b), maxSchema)
	}
	return visible.Text(string(b))
}
