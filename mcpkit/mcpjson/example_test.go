package mcpjson_test

import (
	"context"
	"fmt"
	"log"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

const project = `{
  "mcpServers": {
    "github": {
      "type": "http",
      "url": "https://api.githubcopilot.com/mcp/",
      "headers": {"Authorization": "Bearer ${GITHUB_PAT}"}
    },
    "files": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem@2025.8.21", "${DATA:-/srv/data}"],
      "env": {"LOG_TOKEN": "not-to-be-shown"}
    }
  }
}`

func ExampleParse() {
	cfg, err := mcpjson.Parse(mcpjson.Auto, []byte(project))
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range cfg.Servers {
		needs := s.Needs()
		fmt.Println(s.Name, s.Transport, "spawns:", needs.Spawn, "reads:", needs.Env)
	}
	// Output:
	// github streamable-http spawns: false reads: [GITHUB_PAT]
	// files stdio spawns: true reads: [DATA]
}

// An error names the place of a mistake and the probable intention.
func ExampleParse_mistake() {
	_, err := mcpjson.Parse(mcpjson.V1, []byte(`{
  "version": 1,
  "servers": {
    "github": {"transport": "streamable_http", "url": "https://example.com/mcp", "http_header": {}}
  }
}`))
	fmt.Println(err)
	// Output:
	// read configuration:4:82: server "github": field "http_header": the field is not known; did you mean "http_headers"?
}

// Show the user the unexpanded definition without secrets. Store the hash with the
// approval.
func ExampleServer_Explain() {
	cfg, err := mcpjson.Parse(mcpjson.Auto, []byte(project))
	if err != nil {
		log.Fatal(err)
	}
	files := cfg.Server("files")
	for _, f := range files.Explain() {
		fmt.Printf("%s = %s (line %d)\n", f.Path, f.Value, f.Origin.Line)
	}
	fmt.Println(len(files.Hash()))
	// Output:
	// transport = stdio (line 0)
	// command = npx (line 9)
	// args[0] = -y (line 10)
	// args[1] = @modelcontextprotocol/server-filesystem@2025.8.21 (line 10)
	// args[2] = ${env:DATA | value:/srv/data} (line 10)
	// env.LOG_TOKEN = ••••(15 characters) (line 11)
	// 64
}

// Only Resolve reads secrets. An empty resolver withholds them.
func ExampleServer_Resolve() {
	cfg, err := mcpjson.Parse(mcpjson.Auto, []byte(project))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	_, err = cfg.Server("github").Resolve(ctx, mcpjson.Resolver{})
	fmt.Println(err)

	environment := map[string]string{"GITHUB_PAT": "s3cret"}
	github, err := cfg.Server("github").Resolve(ctx, mcpjson.Resolver{
		Env: func(name string) (string, bool) { v, ok := environment[name]; return v, ok },
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(github.URL, len(github.Headers), "header")
	// Output:
	// read configuration:6:36: server "github": field "bearerTokenEnv": environment variable "GITHUB_PAT": may not be read
	// https://api.githubcopilot.com/mcp/ 1 header
}

func ExampleExport() {
	cfg, err := mcpjson.Parse(mcpjson.Auto, []byte(project))
	if err != nil {
		log.Fatal(err)
	}
	toml, losses, err := mcpjson.Export(cfg, mcpjson.Codex)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(toml))
	for _, l := range losses {
		fmt.Println("lost:", l)
	}
	// Output:
	// [mcp_servers.github]
	// url = "https://api.githubcopilot.com/mcp/"
	// bearer_token_env_var = "GITHUB_PAT"
	//
	// [mcp_servers.files]
	// command = "npx"
	// args = ["-y", "@modelcontextprotocol/server-filesystem@2025.8.21", "${env:DATA | value:/srv/data}"]
	// env = { LOG_TOKEN = "not-to-be-shown" }
	// lost: server "files": args[2]: Codex does not expand it; it is written as it stands, to be replaced by hand
}

// Merge changes what differs and preserves the rest of the file.
func ExampleMerge() {
	mine := `{
  // keep this
  "servers": {
    "mine": {"type": "stdio", "command": "my-server"}, // and this
  },
}
`
	cfg, err := mcpjson.Parse(mcpjson.Auto, []byte(`{"mcpServers": {"web": {"url": "https://example.com/mcp"}}}`))
	if err != nil {
		log.Fatal(err)
	}
	merged, _, err := mcpjson.Merge([]byte(mine), cfg, mcpjson.VSCode)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(merged))
	// Output:
	// {
	//   // keep this
	//   "servers": {
	//     "mine": {"type": "stdio", "command": "my-server"}, // and this
	//     "web": {
	//       "type": "http",
	//       "url": "https://example.com/mcp"
	//     },
	//   },
	// }
}
