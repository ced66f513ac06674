package gateway

import (
	"errors"
	"fmt"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// errHidden is the error for an item with hidden characters that cannot be escaped.
var errHidden = errors.New("it has invisible or control characters where they cannot be escaped")

// visibleEntry returns a copy of a server's listing for clients, which show it to people
// and models. Characters that control a terminal, reorder text or are invisible to
// people, but not to models, are escaped; items with such characters in addresses, or in
// what a schema allows, are left out. Titles, which clients show in place of names,
// begin with the name of the server, so that no server can pose as another.
func visibleEntry(server string, o listing.Entry, left *leftOut) listing.Entry {
	titled := func(title string) string {
		if title == "" {
			return ""
		}
		return visible.Text(fmt.Sprintf("%s: %s", server, title))
	}
	o.Tools = copied(o.Tools, func(t *mcp.Tool) bool {
		var okIn, okOut bool
		t.Title, t.Description = titled(t.Title), visible.Text(t.Description)
		if t.Annotations != nil {
			annotations := *t.Annotations
			annotations.Title = titled(annotations.Title)
			t.Annotations = &annotations
		}
		t.InputSchema, okIn = visible.Schema(t.InputSchema)
		t.OutputSchema, okOut = visible.Schema(t.OutputSchema)
		return left.unless("tool", t.Name, okIn && okOut)
	})
	o.Prompts = copied(o.Prompts, func(p *mcp.Prompt) bool {
		ok := true
		p.Title, p.Description = titled(p.Title), visible.Text(p.Description)
		p.Arguments = copied(p.Arguments, func(a *mcp.PromptArgument) bool {
			a.Title, a.Description = visible.Text(a.Title), visible.Text(a.Description)
			ok = ok && visible.IsPlain(a.Name)
			return true
		})
		return left.unless("prompt", p.Name, ok)
	})
	o.Resources = copied(o.Resources, func(r *mcp.Resource) bool {
		r.Name, r.Title, r.Description = visible.Text(r.Name), titled(r.Title), visible.Text(r.Description)
		return left.unless("resource", r.URI, visible.IsPlain(r.URI))
	})
	o.Templates = copied(o.Templates, func(t *mcp.ResourceTemplate) bool {
		t.Name, t.Title, t.Description = visible.Text(t.Name), titled(t.Title), visible.Text(t.Description)
		return left.unless("resource template", t.URITemplate, visible.IsPlain(t.URITemplate))
	})
	return o
}

// unless adds an item if ok is false, and returns ok.
func (l *leftOut) unless(kind, name string, ok bool) bool {
	if !ok {
		l.add(kind, name, errHidden)
	}
	return ok
}

// copied returns copies of the items that change has changed and returned true for.
func copied[T any](list []*T, change func(*T) bool) []*T {
	list = slices.Clone(list)
	kept := list[:0]
	for _, one := range list {
		c := *one
		if change(&c) {
			kept = append(kept, &c)
		}
	}
	return kept
}
