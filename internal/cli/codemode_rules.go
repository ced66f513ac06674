package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/codemode"
	"github.com/glovebox-dev/glovebox/internal/config"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/nearest"
)

// warnRules logs the rules that have no effect because no server has the name. complete says
// whether owners are all that are configured: rules of the settings may be for the servers of
// another owner.
func (m *codeMode) warnRules(cfg *config.Config, owners map[string]*codeOwner, complete bool) {
	var all []string
	place := cfg.ToolsOwners
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		servers := owners[owner].servers
		names := servers.Defined()
		if len(m.search.Tools) > 0 {
			names = append(names, m.search.Name)
		}
		m.warnUnmatched(fmt.Sprintf("tools-owners: owner %q", owner), owners[owner].rules, names, servers.Path())
		all = append(all, names...)
		if owner == "" {
			place = servers.Path()
		}
	}
	if complete && len(owners) > 0 {
		slices.Sort(all)
		m.warnUnmatched("tool-rules", cfg.ToolRules, slices.Compact(all), place)
	}
}

// warnUnmatched logs the rules of a setting that match none of the servers of a file.
func (m *codeMode) warnUnmatched(setting string, rules, servers []string, file string) {
	for _, text := range rules {
		rule, err := codemode.ParseRule(text)
		if err != nil || slices.ContainsFunc(servers, rule.MatchesServer) {
			continue // invalid rules are errors, see checkRules and policyWith
		}
		remedy := ""
		if near := nearest.Of(rule.Server, servers); near != "" {
			remedy = fmt.Sprintf("; did you mean %s?", near)
		}
		m.log.Warn("rule without effect: no server has this name", logkey.Setting, setting,
			logkey.Note, fmt.Sprintf("%q: no server %q in %s%s", text, rule.Server, file, remedy))
	}
}

// unusedRules returns a warning about rules of settings without code mode, or "".
func unusedRules(cfg *config.Config) string {
	if len(cfg.ToolRules) == 0 {
		return ""
	}
	return fmt.Sprintf("tool-rules (%s) has no effect without tools or tools-owners; add --tools mcp.json", strings.Join(cfg.ToolRules, ", "))
}
