package gateway

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/yosida95/uritemplate/v3"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// claims are the items of one kind that clients address by URI, resources or their
// templates: by URI, then by the server that lists it. Clients get the items that one
// server lists. If several list a URI, none of them gets its requests: a server could
// otherwise answer for the resource of another.
type claims[T any] map[string]map[string]*T

// owner returns the server that alone lists an item, or "".
func (c claims[T]) owner(uri string) string {
	if len(c[uri]) != 1 {
		return ""
	}
	return c.servers(uri)[0]
}

// servers returns the servers that list an item, sorted.
func (c claims[T]) servers(uri string) []string { return slices.Sorted(maps.Keys(c[uri])) }

// publishByURI applies the changes of a server's items.
func publishByURI[T any](g *Gateway, server, kind string, c claims[T], before, now []*T, address func(*T) string, add func(string, *T), remove func(...string)) {
	// settle offers an item to clients, or stops offering it.
	settle := func(uri string) {
		switch servers := c.servers(uri); len(servers) {
		case 0:
			delete(c, uri)
			remove(uri)
		case 1:
			if !g.tryAdd(servers[0], kind, uri, func() { add(servers[0], c[uri][servers[0]]) }) {
				delete(c, uri)
				remove(uri)
			}
		default:
			remove(uri)
			g.log.Warn("item left out: several servers list it", logkey.Server, server, logkey.Item, kind, logkey.Name, uri, logkey.Servers, servers)
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

// resourceServers returns the servers that a resource may be read from, sorted: those
// that list it or, if none does, those of the templates that match.
func (g *Gateway) resourceServers(uri string) []string {
	g.mu.Lock()
	servers := g.resources.servers(uri)
	templates := make(map[string][]string, len(g.templates))
	if len(servers) == 0 {
		for template := range g.templates {
			templates[template] = g.templates.servers(template)
		}
	}
	g.mu.Unlock()
	for template, of := range templates {
		if t, err := uritemplate.New(template); err == nil && t.Regexp().MatchString(uri) {
			servers = append(servers, of...)
		}
	}
	slices.Sort(servers)
	return slices.Compact(servers)
}

// ambiguous returns an error if a request concerns a resource of several servers.
func (g *Gateway) ambiguous(req mcp.Request) error {
	var uris []string
	switch r := req.(type) {
	case *mcp.ReadResourceRequest:
		if r.Params != nil {
			uris = []string{r.Params.URI}
		}
	case *mcp.SubscribeRequest:
		if r.Params != nil {
			uris = []string{r.Params.URI}
		}
	case *mcp.SubscriptionsListenRequest:
		if r.Params != nil && r.Params.Notifications != nil {
			uris = r.Params.Notifications.ResourceSubscriptions
		}
	}
	for _, uri := range uris {
		if servers := g.resourceServers(uri); len(servers) > 1 {
			return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf(
				"several servers have the resource %q: %s; to use it, disable all of them but one, or read it with: glovebox mcp read SERVER URI", uri, strings.Join(servers, ", "))}
		}
	}
	return nil
}
