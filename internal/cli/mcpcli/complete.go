package mcpcli

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/gateway/listing"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// listings returns the cache of servers' lists. Completion starts no server.
func (a *app) listings() (*listing.Cache, error) {
	path, err := a.state("offers.json")
	if err != nil {
		return nil, err
	}
	return listing.Open(path), nil
}

// cacheTools caches the tools of a server. An error is only a note, since nothing but
// completion depends on the cache.
func (a *app) cacheTools(ctx context.Context, s *mcpjson.Server, tools []*mcp.Tool) {
	if a.recording != nil {
		return // the tools are those of the recording
	}
	store, err := a.listings()
	if err == nil {
		err = store.Put(ctx, s.Hash(), listing.Entry{Tools: tools})
	}
	if err != nil && a.flags.verbose {
		a.note("glovebox: note: %v", err)
	}
}

// toolsOf returns the cached tools of a server.
func (a *app) toolsOf(server string) []*mcp.Tool {
	cfg, err := a.quietly()
	if err != nil {
		return nil
	}
	s := cfg.Server(server)
	store, err := a.listings()
	if s == nil || err != nil {
		return nil
	}
	all, err := store.All()
	if err != nil {
		return nil
	}
	return all[s.Hash()].Tools
}

// quietly loads the configuration without warnings, for completion.
func (a *app) quietly() (*mcpjson.Config, error) {
	b := *a
	b.Err = discard{}
	return b.load()
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (a *app) completeServers(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	cfg, err := a.quietly()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, name := range serverNames(cfg) {
		names = complete(names, name, "")
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeTools(server string) (names []string) {
	for _, t := range a.toolsOf(server) {
		names = complete(names, t.Name, summary(t.Description))
	}
	return names
}

// complete adds a completion. Shells write it into the user's command line, so it leaves
// out names, chosen by servers and files of others, that a shell would interpret.
func complete(names []string, name, description string) []string {
	if !completable().MatchString(name) {
		return names
	}
	if description = strings.TrimSpace(description); description == "" {
		return append(names, name)
	}
	return append(names, cobra.CompletionWithDesc(name, description))
}

var completable = lazyregexp.New(`^[A-Za-z0-9_.:/@%+,=\p{L}\p{N}][-A-Za-z0-9_.:/@%+,=\p{L}\p{N}]*$`)

// completeCall completes SERVER.TOOL and then the tool's arguments.
func (a *app) completeCall(args []string, word string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	cfg, err := a.quietly()
	if err != nil {
		return nil, none
	}
	if len(args) == 0 {
		var names []string
		for _, s := range cfg.Servers {
			if rest, ok := strings.CutPrefix(word, s.Name+"."); ok || strings.HasPrefix(s.Name, word) && rest != "" {
				for _, t := range a.toolsOf(s.Name) {
					names = complete(names, s.Name+"."+t.Name, summary(t.Description))
				}
				continue
			}
			names = complete(names, s.Name+".", "")
		}
		return names, none | cobra.ShellCompDirectiveNoSpace
	}
	if strings.Contains(word, "=@") {
		return nil, cobra.ShellCompDirectiveDefault // a file
	}
	server, tool, _, err := a.split(cfg, append(args, ""))
	if err != nil {
		return nil, none
	}
	if tool == "" {
		return a.completeTools(server), none
	}
	var names []string
	for _, t := range a.toolsOf(server) {
		if t.Name != tool {
			continue
		}
		for _, name := range schemaOf(t).names() {
			names = complete(names, name+"=", "")
		}
	}
	return names, none | cobra.ShellCompDirectiveNoSpace
}
