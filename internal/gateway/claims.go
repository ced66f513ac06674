package gateway

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/yosida95/uritemplate/v3"
)

// claims are the items of one kind that clients address by URI, resources or their
// templates: by URI, then by the server that lists it. Clients get the items that one
// server lists. If several list a URI, none of them gets its requests: a server could
// otherwise answer for the resource of another.
type claims[T any] map[string]map[string]*T

// soleServer returns the server that alone lists an item, or "".
func (c claims[T]) soleServer(uri string) string {
	if len(c[uri]) != 1 {
		return ""
	}
	return c.servers(uri)[0]
}

// servers returns the servers that list an item, sorted.
func (c claims[T]) servers(uri string) []string { return slices.Sorted(maps.Keys(c[uri])) }

// publishByURI applies the changes of a server's items.
func publishByURI[T any](server string, left *leftOut, kind string, c claims[T], before, now []*T, address func(*T) string, add func(string, *T), remove func(...string)) {
	// settle offers an item to clients, or stops offering it.
	settle := func(uri string) {
		switch servers := c.servers(uri); len(servers) {
		case 0:
			delete(c, uri)
			remove(uri)
		case 1:
			if !left.tryAdd(kind, uri, func() { add(servers[0], c[uri][servers[0]]) }) {
				delete(c, uri)
				remove(uri)
			}
		default:
			remove(uri)
			left.add(kind, uri, fmt.Errorf("several servers list it: %s", strings.Join(servers, ", ")))
		}
	}
	applyDiff(before, now, address,
		func(one *T) {
			uri := address(one)
			if c[uri] == nil {
				c[uri] = make(map[string]*T)
			}
			c[uri][server] = one
			settle(uri)
		},
		func(one *T) {
			uri := address(one)
			if _, listed := c[uri][server]; listed {
				delete(c[uri], server)
				settle(uri)
			}
		})
}

// A template is a published URI template.
type template struct {
	text    string
	re      *regexp.Regexp
	servers []string // that list it
	greedy  bool     // it names no scheme
}

// compileTemplates compiles the templates that are new since the last call. The caller
// holds g.mu.
func (g *Gateway) compileTemplates() {
	known := make(map[string]*regexp.Regexp, len(g.compiled))
	for _, t := range g.compiled {
		known[t.text] = t.re
	}
	compiled := make([]template, 0, len(g.templates)) // readers may still use the old slice
	for text := range g.templates {
		re := known[text]
		if re == nil {
			t, err := uritemplate.New(text)
			if err != nil {
				continue // several servers list it, and none can be asked for it
			}
			re = t.Regexp()
		}
		compiled = append(compiled, template{text, re, g.templates.servers(text), !namesScheme(text)})
	}
	g.compiled = compiled
}

// namesScheme reports whether all URIs of a template have the same scheme. Others, such as
// {+uri}, match what any server may have.
func namesScheme(template string) bool {
	literal, _, _ := strings.Cut(template, "{")
	return strings.Contains(literal, ":")
}

// resourceServers returns the servers that a resource may be read from, sorted: those
// that list it or, if none does, those of the templates that match. Templates that name
// no scheme count only if no other template matches: a server could otherwise take away
// the resources of all others.
//
// Specificity does not decide between other templates: a server could otherwise answer for the
// resource of another.
func (g *Gateway) resourceServers(uri string) []string {
	g.mu.Lock()
	servers, templates := g.resources.servers(uri), g.compiled
	g.mu.Unlock()
	if len(servers) > 0 {
		return servers
	}
	var greedy []string
	for _, t := range templates {
		switch {
		case !t.re.MatchString(uri):
		case t.greedy:
			greedy = append(greedy, t.servers...)
		default:
			servers = append(servers, t.servers...)
		}
	}
	if len(servers) == 0 {
		servers = greedy
	}
	slices.Sort(servers)
	return slices.Compact(servers)
}

// requestedResources returns the URIs of the resources that a request concerns. It
// returns an error if they are more than clients can subscribe to.
func requestedResources(req mcp.Request) ([]string, error) {
	switch r := req.(type) {
	case *mcp.ReadResourceRequest:
		if r.Params != nil {
			return []string{r.Params.URI}, nil
		}
	case *mcp.SubscribeRequest:
		if r.Params != nil {
			return []string{r.Params.URI}, nil
		}
	case *mcp.SubscriptionsListenRequest:
		if r.Params != nil && r.Params.Notifications != nil {
			uris := r.Params.Notifications.ResourceSubscriptions
			if len(uris) > maxSubscriptions {
				return nil, invalidRequest("the request names %d resources to subscribe to; the limit is %d", len(uris), maxSubscriptions)
			}
			return uris, nil
		}
	}
	return nil, nil
}

// ambiguous returns an error if one of the requested resources is of several servers, or
// if ctx ended.
func (g *Gateway) ambiguous(ctx context.Context, uris []string) error {
	for _, uri := range uris {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if servers := g.resourceServers(uri); len(servers) > 1 {
			return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(
				"several servers have the resource %q: %s; to use it, disable all of them but one, or read it with: glovebox mcp read SERVER URI", uri, strings.Join(servers, ", "))}
		}
	}
	return nil
}
