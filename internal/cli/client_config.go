package cli

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/config"
)

// clientEntry is a server in an mcp.json.
type clientEntry struct {
	Type    string            `json:"type,omitempty"`
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
}

// clientConfig returns an mcp.json with one server.
func clientConfig(e clientEntry) string {
	b, err := json.Marshal(map[string]map[string]clientEntry{"mcpServers": {"glovebox": e}})
	if err != nil {
		return err.Error() // not reached
	}
	return string(b)
}

// stdioArgs returns the arguments with which a client starts this program itself, and with
// which it offers the same groups of tools, boxes have the same image and network, and code the same
// tools.
func stdioArgs(cfg *config.Config) []string {
	args := []string{"stdio"}
	if len(cfg.Toolsets) > 0 && !slices.Equal(cfg.Toolsets, []string{"sessions"}) {
		args = append(args, "--toolset", strings.Join(cfg.Toolsets, ","))
	}
	if len(cfg.Network) > 0 {
		args = append(args, "--network", strings.Join(cfg.Network, ","))
	}
	if cfg.NetworkFile != "" {
		args = append(args, "--network-file", cfg.NetworkFile)
	}
	for _, pin := range cfg.EgressPins {
		args = append(args, "--egress-pin", pin)
	}
	if cfg.EgressCA != "" {
		args = append(args, "--egress-ca", cfg.EgressCA)
	}
	if cfg.Image != "" {
		args = append(args, "--image", cfg.Image)
	}
	if cfg.Tools == "" {
		return args
	}
	args = append(args, "--tools", cfg.Tools)
	if len(cfg.ToolRules) == 0 {
		return args
	}
	rules := strings.Join(cfg.ToolRules, ", ")
	if strings.Count(rules, ",") >= len(cfg.ToolRules) { // a rule has a comma
		if b, err := json.Marshal(cfg.ToolRules); err == nil { // strings never fail
			rules = string(b)
		}
	}
	return append(args, "--tool-rules", rules)
}
