package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCodeMode: one program in a box joins data of three servers from npm, for stock
// clients, which approve a call on the way.
func TestCodeMode(t *testing.T) {
	t.Parallel()
	clients(t)
	modules, err := filepath.Abs("node_modules/@modelcontextprotocol")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range generations {
		t.Run(g.sdk+"/"+g.era, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "prices.csv"), []byte("item,price\nbread,3\nmilk,2\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			program := func(name string, args ...string) map[string]any {
				return map[string]any{
					"command": "node", "args": append([]string{filepath.Join(modules, name, "dist/index.js")}, args...),
					"env": map[string]string{"MEMORY_FILE_PATH": filepath.Join(dir, "memory.jsonl")},
				}
			}
			servers, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
				"files": program("server-filesystem", dir), "memory": program("server-memory"), "everything": program("server-everything"),
			}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "mcp.json")
			if err := os.WriteFile(file, servers, 0o600); err != nil {
				t.Fatal(err)
			}
			env := environment(t, state(t))
			trust := exec.Command(glovebox(t), "mcp", "trust", "--yes", "--config", file, "files", "memory", "everything")
			trust.Env = env
			if out, err := trust.CombinedOutput(); err != nil {
				t.Fatalf("trust the servers: %v: %s", err, out)
			}
			node(t, env, "codemode.mjs", g.sdk, g.era, dir, "stdio", glovebox(t), "stdio", "--tools", file, "--tool-rules", "allow memory, deny files write_*, allow everything")
		})
	}
}
