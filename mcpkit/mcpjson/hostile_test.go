package mcpjson

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// Files of the maximum size, built to be expensive, are read quickly. The bound is
// generous: a quadratic parser takes minutes to hours.
func TestD1_HostileFilesAreCheap(t *testing.T) {
	size := maxFile
	if testing.Short() {
		size /= 8
	}
	fill := func(before, item, after string) string {
		n := (size - len(before) - len(after) - 64) / (len(item) + 8)
		var b strings.Builder
		b.WriteString(before)
		for i := range n {
			b.WriteString(strings.ReplaceAll(item, "#", strconv.Itoa(i)))
		}
		return b.String() + after
	}
	for name, c := range map[string]struct {
		d  Dialect
		in string
	}{
		"unknown fields":       {ClaudeCode, fill(`{"mcpServers":{"s":{"command":"x"`, `,"comand#":1`, `}}}`)},
		"strict unknown":       {V1, fill(`{"version":1,"servers":{"s":{"transport":"stdio","argv":["x"]`, `,"comand#":1`, `}}}`)},
		"keys of the file":     {Auto, fill(`{"x":1`, `,"mcpServer#":1`, `}`)},
		"arguments":            {ClaudeCode, fill(`{"mcpServers":{"s":{"command":"x","args":["y"`, `,"${A}"`, `]}}}`)},
		"wrong arguments":      {ClaudeCode, fill(`{"mcpServers":{"s":{"command":"x","args":["y"`, `,[]`, `]}}}`)},
		"variables on lines":   {ClaudeCode, fill("{\"mcpServers\":{\"s\":{\"command\":\"x\",\"env\":{\"y\":\"z\"", ",\n\"V#\":\"$\"", `}}}}`)},
		"headers":              {ClaudeCode, fill(`{"mcpServers":{"s":{"url":"https://h/","headers":{"y":"z"`, `,"V#":""`, `}}}}`)},
		"servers":              {ClaudeCode, fill(`{"mcpServers":{"s":{"command":"x"}`, `,"V#":{"command":""}`, `}}`)},
		"servers, many wrong":  {VSCode, fill(`{"servers":{"s":{"command":"x"}`, `,"V#":1`, `}}`)},
		"placeholders":         {ClaudeCode, `{"mcpServers":{"s":{"command":"` + strings.Repeat("${A:-", maxFile/6) + `"}}}`},
		"placeholders, closed": {ClaudeCode, `{"mcpServers":{"s":{"command":"` + strings.Repeat("${A:-", maxFile/8) + strings.Repeat("}", maxFile/8) + `"}}}`},
		"curly":                {OpenCode, `{"mcp":{"s":{"command":["` + strings.Repeat("{env:", maxFile/6) + `"]}}}`},
		"chains":               {SEP, `{"mcpServers":{"s":{"type":"stdio","command":"${A` + strings.Repeat(" | B", maxFile/5) + `}"}}}`},
		"inputs":               {VSCode, fill(`{"servers":{},"inputs":[{"id":"x"}`, `,{"id":"a#"}`, `]}`)},
		"TOML tables":          {Codex, fill("", "[mcp_servers.s#]\ncommand='x'\n", "")},
		"TOML keys":            {Codex, fill("[mcp_servers.s]\ncommand='x'\n", "k# = 1\n", "")},
		"TOML dotted":          {Codex, fill("[mcp_servers.s]\ncommand='x'\n", "env.k# = '1'\n", "")},
		"TOML lists of tables": {Codex, fill("", "[[x]]\n", "")},
		"TOML inline":          {Codex, fill("[mcp_servers.s]\ncommand='x'\nenv = { a = 'x'", ",k#='1'", "}\n")},
		"lines":                {Auto, "{" + strings.Repeat("\n", maxFile-100) + `"mcpServers":{"s":{"command":1}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			if len(c.in) > maxFile {
				t.Fatalf("the sample has %d bytes", len(c.in))
			}
			start := time.Now()
			cfg, err := Parse(c.d, []byte(c.in))
			took := time.Since(start)
			t.Logf("%v, %.60v", took, err)
			if took > time.Minute {
				t.Errorf("took %v", took)
			}
			if err != nil && len(err.Error()) > 64<<10 {
				t.Errorf("the complaint has %d bytes", len(err.Error()))
			}
			if cfg != nil && len(cfg.Warnings) > 2*maxWarnings {
				t.Errorf("there are %d warnings", len(cfg.Warnings))
			}
		})
	}
}
