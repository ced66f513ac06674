package mcpcli

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/statefile"
)

// What a server's tools were when it was last asked, so that completion starts
// nothing: a key pressed is no wish to run a program.
const (
	manifestVersion = 1
	// maxManifests bounds what is kept; the one that was not looked at for longest
	// goes first.
	maxManifests = 50
	// maxManifest is the bytes of one that is worth keeping.
	maxManifest = 64 << 10
)

type manifest struct {
	At    time.Time `json:"at"`
	Tools []known   `json:"tools"`
}

// known is what completion needs of a tool.
type known struct {
	Name      string   `json:"name"`
	Summary   string   `json:"summary,omitempty"`
	Arguments []string `json:"arguments,omitempty"`
}

func (a *app) manifests() (*statefile.File[map[string]manifest], error) {
	path, err := a.state("manifests.json")
	if err != nil {
		return nil, err
	}
	return &statefile.File[map[string]manifest]{Path: path, Version: manifestVersion}, nil
}

// keepManifest remembers the tools of a server. Nothing depends on it but
// completion, so what goes wrong is told and no more.
func (a *app) keepManifest(ctx context.Context, s *mcpjson.Server, tools []*mcp.Tool) {
	m := manifest{At: time.Now().UTC().Truncate(time.Second)}
	for _, t := range tools {
		m.Tools = append(m.Tools, known{t.Name, strings.TrimSpace(summary(t.Description)), schemaOf(t).names()})
	}
	if b, err := json.Marshal(m); err != nil || len(b) > maxManifest {
		return
	}
	file, err := a.manifests()
	if err == nil {
		err = file.Update(ctx, func(all *map[string]manifest) error {
			if *all == nil {
				*all = make(map[string]manifest)
			}
			(*all)[s.Hash()] = m
			for len(*all) > maxManifests {
				oldest := ""
				for hash, one := range *all {
					if oldest == "" || one.At.Before((*all)[oldest].At) {
						oldest = hash
					}
				}
				delete(*all, oldest)
			}
			return nil
		})
	}
	if err != nil && a.flags.verbose {
		a.note("glovebox: note: %v", err)
	}
}

// toolsOf are the tools of a server as far as they are known.
func (a *app) toolsOf(server string) []known {
	cfg, err := a.quietly()
	if err != nil {
		return nil
	}
	s := cfg.Server(server)
	file, err := a.manifests()
	if s == nil || err != nil {
		return nil
	}
	all, err := file.Read()
	if err != nil {
		return nil
	}
	return all[s.Hash()].Tools
}

// quietly loads the configuration without a word: a shell waits for completions.
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
	return serverNames(cfg), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) completeTools(server string) (names []string) {
	for _, t := range a.toolsOf(server) {
		names = append(names, cobra.CompletionWithDesc(t.Name, t.Summary))
	}
	return names
}

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
					names = append(names, cobra.CompletionWithDesc(s.Name+"."+t.Name, t.Summary))
				}
				continue
			}
			names = append(names, s.Name+".")
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
		for _, name := range t.Arguments {
			names = append(names, name+"=")
		}
	}
	return names, none | cobra.ShellCompDirectiveNoSpace
}
