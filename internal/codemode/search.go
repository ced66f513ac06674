package codemode

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/visible"
)

type catalogQuery struct {
	Server string `json:"server"` // "": all
}

type searchQuery struct {
	Query    string `json:"query"`
	Limit    *int   `json:"limit"` // nil: 10
	Language string `json:"language"`
}

// An Entry is a tool in the answer to a search, a description or a listing.
type Entry struct {
	Name             string      `json:"name"` // server.tool
	Server           string      `json:"server"`
	ServerIdentifier string      `json:"server_identifier"`
	Identifier       string      `json:"identifier"`
	Line             string      `json:"line,omitempty"` // signature and first sentence
	Text             string      `json:"text,omitempty"` // signature and documentation
	Mark             string      `json:"-"`              // what marks a tool that code may not call at will, else ""
	Parameters       []parameter `json:"parameters,omitempty"`
}

// Named returns the name of the tool with its mark. A name that is no word is quoted: it could have
// a mark of its own.
func (e Entry) Named() string {
	name := e.Name
	if !isWord(name) {
		name = strconv.Quote(visible.Line(name))
	}
	return strings.TrimSpace(name + " " + e.Mark)
}

func entryOf(t Tool) Entry {
	return Entry{Name: t.Server + "." + t.Name, Server: t.Server, ServerIdentifier: serverIdentifier(t.Server), Identifier: identifier(t.Name)}
}

// catalog lists the names of the tools, for completion.
func (r *Run) catalog(ctx context.Context, in catalogQuery) (any, error) {
	server := ""
	if in.Server != "" {
		var several []string
		if server, several = find(in.Server, r.b.o.Servers.Names(), serverIdentifier); server == "" || len(several) > 1 {
			return []Entry{}, nil
		}
	}
	all := []Entry{}
	for _, t := range r.b.offered(ctx, server) {
		all = append(all, entryOf(t))
	}
	return all, nil
}

// search answers a search of a program. Entries without a name are notes.
func (r *Run) search(ctx context.Context, in searchQuery) (any, error) {
	l := LanguageOf(in.Language)
	limit := 0
	if in.Limit != nil {
		if limit = *in.Limit; limit < 1 {
			return nil, &Error{Code: InvalidArguments, Message: fmt.Sprintf("limit is %d: take 1 to %d, or leave it out for 10", limit, maxFound)}
		}
	}
	found, matches := r.b.Search(ctx, in.Query, limit, l)
	var notes []string
	if in.Query == "" && len(found) < matches {
		if by := r.b.Servers(ctx); by != "" {
			notes = append(notes, by)
		}
	}
	switch more := matches - len(found); {
	case more > 0 && l == Shell: // glovebox-tool has no limit
		notes = append(notes, fmt.Sprintf("%d more match: narrow the query", more))
	case more > 0:
		notes = append(notes, fmt.Sprintf("%d more match: narrow the query, or raise limit (to %d)", more, maxFound))
	}
	if matches == 0 && in.Query != "" && r.b.HasTools(ctx) {
		notes = append(notes, fmt.Sprintf("no tool matches %q: search without words to list all", brief(in.Query)))
	}
	for _, note := range append(notes, r.b.Missing(ctx, in.Query)...) {
		found = append(found, Entry{Line: l.comment() + oneLine(note, maxMessage)})
	}
	return found, nil
}

const (
	maxQuery    = 256     // bytes of a search
	maxFound    = 100     // tools in the answer to a search
	maxSearched = 4 << 10 // bytes of a description that are searched
)

// Search returns the tools that match the words of a query, the best first. For an empty query
// all match, and those returned are of all servers in turn, so that none is overlooked. limit is at
// most 100, and 10 if it is 0; matches is the number of all tools that match. A deprecated tool comes
// after those that match as well. Tools that the policy denies come last, and their lines say so: a
// model that does not find a tool tries others that do the same.
func (b *Broker) Search(ctx context.Context, query string, limit int, l Language) (found []Entry, matches int) {
	if limit <= 0 {
		limit = 10
	}
	words := queryWords(query[:min(len(query), maxQuery)])
	type hit struct {
		t          Tool
		score, at  int
		deprecated bool
	}
	var hits []hit
	for i, t := range b.tools(ctx, "") {
		if score := scoreOf(t, words); score > 0 || len(words) == 0 {
			h := hit{t, score, i, isDeprecated(t)}
			if h.deprecated {
				h.score /= 2 // a query for its very name still finds it
			}
			hits = append(hits, h)
		}
	}
	policy := *b.policy.Load()
	last := func(h hit) int {
		switch {
		case policy.Decide(h.t) == Deny:
			return 2
		case h.deprecated && len(words) == 0:
			return 1
		}
		return 0
	}
	if len(words) == 0 {
		type turn struct {
			server string
			last   int
		}
		before := make(map[turn]int)
		for i, h := range hits {
			its := turn{h.t.Server, last(h)}
			hits[i].score = -before[its]
			before[its]++
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(b.score, a.score)) })
	shown := hits[:min(len(hits), limit, maxFound)]
	if len(words) == 0 { // in the order of the servers again, which is easier to read
		slices.SortStableFunc(shown, func(a, b hit) int { return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.at, b.at)) })
	}
	found = []Entry{}
	for _, h := range shown {
		if ctx.Err() != nil {
			break // nobody waits
		}
		found = append(found, b.line(h.t, l))
	}
	return found, len(hits)
}

// HasTools reports whether any server has tools now that programs can name: otherwise a search
// finds none whatever its words are.
func (b *Broker) HasTools(ctx context.Context) bool { return len(b.tools(ctx, "")) > 0 }

// Servers returns a line with all servers that have tools, and how many; "" if there are fewer than
// two. It is for the answer to an empty query that leaves tools out.
func (b *Broker) Servers(ctx context.Context) string {
	count := make(map[string]int)
	var servers []string // in the order of their first tools
	for _, t := range b.tools(ctx, "") {
		if count[t.Server]++; count[t.Server] == 1 {
			servers = append(servers, t.Server)
		}
	}
	if len(servers) < 2 {
		return ""
	}
	all := spelled(servers, serverIdentifier)
	for i, s := range servers {
		all[i] += fmt.Sprintf(" (%d)", count[s])
	}
	return "Tools by server: " + list(all) + "."
}

// offered returns the tools of a server, or of all servers for "", that the policy does
// not deny.
func (b *Broker) offered(ctx context.Context, server string) []Tool {
	policy := *b.policy.Load()
	return slices.DeleteFunc(b.tools(ctx, server), func(t Tool) bool { return policy.Decide(t) == Deny })
}

// line returns the entry of a tool with one line about it.
func (b *Broker) line(t Tool, l Language) Entry {
	e := entryOf(t)
	e.Line = signatureWriter{&b.declarations, l}.signature(t)
	comment := "  " + l.comment()
	if d := firstSentence(t.Description, 200); d != "" {
		e.Line += comment + d
		comment = " "
	}
	if e.Mark = b.mark(t); e.Mark != "" {
		e.Line += comment + e.Mark
	}
	return e
}

// NamesOf returns the names of tools.
func NamesOf(tools []Entry) []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return names
}

// missingWait bounds the wait for the reasons of servers without tools. It is longer than that for a
// place, which may be the reason.
const missingWait = placeWait + time.Second

// Missing returns notes about the servers whose tools a search for query could not find,
// because they cannot be used now. A server has a sentence with the reason and what the
// user can do about it if the query is empty or names the server. The others have one
// note with their names, and so have the tools that are withheld and that the query may mean.
// Missing does not wait for servers to start.
func (b *Broker) Missing(ctx context.Context, query string) (notes []string) {
	ctx, cancel := context.WithTimeout(ctx, missingWait)
	defer cancel()
	servers, reasons := b.unlisted(ctx)
	words := queryWords(query[:min(len(query), maxQuery)])
	var unavailable, untrusted, starting []string
	for i, why := range reasons {
		server := servers[i]
		switch {
		case why == nil:
		case len(words) == 0 || namesServer(words, server):
			if why.Code == Interrupted && ctx.Err() != nil {
				why = &Error{Message: fmt.Sprintf("The server %q did not answer within %v. Try again in a moment.", server, missingWait)}
			}
			notes = append(notes, safe(why.Message))
		case why.starting:
			starting = append(starting, visible.Text(server))
		case why.Code == Untrusted:
			untrusted = append(untrusted, visible.Text(server))
		default:
			unavailable = append(unavailable, visible.Text(server))
		}
	}
	brief := ""
	if len(unavailable) > 0 {
		brief = "Not available: " + list(unavailable) + ". "
	}
	if len(untrusted) > 0 {
		brief += "Not trusted: " + list(untrusted) + ". "
	}
	if brief != "" {
		notes = append(notes, brief+"Describe one of these servers to see why.")
	}
	if len(starting) > 0 {
		notes = append(notes, "Still starting: "+list(starting)+". Search again in a moment.")
	}
	if withheld := b.withheld(ctx, words); len(withheld) > 0 {
		notes = append(notes, "Withheld: "+list(withheld)+". Describe one of these tools to see why.")
	}
	return notes
}

// withheld returns the names of the tools that servers have and that are not offered, and
// that have one of the words.
func (b *Broker) withheld(ctx context.Context, words []string) (names []string) {
	for _, server := range b.o.Servers.Names() {
		for _, name := range b.o.Servers.Withheld(ctx, server) {
			t := Tool{Server: server, Tool: &mcp.Tool{Name: name}}
			if len(words) == 0 || scoreOf(t, words) > 0 {
				names = append(names, visible.Text(server+"."+name))
			}
		}
	}
	return names
}

// unlisted returns the servers without tools, and why each has none: nil if the server works and
// offers none.
func (b *Broker) unlisted(ctx context.Context) (servers []string, reasons []*Error) {
	listed := make(map[string]bool)
	for _, t := range b.o.Servers.Tools(ctx, "") {
		listed[t.Server] = true
	}
	servers = slices.DeleteFunc(slices.Clone(b.o.Servers.Names()), func(s string) bool { return listed[s] })
	reasons = make([]*Error, len(servers))
	var asked sync.WaitGroup // a reason may take the whole wait
	for i, server := range servers {
		asked.Go(func() { reasons[i] = b.o.Servers.Unavailable(ctx, server, "") })
	}
	asked.Wait()
	return servers, reasons
}

// starting returns a note about the servers that are still starting, any of which may have a tool
// that was not found; "" if there is none.
func (b *Broker) starting(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, missingWait)
	defer cancel()
	servers, reasons := b.unlisted(ctx)
	var starting []string
	for i, why := range reasons {
		if why != nil && why.starting {
			starting = append(starting, visible.Text(servers[i]))
		}
	}
	if len(starting) == 0 {
		return ""
	}
	return "Still starting: " + list(starting) + ". Try again in a moment."
}

// namesServer reports whether a word of a query is in the name of a server.
func namesServer(words []string, server string) bool {
	server = strings.ToLower(server)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(server, w) })
}

// scoreOf weighs where the words occur: in the names more than in the description.
func scoreOf(t Tool, words []string) (score int) {
	name, server, text := strings.ToLower(t.Name), strings.ToLower(t.Server), strings.ToLower(t.Description[:min(len(t.Description), maxSearched)])
	parts := wordsOf(t.Name)
	for _, w := range words {
		stem := w
		if len(w) >= 4 {
			stem = strings.TrimSuffix(w, "s") // a plural
		}
		switch {
		case slices.Contains(parts, w):
			score += 10
		case strings.Contains(name, stem):
			score += 6
		}
		if strings.Contains(server, stem) {
			score += 4
		}
		if strings.Contains(text, stem) {
			score += 2
		}
	}
	return score
}

// fillers are words of a query that say nothing about a tool.
var fillers = map[string]bool{
	"an": true, "and": true, "are": true, "as": true, "at": true, "be": true, "by": true, "can": true, "do": true, "for": true, "from": true,
	"how": true, "in": true, "is": true, "it": true, "its": true, "me": true, "my": true, "of": true, "on": true, "or": true,
	"that": true, "the": true, "this": true, "to": true, "what": true, "which": true, "with": true,
}

// queryWords returns the words of a query that distinguish tools, or all if none does.
func queryWords(query string) []string {
	all := wordsOf(query)
	words := slices.DeleteFunc(slices.Clone(all), func(w string) bool { return len(w) < 2 || fillers[w] })
	if len(words) == 0 {
		return all
	}
	return words
}

func wordsOf(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127)
	})
}
