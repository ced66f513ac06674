package codemode

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// identifier returns the name as programs write it after a dot.
func identifier(name string) string {
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name)
	if id == "" || id[0] >= '0' && id[0] <= '9' || id[0] == '_' || keywords[id] {
		// Names that begin with an underscore belong to the languages.
		id = "t_" + strings.TrimLeft(id, "_")
	}
	return id
}

// maxName bounds the names of tools, in bytes. The protocol recommends at most 128.
const maxName = 200

// tools returns the tools of a server, or of all servers for "", that programs can name.
// It leaves out tools whose names are too long or have characters that a person cannot
// see, because nobody could judge a call.
func (b *Broker) tools(ctx context.Context, server string) []Tool {
	all := b.o.Servers.Tools(ctx, server)
	named := make([]Tool, 0, len(all))
	for _, t := range all {
		if t.Name != "" && len(t.Name) <= maxName && visible.IsPlain(t.Name) {
			named = append(named, t)
		}
	}
	ambiguous := ambiguousNames(b.o.Servers.Names(), serverIdentifier)
	names := make(map[string][]string) // of tools, by server
	for _, t := range named {
		names[t.Server] = append(names[t.Server], t.Name)
	}
	ambiguousTools := make(map[string]map[string]bool, len(names)) // by server
	for s, all := range names {
		ambiguousTools[s] = ambiguousNames(all, identifier)
	}
	for i := range named {
		t := &named[i]
		t.ambiguousServer, t.ambiguousName = ambiguous[t.Server], ambiguousTools[t.Server][t.Name]
	}
	return named
}

// ambiguousNames returns the names whose identifier, as find resolves it, means another
// name or more than one. id returns the identifier of a name.
func ambiguousNames(names []string, id func(string) string) map[string]bool {
	count := make(map[string]int) // names with the identifier, without the identifier itself
	for _, n := range names {
		if i := id(n); i != n {
			count[i]++
		}
	}
	if len(count) == 0 {
		return nil
	}
	for _, n := range names {
		if _, taken := count[n]; taken {
			count[n]++ // the name itself takes precedence
		}
	}
	ambiguous := make(map[string]bool)
	for _, n := range names {
		if i := id(n); i != n && count[i] > 1 {
			ambiguous[n] = true
		}
	}
	return ambiguous
}

// path returns the expression for the tool in Python and JavaScript.
func (t Tool) path() string {
	return serverPath(t.Server, t.ambiguousServer) + member(t.Name, identifier(t.Name), t.ambiguousName)
}

// serverPath returns the expression for a server in Python and JavaScript. ambiguous says
// that its identifier does not mean it.
func serverPath(server string, ambiguous bool) string {
	return "tools" + member(server, serverIdentifier(server), ambiguous)
}

func member(name, id string, ambiguous bool) string {
	if ambiguous {
		return "[" + quoted(name) + "]"
	}
	return "." + id
}

// dotted returns the name of the tool as SERVER.TOOL, with identifiers where they mean it.
func (t Tool) dotted() string {
	server, name := serverIdentifier(t.Server), identifier(t.Name)
	if t.ambiguousServer {
		server = t.Server
	}
	if t.ambiguousName {
		name = t.Name
	}
	return server + "." + name
}

// serverIdentifier returns the name of a server as programs write it after "tools.".
func serverIdentifier(name string) string {
	if name == "search" || name == "describe" { // members of tools
		return "t_" + name
	}
	return identifier(name)
}

// keywords cannot follow a dot in Python, or are members that its objects and those of
// JavaScript have, or that the language asks for when it prints or awaits one.
var keywords = map[string]bool{
	"False": true, "None": true, "True": true, "and": true, "as": true, "assert": true, "async": true, "await": true, "break": true,
	"class": true, "continue": true, "def": true, "del": true, "elif": true, "else": true, "except": true, "for": true,
	"from": true, "global": true, "if": true, "import": true, "in": true, "is": true, "lambda": true, "nonlocal": true, "not": true,
	"or": true, "pass": true, "raise": true, "return": true, "try": true, "while": true, "with": true, "yield": true,
	"then": true, "catch": true, "finally": true, "constructor": true, "prototype": true, "toJSON": true, "toString": true, "valueOf": true,
}

// find returns the name that a program means: the exact one, else the only one with that
// identifier, which id returns.
func find(word string, names []string, id func(string) string) (name string, ambiguous []string) {
	if slices.Contains(names, word) {
		return word, nil
	}
	for _, n := range names {
		if id(n) == word {
			ambiguous = append(ambiguous, n)
		}
	}
	if len(ambiguous) == 1 {
		return ambiguous[0], nil
	}
	return "", ambiguous
}

// resolve returns the tool that a call names.
func (b *Broker) resolve(ctx context.Context, in toolCall) (Tool, error) {
	servers := b.o.Servers.Names()
	server, tool := in.Server, in.Tool
	if in.Name != "" {
		var ok bool
		if server, tool, ok = split(in.Name, servers); !ok {
			if s, _ := find(in.Name, servers, serverIdentifier); s != "" {
				return Tool{}, b.serverAsTool(s, servers, LanguageOf(in.Language))
			}
			if err := b.toolAsServer(ctx, in.Name, servers, LanguageOf(in.Language)); err != nil {
				return Tool{}, err
			}
			return Tool{}, &Error{Code: InvalidArguments, Message: fmt.Sprintf("the name %q is not SERVER.TOOL; the servers are %s", brief(in.Name), list(spelled(servers, serverIdentifier)))}
		}
	}
	s, several := find(server, servers, serverIdentifier)
	switch {
	case len(several) > 1:
		return Tool{}, ambiguousServer(server, several)
	case s == "":
		if tool == "" {
			if err := b.toolAsServer(ctx, server, servers, LanguageOf(in.Language)); err != nil {
				return Tool{}, err
			}
		}
		return Tool{}, unknownServer(server, servers)
	case tool == "":
		return Tool{}, b.serverAsTool(s, servers, LanguageOf(in.Language))
	}
	tools := b.tools(ctx, s)
	t, err := pick(tools, s, tool)
	if t.Tool == nil && err == nil {
		if why := b.o.Servers.Unavailable(ctx, s, tool); why != nil {
			return Tool{}, &Error{Server: s, Code: why.Code, Message: safe(why.Message)}
		}
		tools = b.tools(ctx, s) // it may have become available
		if t, err = pick(tools, s, tool); t.Tool == nil && err == nil {
			err = unknownTool(tools, s, ambiguousNames(servers, serverIdentifier)[s], tool, LanguageOf(in.Language))
		}
	}
	return t, err
}

// toolAsServer returns the error for a name of a tool where a program has to name its server; nil
// if no server has a tool of that name.
func (b *Broker) toolAsServer(ctx context.Context, word string, servers []string, l Language) error {
	if word == "" {
		return nil
	}
	found := b.toolsNamed(ctx, word, servers)
	if len(found) == 0 {
		return nil
	}
	paths := make([]string, len(found))
	for i, t := range found {
		if paths[i] = t.path(); l == Shell {
			paths[i] = "glovebox-tool " + shellWord(t.dotted())
		}
	}
	e := &Error{Code: UnknownServer, Message: fmt.Sprintf("%q is a tool and no server: call %s", brief(word), either(paths, " or "))}
	if len(found) == 1 {
		e.Signature = signatureWriter{&b.declarations, l}.signature(found[0])
	}
	return e
}

// toolsNamed returns the tools of any server that have a name.
func (b *Broker) toolsNamed(ctx context.Context, word string, servers []string) (found []Tool) {
	all := b.tools(ctx, "")
	for _, s := range servers {
		if t, err := pick(all, s, word); err == nil && t.Tool != nil {
			found = append(found, t)
		}
	}
	return found
}

// serverAsTool returns the error for a call that names a server and no tool of it.
func (b *Broker) serverAsTool(server string, servers []string, l Language) error {
	path, id := serverPath(server, ambiguousNames(servers, serverIdentifier)[server]), quoted(server)
	call, describe := path+".TOOL(...)", "tools.describe("+id+")"
	if l == Shell {
		call, describe = "glovebox-tool "+shellWord(server)+".TOOL", "glovebox-tool --describe "+shellWord(server)
	}
	return &Error{Server: server, Code: UnknownTool, Message: fmt.Sprintf("%s is a server: call one of its tools, %s; list: %s", path, call, describe)}
}

// pick returns the tool of a server that a program means; none if there is none.
func pick(tools []Tool, server, word string) (Tool, error) {
	name, several := find(word, namesOf(tools, server), identifier)
	if len(several) > 1 {
		return Tool{}, &Error{Server: server, Code: UnknownTool, Message: fmt.Sprintf("%q may be each of the tools %s: write tools[\"%s\"][\"%s\"]", brief(word), list(several), server, several[0])}
	}
	if i := slices.IndexFunc(tools, func(t Tool) bool { return t.Server == server && t.Name == name }); i >= 0 && name != "" {
		return tools[i], nil
	}
	return Tool{}, nil
}

func namesOf(tools []Tool, server string) (names []string) {
	for _, t := range tools {
		if t.Server == server {
			names = append(names, t.Name)
		}
	}
	return names
}

func ambiguousServer(word string, several []string) error {
	return &Error{Code: UnknownServer, Message: fmt.Sprintf("%q may be each of the servers %s: write tools[%q]", brief(word), list(several), several[0])}
}

// spelled returns names as programs write them: identifiers, but the names themselves
// where several have the same identifier.
func spelled(names []string, id func(string) string) []string {
	count := make(map[string]int, len(names))
	for _, n := range names {
		count[id(n)]++
	}
	all := make([]string, len(names))
	for i, n := range names {
		if all[i] = id(n); count[all[i]] > 1 {
			all[i] = n
		}
	}
	return all
}

func unknownServer(word string, servers []string) error {
	if len(servers) == 0 {
		return &Error{Code: UnknownServer, Message: "no server is configured: the user can add some to the mcp.json that Glovebox was started with"}
	}
	servers = spelled(servers, serverIdentifier)
	return &Error{Code: UnknownServer, Message: fmt.Sprintf("there is no server %q%s; the servers are %s", brief(word), suggest(word, servers), list(servers))}
}

func unknownTool(tools []Tool, server string, ambiguous bool, word string, l Language) error {
	names := spelled(namesOf(tools, server), identifier)
	if len(names) == 0 {
		return &Error{Server: server, Code: UnknownTool, Message: fmt.Sprintf("the server %q has no tools", server)}
	}
	id := serverIdentifier(server)
	if ambiguous {
		id = server
	}
	hint := "; list: "
	if near := suggest(word, names); near != "" {
		hint = near + " List: "
	}
	if l == Shell {
		hint += "glovebox-tool --describe " + shellWord(id)
	} else {
		hint += fmt.Sprintf("tools.describe(%q)", id)
	}
	e := &Error{Server: server, Code: UnknownTool, Message: fmt.Sprintf("there is no tool %q in %s%s", brief(word), serverPath(server, ambiguous), hint)}
	if len(word) <= maxName && visible.IsPlain(word) {
		e.Tool = word
	}
	return e
}

// split splits "server.tool". Names of servers may contain dots: the longest that
// matches counts.
//
// A program writes the name after "tools.", and so do models where that is left out.
func split(name string, servers []string) (server, tool string, ok bool) {
	if server, tool, ok = splitAt(name, servers); ok {
		return server, tool, true
	}
	if rest, cut := strings.CutPrefix(name, "tools."); cut {
		if server, tool, ok = splitAt(rest, servers); ok {
			return server, tool, true
		}
	}
	return strings.Cut(name, ".")
}

// splitAt returns the longest server that a name begins with, and the rest.
func splitAt(name string, servers []string) (server, tool string, ok bool) {
	for _, s := range servers {
		for _, prefix := range []string{s + ".", serverIdentifier(s) + "."} {
			if strings.HasPrefix(name, prefix) && len(prefix) > len(server)+1 {
				server, tool, ok = prefix[:len(prefix)-1], name[len(prefix):], true
			}
		}
	}
	return server, tool, ok
}

// suggest returns the end of a message about a word that is none of the names. Of more than
// maxCompared names it compares the first.
func suggest(word string, names []string) string {
	return didYouMean(nearest.Of(word, names[:min(len(names), maxCompared)]))
}

func didYouMean(near string) string {
	if near == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", near)
}

// maxListed bounds the names in a message.
const maxListed = 20

func list(names []string) string {
	more := ""
	if len(names) > maxListed {
		names, more = names[:maxListed], " …"
	}
	return strings.Join(names, ", ") + more
}

// brief shortens text of a program for a message.
func brief(s string) string {
	const most = 100
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
