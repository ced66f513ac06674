package mcpjson

import (
	"strings"
	"testing"
	"time"
)

func TestRisks(t *testing.T) {
	stdio := func(words ...string) *Server {
		s := &Server{Transport: TransportStdio, Command: Literal(words[0])}
		for _, w := range words[1:] {
			s.Args = append(s.Args, Literal(w))
		}
		return s
	}
	variable := func(name string) *Server {
		s := stdio("server")
		s.Env = []Pair{{Name: name, Value: Literal("x")}}
		return s
	}
	for _, tt := range []struct {
		name       string
		s          *Server
		path, want string // of the expected risk; no path for none
	}{
		{"sh -c", stdio("sh", "-c", "id"), "args[0]", "sh runs the text after it as a program"},
		{"combined flags", stdio("/bin/bash", "-lc", "id"), "args[0]", "bash runs the text"},
		{"behind env", stdio("env", "A=b", "sh", "-c", "id"), "args[2]", "sh runs the text"},
		{"text that env splits", stdio("env", "-i", "-vSnode server.js"), "args[1]", "env runs the text"},
		{"cmd", stdio("C:\\Windows\\System32\\cmd.exe", "/c", "x"), "args[0]", "cmd runs the text"},
		{"node -e", stdio("node", "-e", "x"), "args[0]", "node runs the text"},
		{"node -r", stdio("node", "-r", "./x.js", "server.js"), "args[0]", "loads and runs other code first"},
		{"node --import=", stdio("node", "--import=./x.mjs", "server.js"), "args[0]", "loads and runs other code first"},
		{"node --inspect", stdio("node", "--inspect=0.0.0.0:9229", "server.js"), "args[0]", "opens a port"},
		{"python -c", stdio("python3.13", "-c", "x"), "args[0]", "python runs the text"},
		{"perl -e", stdio("perl", "-ne", "x"), "args[0]", "perl runs the text"},
		{"perl -M", stdio("perl", "-MEvil", "x.pl"), "args[0]", "loads and runs other code first"},
		{"deno eval", stdio("deno", "eval", "x"), "args[0]", "deno runs the text"},
		{"npx -c", stdio("npx", "-c", "id"), "args[0]", "npx runs the text"},
		{"npx", stdio("npx", "-y", "server"), "command", "may download a package"},
		{"npx, without a version", stdio("npx", "-y", "@scope/server", "."), "command", "no version is fixed"},
		{"npx, exact version", stdio("npx", "-y", "@scope/server@2026.8.31", "."), "command", "its version is fixed"},
		{"npx, prerelease", stdio("npx", "server@1.2.3-beta.1"), "command", "its version is fixed"},
		{"npx, tag", stdio("npx", "-y", "server@latest"), "command", "no version is fixed"},
		{"npx, range", stdio("npx", "-y", "server@^1.2.3"), "command", "no version is fixed"},
		{"npx, major version", stdio("npx", "-y", "server@1"), "command", "no version is fixed"},
		{"npx, scope", stdio("npx", "-y", "@1.2.3/server"), "command", "no version is fixed"},
		{"npx, fixed package, program", stdio("npx", "-y", "-p", "server@1.2.3", "run-it"), "command", "its version is fixed"},
		{"npx, one of two packages fixed", stdio("npx", "-p", "a@1.2.3", "-p", "b", "run-it"), "command", "no version is fixed"},
		{"npx, version among the arguments of the package", stdio("npx", "server", "other@1.2.3"), "command", "no version is fixed"},
		{"npx, package after an unknown flag", stdio("npx", "--quick", "evil", "server@1.2.3"), "command", "no version is fixed"},
		{"npx, package with the name of a subcommand", stdio("npx", "run", "server@1.2.3"), "command", "no version is fixed"},
		{"npm exec", stdio("npm", "exec", "server@1.2.3"), "command", "its version is fixed"},
		{"uv tool run, exact version", stdio("uv", "tool", "run", "server==1.2.3"), "command", "its version is fixed"},
		{"uvx, exact version", stdio("uvx", "server==1.2"), "command", "its version is fixed"},
		{"uvx --from", stdio("uvx", "--from=server==1.2.3", "run-it"), "command", "its version is fixed"},
		{"uvx --with", stdio("uvx", "--with", "extra", "server@1.2.3"), "command", "no version is fixed"},
		{"uvx, git", stdio("uvx", "--from", "git+https://host.example/a@1.2.3", "run-it"), "command", "no version is fixed"},
		{"docker, tag", stdio("docker", "run", "-i", "--rm", "image:1.2.3"), "command", "no version is fixed"},
		{"docker, digest", stdio("docker", "run", "-i", "--rm", "-e", "A", "image@sha256:"+strings.Repeat("0", 64)), "command", "its version is fixed"},
		{"go run", stdio("go", "run", "host.example/a@v1.2.3"), "command", "its version is fixed"},
		{"uv tool run", stdio("uv", "tool", "run", "server"), "command", "may download a package"},
		{"other registry", stdio("npx", "--registry=https://evil.example", "server"), "args[0]", "another registry"},
		{"docker mounts", stdio("docker", "run", "-v", "/:/host", "image"), "args[1]", "files or devices of this machine"},
		{"docker privileged", stdio("docker", "run", "--privileged", "image"), "args[1]", "do everything"},
		{"shell in a container", stdio("docker", "run", "image", "sh", "-c", "id"), "args[3]", "sh runs the text"},
		{"LD_PRELOAD", variable("LD_PRELOAD"), "env.LD_PRELOAD", "loads other code"},
		{"LD_AUDIT", variable("LD_AUDIT"), "env.LD_AUDIT", "loads other code"},
		{"NODE_OPTIONS", variable("NODE_OPTIONS"), "env.NODE_OPTIONS", "loads other code"},
		{"PYTHONSTARTUP", variable("PYTHONSTARTUP"), "env.PYTHONSTARTUP", "loads other code"},
		{"PATH", variable("PATH"), "env.PATH", "which programs run"},
		{"GIT_SSH_COMMAND", variable("GIT_SSH_COMMAND"), "env.GIT_SSH_COMMAND", "which programs run"},
		{"npm_config_registry", variable("npm_config_registry"), "env.npm_config_registry", "packages come from"},
		{"proxy", variable("https_proxy"), "env.https_proxy", "traffic elsewhere"},
		{"variable as an argument", stdio("env", "LD_PRELOAD=/x.so", "server"), "args[0]", "loads other code"},
		{"Cyrillic o in a package", stdio("npx", "-y", "@modelc\u043entextprotocol/server"), "args[1]", "U+043E"},
		{"bidi", stdio("server", "a\u202eb"), "args[0]", "U+202E"},
		{"Cyrillic a in a host", &Server{Transport: TransportHTTP, URL: Literal("https://\u0430pple.example/")}, "url", "U+0430"},

		{"plain script", stdio("node", "server.js", "--port", "1"), "", ""},
		{"flags of the script", stdio("node", "server.js", "-e", "prod"), "", ""},
		{"module", stdio("python", "-m", "server"), "", ""},
		{"plain variable", variable("LOG_LEVEL"), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.s.Risks()
			for _, r := range got {
				if r.Path == tt.path && strings.Contains(r.Text, tt.want) {
					return
				}
			}
			if len(got) > 0 || tt.path != "" {
				t.Errorf("got %q, want %q: %q", got, tt.path, tt.want)
			}
		})
	}
}

// The largest definition that a file can hold does not take long.
func TestRisks_Bounded(t *testing.T) {
	s := &Server{Transport: TransportStdio, Command: Literal("env")}
	for range maxFile / 8 {
		s.Args = append(s.Args, Literal("deno"))
	}
	start := time.Now()
	if n := len(s.Risks()); n > maxRisks {
		t.Errorf("%d risks, want at most %d", n, maxRisks)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %v", took)
	}
}
