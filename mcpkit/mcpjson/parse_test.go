package mcpjson

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// v1 wraps a server, or other text in its place, into the strict schema.
func v1(server string) string { return `{"version": 1, "servers": {"s": ` + server + `}}` }

// claude wraps a server for the permissive dialects.
func claude(server string) string { return `{"mcpServers": {"s": ` + server + `}}` }

// The strict schema enforces each rule. The error tells the place, what was found and
// what is allowed.
func TestD2_StrictRefuses(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"unknown field of the file":    {`{"version":1,"server":{}, "servers":{}}`, `1:14: field "server": the field is not known; did you mean "servers"?`},
		"unknown field of the client":  {`{"version":1,"client":{"root":[]},"servers":{}}`, `field "client.root": the field is not known; did you mean "roots"?`},
		"unknown field of a server":    {v1(`{"transport":"streamable_http","url":"https://h/","headers":{}}`), `1:83: server "s": field "headers": the field is not known; allowed are argv, `},
		"near miss":                    {v1(`{"transport":"stdio","argv":["x"],"enviroment":{}, "inherit-env":true}`), `field "inherit-env": the field is not known; did you mean "inherit_env"?`},
		"unknown field of a log":       {v1(`{"transport":"stdio","argv":["x"],"stdout_log":{"path":"l","max_part":1}}`), `field "stdout_log.max_part": the field is not known; did you mean "max_parts"?`},
		"version missing in strict":    {`{"servers":{}}`, `field "version": it is missing`},
		"version two":                  {`{"version":2,"servers":{}}`, `field "version": found 2; the only version is 1`},
		"version a string":             {`{"version":"1","servers":{}}`, `found a string`},
		"servers a list":               {`{"version":1,"servers":[]}`, `the servers are a list, want an object`},
		"transport missing":            {v1(`{"argv":["x"]}`), `field "transport": it is missing; allowed are stdio, streamable_http, unix`},
		"transport unknown":            {v1(`{"transport":"stdoi","argv":["x"]}`), `found "stdoi", want one of stdio, streamable_http, unix; did you mean "stdio"?`},
		"transport of another dialect": {v1(`{"transport":"http","url":"https://h/"}`), `found "http", want one of`},
		"transport a number":           {v1(`{"transport":1,"argv":["x"]}`), `field "transport": found a number, want a string`},
		"argv missing":                 {v1(`{"transport":"stdio","env":{}}`), `it has neither "argv" nor an address`},
		"argv empty":                   {v1(`{"transport":"stdio","argv":[]}`), `field "argv": the command is empty`},
		"argv of an empty program":     {v1(`{"transport":"stdio","argv":["", "x"]}`), `the command is empty`},
		"argv not strings":             {v1(`{"transport":"stdio","argv":["x", 1]}`), `field "argv[1]": found a number, want a string`},
		"url with stdio":               {v1(`{"transport":"stdio","argv":["x"],"url":"https://h/"}`), `field "url": it does not belong to a server of transport stdio`},
		"env with http":                {v1(`{"transport":"streamable_http","url":"https://h/","env":{"A":"b"}}`), `field "env": it does not belong to a server of transport streamable-http`},
		"log with unix":                {v1(`{"transport":"unix","unix_path":"s","stdout_log":{"path":"l"}}`), `field "stdout_log": it does not belong`},
		"unix without path":            {v1(`{"transport":"unix","unix_path":""}`), `field "unix_path": the path is empty`},
		"url and the pair":             {v1(`{"transport":"streamable_http","url":"https://h/","sse_url":"https://h/"}`), `there must be either url, or both sse_url and http_url`},
		"half a pair":                  {v1(`{"transport":"streamable_http","http_url":"https://h/"}`), `there must be either url, or both`},
		"two urls":                     {v1(`{"transport":"streamable_http","http_url":"https://h/","url":"https://h/"}`), `it has the same meaning as "http_url"`},
		"url of another scheme":        {v1(`{"transport":"streamable_http","url":"ftp://h/"}`), `the address begins with "ftp"; allowed are`},
		"url that is none":             {v1(`{"transport":"streamable_http","url":"example"}`), `invalid URL`},
		"env empty key":                {v1(`{"transport":"stdio","argv":["x"],"env":{"":"v"}}`), `"" is not a valid name of a variable`},
		"env empty value":              {v1(`{"transport":"stdio","argv":["x"],"env":{"K":""}}`), `field "env.K": the value is empty`},
		"env null":                     {v1(`{"transport":"stdio","argv":["x"],"env":null}`), `field "env": found null, want an object`},
		"env number":                   {v1(`{"transport":"stdio","argv":["x"],"env":{"K":1}}`), `found a number, want a string`},
		"header name":                  {v1(`{"transport":"streamable_http","url":"https://h/","http_headers":{"a b":"c"}}`), `"a b" cannot be the name of a header`},
		"header value":                 {v1(`{"transport":"streamable_http","url":"https://h/","http_headers":{"a":"c\r\nd: e"}}`), `the value has a line break`},
		"header twice":                 {v1(`{"transport":"streamable_http","url":"https://h/","http_headers":{"Ab":"c","aB":"d"}}`), `the header is there twice`},
		"header in both":               {v1(`{"transport":"streamable_http","url":"https://h/","http_headers":{"A":"c"},"env_http_headers":{"A":"B"}}`), `the header is there twice`},
		"bearer and header":            {v1(`{"transport":"streamable_http","url":"https://h/","http_headers":{"authorization":"c"},"bearer_token_env_var":"T"}`), `there is also a variable for the token`},
		"bearer is the token":          {v1(`{"transport":"streamable_http","url":"https://h/","bearer_token_env_var":"ey.J-x"}`), `found a string that is not the name of an environment variable`},
		"env header is the value":      {v1(`{"transport":"streamable_http","url":"https://h/","env_http_headers":{"A":"b c"}}`), `not the name of an environment variable`},
		"log outside":                  {v1(`{"transport":"stdio","argv":["x"],"stdout_log":{"path":"/var/log/x"}}`), `field "stdout_log.path": it leads out of the root`},
		"log with dots":                {v1(`{"transport":"stdio","argv":["x"],"stdout_log":{"path":"a/../../x"}}`), `it has a ".."`},
		"log with dots of Windows":     {v1(`{"transport":"stdio","argv":["x"],"stdout_log":{"path":"a\\..\\x"}}`), `it has a ".."`},
		"log without path":             {v1(`{"transport":"stdio","argv":["x"],"stdout_log":{}}`), `field "stdout_log.path": it is missing or empty`},
		"log of no bytes":              {v1(`{"transport":"stdio","argv":["x"],"stdout_log":{"path":"l","max_bytes_per_part":0}}`), `found 0, want a whole number from 1`},
		"placeholder":                  {v1(`{"transport":"stdio","argv":["${a b}"]}`), `unknown placeholder "${a b}"; allowed are ${NAME}`},
		"NUL":                          {v1(`{"transport":"stdio","argv":["a\u0000b"]}`), `the value has a NUL`},
		"name with a dot":              {`{"version":1,"servers":{"a.b":{"transport":"stdio","argv":["x"]}}}`, `server "a.b": the name may consist of letters`},
		"name with a space around":     {`{"version":1,"servers":{" a":{"transport":"stdio","argv":["x"]}}}`, `server " a": the name may consist of`},
		"name empty":                   {`{"version":1,"servers":{"":{"transport":"stdio","argv":["x"]}}}`, `a server has no name`},
		"protocol version empty":       {`{"version":1,"client":{"protocol_version":" "},"servers":{}}`, `field "client.protocol_version": it is empty`},
		"capabilities no object":       {`{"version":1,"client":{"capabilities":[]},"servers":{}}`, `found a list, want an object`},
		"root without uri":             {`{"version":1,"client":{"roots":[{"name":"x"}]},"servers":{}}`, `field "client.roots[0].uri": it is missing or empty`},
		"server no object":             {v1(`"x"`), `server "s": found a string, want an object`},
		"comments":                     {"{\"version\":1,\n// no\n\"servers\":{}}", `2:1: comments and trailing commas are not allowed`},
		"trailing comma":               {`{"version":1,"servers":{},}`, `comments and trailing commas are not allowed`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(V1, []byte(c.in))
			refused(t, err, c.want)
		})
	}
}

// refused checks that err is an *Error with a message.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an *Error", err)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Mistakes that every dialect refuses.
func TestD2_Refuses(t *testing.T) {
	for name, c := range map[string]struct {
		d    Dialect
		in   string
		want string
	}{
		"empty file":              {Auto, " \n", `1:1: the file is empty`},
		"invalid JSON":            {Auto, "{\n  \"mcpServers\": {,}}", `2:18: invalid JSON: invalid character ','`},
		"cut short":               {Auto, `{"mcpServers": {`, `invalid JSON`},
		"more after it":           {Auto, `{} {}`, `after top-level value`},
		"a list":                  {Auto, `[]`, `found a list, want an object`},
		"twice":                   {Auto, "{\"mcpServers\": {\"a\": {\"command\":\"x\"},\n\"a\": {\"command\":\"y\"}}}", `2:1: duplicate key "a"; first in line 1`},
		"twice by escape":         {Auto, `{"mcpServers": {"a": {"command":"x", "comm\u0061nd":"y"}}}`, `duplicate key "command"`},
		"not UTF-8":               {Auto, "{\"mcpServers\":\n{\"\xff\": {}}}", `2:3: the file is not UTF-8`},
		"UTF-16":                  {Auto, "\xff\xfe{\x00}\x00", `the file is UTF-16; save it as UTF-8`},
		"no servers":              {Auto, `{"mcpservers": {}}`, `there is "mcpservers"; did you mean "mcpServers"?`},
		"something else":          {Auto, `{"name": "x", "scripts": {}}`, `there are no servers: want one of the keys mcpServers, servers, mcp, mcp_servers`},
		"list of servers":         {Auto, `{"servers": [{"name": "x"}]}`, `its servers are a list`},
		"dialect not of the file": {VSCode, `{"mcpServers": {"s": {"command": "x"}}}`, `there is no "servers", which is where VS Code has its servers; it reads like a file of the dialect claude-code`},
		"unknown dialect":         {"cursr", `{}`, `did you mean "cursor"?`},
		"neither":                 {ClaudeCode, claude(`{"args": []}`), `it has neither "command" nor an address to connect to`},
		"both":                    {ClaudeCode, claude(`{"command": "x", "url": "https://h/"}`), `it has both a command and an address`},
		"type against fields":     {ClaudeCode, claude(`{"type": "http", "command": "x", "url": "https://h/"}`), `field "command": it does not belong to a server of transport streamable-http`},
		"type without its field":  {ClaudeCode, claude(`{"type": "sse", "command": "x"}`), `field "url": it is missing, and sse needs it`},
		"websocket":               {ClaudeCode, claude(`{"type": "ws", "url": "wss://h/"}`), `found "ws", want one of http,`},
		"near type":               {ClaudeCode, claude(`{"type": "streamble-http", "url": "https://h/"}`), `did you mean "streamable-http"?`},
		"command no string":       {ClaudeCode, claude(`{"command": {}}`), `field "command": found an empty object, want a string`},
		"command empty":           {ClaudeCode, claude(`{"command": ""}`), `the command is empty`},
		"args no list":            {ClaudeCode, claude(`{"command": "x", "args": "y"}`), `field "args": found a string, want a list`},
		"synonyms":                {ClaudeCode, claude(`{"command": "x", "env": {}, "environment": {}}`), `field "environment": it has the same meaning as "env"`},
		"timeout of no time":      {ClaudeCode, claude(`{"command": "x", "timeout": 0}`), `found 0, want a number of milliseconds above 0`},
		"timeout of years":        {ClaudeCode, claude(`{"command": "x", "timeout": 1e15}`), `at most 168h0m0s`},
		"port":                    {ClaudeCode, claude(`{"url": "https://h/", "oauth": {"callbackPort": 70000}}`), `field "oauth.callbackPort": found 70000, want a whole number from 1 to 65535`},
		"name unprintable":        {ClaudeCode, `{"mcpServers": {"a\u0007": {"command": "x"}}}`, `the name contains unprintable characters`},
		"name too long":           {ClaudeCode, `{"mcpServers": {"` + strings.Repeat("n", 200) + `": {"command": "x"}}}`, `the name has 200 bytes, more than 128`},
		"codex token":             {Codex, "[mcp_servers.s]\nurl = \"https://h/\"\nbearer_token = \"x\"", `3:16: server "s": field "bearer_token": a token must not stand in the file; put it into a variable`},
		"codex no TOML":           {Codex, "[mcp_servers.s\n", `invalid TOML`},
		"codex twice":             {Codex, "[mcp_servers.s]\ncommand = \"x\"\ncommand = \"y\"", `invalid TOML`},
		"codex table twice":       {Codex, "[mcp_servers.s]\ncommand = \"x\"\n[mcp_servers.s]\nurl = \"y\"", `invalid TOML`},
		"codex inline twice":      {Codex, "[mcp_servers.s]\ncommand = \"x\"\nenv = { A = \"1\", A = \"2\" }", `invalid TOML`},
		"grant":                   {ClaudeCode, claude(`{"url": "https://h/", "oauth": {"grantType": "password"}}`), `field "oauth.grantType": want one of authorization_code, client_credentials`},
		"oauth and header":        {SEP, claude(`{"type": "sse", "url": "https://h/", "headers": {"Authorization": "Bearer ${env:X}"}, "oauth": {}}`), `there is also an Authorization header`},
		"portable title":          {SEP, claude(`{"type": "stdio", "command": "x", "title": "` + strings.Repeat("t", 101) + `"}`), `it has more than 100 characters`},
		"portable comments":       {SEP, "{\"mcpServers\": {} // x\n}", `comments and trailing commas are not allowed`},
		"input twice":             {VSCode, `{"inputs": [{"id": "a"}, {"id": "a"}], "servers": {}}`, `field "inputs[1].id": there is another input with the id "a"`},
		"refers without a place":  {Auto, `{"mcpServers": "other.json"}`, `it includes another file`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.d, []byte(c.in))
			if name == "unknown dialect" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
				return
			}
			refused(t, err, c.want)
		})
	}
}

// Errors show no values.
func TestError_ShowsNoValues(t *testing.T) {
	const secret = "hunter2hunter2"
	for _, in := range []string{
		claude(`{"command": "x", "env": {"TOKEN": ["` + secret + `"]}}`),
		claude(`{"url": "` + secret + `"}`),
		claude(`{"url": "https://u:` + secret + `@h:x/"}`),
		claude(`{"url": "https://h/", "headers": {"A": "` + secret + `\n"}}`),
		claude(`{"url": "https://h/", "oauth": "` + secret + `"}`),
		claude(`{"command": "x", "args": ["` + secret + `", {}]}`),
		v1(`{"transport": "streamable_http", "url": "https://h/", "bearer_token_env_var": "` + secret + `-"}`),
		v1(`{"transport": "streamable_http", "url": "https://h/", "env_http_headers": {"A": "` + secret + `-"}}`),
	} {
		_, err := Parse(Auto, []byte(in))
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", in, err)
		}
	}
}

// All mistakes are reported at once, up to a bound.
func TestD2_AllMistakesAtOnce(t *testing.T) {
	var b strings.Builder
	for i := range 30 {
		fmt.Fprintf(&b, `"s%d": {"args": [1]}, `, i)
	}
	_, err := Parse(ClaudeCode, []byte(`{"mcpServers": {`+b.String()+`"ok": {"command": "x"}}}`))
	if n := strings.Count(err.Error(), "\n"); n != maxErrors || !strings.HasSuffix(err.Error(), "and 10 more") {
		t.Errorf("got %d lines: %v", n, err)
	}
}

// An invalid server is skipped with a warning in an import, and otherwise an error.
func TestD2_Import(t *testing.T) {
	in := []byte(`{"mcpServers": {"bad": {"type": "ws", "url": "wss://h/"}, "good": {"command": "x", "heders": {}}}}`)
	cfg, _, err := parse(Options{Import: true}, "f.json", in)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Servers) != 1 || cfg.Server("good") == nil || cfg.Server("bad") != nil {
		t.Errorf("servers are %v", cfg.Servers)
	}
	if len(cfg.Warnings) != 2 || !strings.Contains(cfg.Warnings[0].Error(), "the server is left out") || !strings.Contains(cfg.Warnings[1].Error(), `did you mean "headers"?`) {
		t.Errorf("warnings are %v", cfg.Warnings)
	}
	if _, _, err := parse(Options{}, "f.json", in); err == nil {
		t.Error("not importing, the file was taken")
	}
}

// Limits of the parser. Without them it would exhaust the stack.
func TestD2_Bounds(t *testing.T) {
	for name, c := range map[string]struct {
		d    Dialect
		in   string
		want string
	}{
		"deep objects": {Auto, strings.Repeat(`{"a":`, 1<<19), "nests deeper than 64 levels"},
		"deep lists":   {Auto, `{"mcpServers":` + strings.Repeat("[", 3<<20), "nests deeper than 64 levels"},
		"deep comment": {Auto, `{/*` + strings.Repeat("[", 1000), "invalid JSON"},
		"deep TOML":    {Codex, "a = " + strings.Repeat("[", 3<<20), "nests deeper than 64 levels"},
		"long key":     {Codex, strings.Repeat("a.", 1<<20) + "a = 1", "a key of more than 64 parts"},
		"long table":   {Codex, "[" + strings.Repeat("a.", 1<<20) + "a]", "a key of more than 64 parts"},
		"too large":    {Auto, strings.Repeat(" ", maxFile+1), "more than the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.d, []byte(c.in))
			refused(t, err, c.want)
		})
	}
	brackets := claude(`{"command": "x", "args": ["` + strings.Repeat("[{", 500) + `"]}`)
	if _, err := Parse(Auto, []byte(brackets)); err != nil {
		t.Errorf("brackets in a string: %v", err)
	}
	toml := "# " + strings.Repeat("[", 100) + "\n[mcp_servers.s]\ncommand = '''" + strings.Repeat("[\n", 100) + "'''\nargs = ['" + strings.Repeat("[", 100) + "', \"\\\"" + strings.Repeat("[.", 100) + "\"]\n"
	if _, err := Parse(Codex, []byte(toml)); err != nil {
		t.Errorf("brackets in strings of TOML: %v", err)
	}
}

// Dialects are detected by file name and keys.
func TestD2_Detect(t *testing.T) {
	server := `{"command": "x"}`
	for _, c := range []struct {
		file, in string
		want     Dialect
	}{
		{"x.json", `{"version": 1, "servers": {}}`, V1},
		{"x.json", `{"version": 1, "mcpServers": {"s": ` + server + `}, "servers": {}}`, ClaudeCode},
		{"x.json", `{"servers": {"s": ` + server + `}}`, VSCode},
		{"x.json", `{"servers": ` + server + `}`, ClaudeCode}, // bare, of a server with that name
		{"x.json", `{"mcp": {"s": {"type": "local", "command": ["x"]}}}`, OpenCode},
		{"x.json", `{"mcp": {"servers": {"s": {"type": "local", "command": ["x"]}}}}`, OpenCode2},
		{"x.json", `{"mcp": {"servers": {"type": "local", "command": ["x"]}}}`, OpenCode},
		{"x.toml", "[mcp_servers.s]\ncommand = \"x\"", Codex},
		{"x.json", `{"s": ` + server + `}`, ClaudeCode},
		{"x.json", `{}`, ClaudeCode},
		{"x.json", claude(`{"httpUrl": "https://h/"}`), Gemini},
		{"x.json", claude(`{"serverUrl": "https://h/"}`), Windsurf},
		{"x.json", claude(`{"type": "streamableHttp", "url": "https://h/"}`), Cline},
		{"x.json", claude(`{"type": "streamable-http", "url": "https://h/"}`), SEP},
		{"x.json", claude(`{"type": "streamable-http", "url": "https://h/",}`), ClaudeCode}, // not plain JSON
		{"x.json", claude(`{"type": "stdio", "command": "x"}`), ClaudeCode},
		{"mcp.json", claude(`{"type": "stdio", "command": "x"}`), SEP},
		{".mcp.json", claude(`{"type": "stdio", "command": "x"}`), ClaudeCode},
		{".cursor/mcp.json", claude(server), Cursor},
		{".gemini/settings.json", `{"theme": "x"}`, Gemini},
		{".gemini/settings.json", `{"mcp": {"allowed": ["x"]}}`, Gemini},
		{".config/opencode/opencode.json", `{"theme": "x"}`, OpenCode},
		{"claude_desktop_config.json", `{"scale": 1}`, ClaudeDesktop},
		{".vscode/mcp.json", `{"version": 3, "servers": {}}`, VSCode},
	} {
		cfg, _, err := parse(Options{}, filepath.FromSlash(c.file), []byte(c.in))
		if err != nil {
			t.Errorf("%s %s: %v", c.file, c.in, err)
		} else if cfg.Dialect != c.want {
			t.Errorf("%s %s: got %s, want %s", c.file, c.in, cfg.Dialect, c.want)
		}
	}
}

// Servers that Claude Code stores for one directory override those for all.
func TestD2_ProjectServers(t *testing.T) {
	root := t.TempDir()
	in := fmt.Sprintf(`{"mcpServers": {"a": {"command": "user"}, "b": {"command": "user"}}, "projects": {%q: {"mcpServers": {"b": {"command": "here"}}}, "/else": {"mcpServers": {"c": {"command": "x"}}}}}`, root)
	file := filepath.Join(t.TempDir(), ".claude.json")
	if err := os.WriteFile(file, []byte(in), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := LoadFile(file, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Servers) != 2 || cfg.Server("b").Command.String() != "here" || cfg.Server("a").Dir != root {
		t.Errorf("got %s", show(cfg))
	}
}

func FuzzParse(f *testing.F) {
	for _, path := range samples(f) {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(0), b)
		f.Add(uint8(6), b)
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		d := append([]Dialect{Auto}, Dialects...)[int(which)%(len(Dialects)+1)]
		cfg, err := Parse(d, data)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%v is no *Error", err)
			}
			return
		}
		for _, s := range cfg.Servers {
			s.Explain()
			s.Needs()
			if len(s.Hash()) != 64 {
				t.Errorf("the hash is %q", s.Hash())
			}
			if _, err := s.Resolve(t.Context(), Resolver{}); err != nil && strings.Contains(err.Error(), "%!") {
				t.Errorf("%v", err)
			}
		}
	})
}
