package mcpjson

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// A Risk is a part of a definition that does more than it seems to, or that is easily
// mistaken for something else. Show it to the user who approves the definition.
type Risk struct {
	Path string // of the field, as in Field.Path
	Text string // says what the field does; it may quote untrusted text
}

// Risks returns what to point out about a definition. It recognizes common interpreters,
// launchers and variables: a definition without risks is not harmless.
func (s *Server) Risks() []Risk {
	var r risks
	if s.Transport == TransportStdio {
		r.arguments(s)
		for _, p := range s.Env {
			r.add("env."+p.Name, VariableRisk(p.Name))
		}
	}
	s.texts(func(path string, t *Text) { r.add(path, lookalikes(t.String())) })
	return r.list
}

const (
	// maxRisks bounds the list.
	maxRisks = 50
	// maxAfter bounds the words after a program that may belong to it.
	maxAfter = 64
)

type risks struct{ list []Risk }

func (r *risks) add(path, text string) {
	if one := (Risk{path, text}); text != "" && len(r.list) < maxRisks && !slices.Contains(r.list, one) {
		r.list = append(r.list, one)
	}
}

// arguments examines the command and its arguments. A launcher such as env or docker
// has the program that matters among its arguments, so each word may be a program.
func (r *risks) arguments(s *Server) {
	words, path := []string{s.Command.String()}, func(i int) string {
		if i == 0 {
			return "command"
		}
		return indexed("args", i-1)
	}
	for _, a := range s.Args {
		words = append(words, a.String())
	}
	for i, w := range words {
		if name, _, ok := strings.Cut(w, "="); ok && i > 0 {
			r.add(path(i), VariableRisk(name))
		}
		name := programName(w)
		if kind, ok := launchers[name]; ok && (i == 0 || !strings.ContainsAny(w, "= ")) {
			for j := i + 1; j < min(len(words), i+maxAfter); j++ {
				text := kind.risk(name, words[j])
				r.add(path(j), text)
				if text == "" && !strings.HasPrefix(words[j], "-") && !strings.HasPrefix(words[j], "/") && !kind.subcommands && !strings.HasPrefix(words[j-1], "-") {
					break // the script; what follows are its arguments
				}
			}
		}
		if after := words[i+1 : min(len(words), i+maxAfter)]; fetches(name, after) {
			text := "%s may download a package and run it: no version is fixed, so each start may run another one"
			if fixesVersions(name, after) {
				text = "%s may download a package and run it: its version is fixed, those of packages that it depends on may not be"
			}
			r.add(path(i), fmt.Sprintf(text, name))
		}
	}
}

// A launcher is a kind of program that runs code given in its arguments.
type launcher struct {
	code        []string // flags whose value is code
	load        []string // flags whose value is code to load first
	cluster     string   // letters that mean code within combined flags, such as -lc
	other       map[string]string
	subcommands bool // words before the code, such as "docker run"
}

func (l launcher) risk(name, word string) string {
	flag, _, _ := strings.Cut(word, "=")
	switch {
	case slices.Contains(l.code, flag):
		return name + " runs the text after it as a program"
	case slices.ContainsFunc(l.load, func(f string) bool { return flag == f || !strings.HasPrefix(f, "--") && strings.HasPrefix(word, f) }):
		return name + " loads and runs other code first"
	case l.other[flag] != "":
		return l.other[flag]
	case l.cluster != "" && len(word) > 1 && word[0] == '-' && word[1] != '-' && strings.ContainsAny(word, l.cluster):
		return name + " runs the text after it as a program"
	}
	return ""
}

var (
	shell   = launcher{code: []string{"-c", "--command"}, cluster: "c", load: []string{"--rcfile", "--init-file"}}
	windows = launcher{code: []string{"/c", "/C", "/k", "/K", "-c", "-Command", "-command", "-e", "-enc", "-EncodedCommand", "-encodedcommand"}}
	nodejs  = launcher{code: []string{"-e", "--eval", "-p", "--print", "-pe"}, load: []string{"-r", "--require", "--import", "--loader", "--experimental-loader", "--preload", "--env-file"},
		other: map[string]string{"--inspect": debugs, "--inspect-brk": debugs}}
	container = launcher{subcommands: true, other: map[string]string{
		"--privileged": "the container may do everything on this machine",
		"-v":           mounts, "--volume": mounts, "--mount": mounts, "--device": mounts, "--volumes-from": mounts,
		"--pid": shares, "--network": shares, "--net": shares, "--ipc": shares, "--uts": shares, "--userns": shares, "--cap-add": shares, "--security-opt": shares,
		"--entrypoint": "the container runs another program than its image's",
	}}
)

const (
	debugs = "opens a port through which others on this machine can run code"
	mounts = "the container gets files or devices of this machine"
	shares = "the container may be less isolated than usual"
)

var launchers = map[string]launcher{
	"sh": shell, "bash": shell, "dash": shell, "zsh": shell, "ksh": shell, "mksh": shell, "ash": shell, "fish": shell, "csh": shell, "tcsh": shell,
	"cmd": windows, "powershell": windows, "pwsh": windows,
	"node": nodejs, "nodejs": nodejs, "bun": nodejs, "tsx": nodejs, "ts-node": nodejs, "electron": nodejs,
	"deno":   {code: []string{"eval"}, load: []string{"--import-map", "--preload"}, other: map[string]string{"-A": "the program may do everything", "--allow-all": "the program may do everything"}},
	"python": {code: []string{"-c"}, cluster: "c"}, "pythonw": {code: []string{"-c"}}, "pypy": {code: []string{"-c"}},
	"perl": {code: []string{"-e", "-E"}, cluster: "eE", load: []string{"-M", "-I"}}, "ruby": {code: []string{"-e"}, load: []string{"-r", "-I"}},
	"php": {code: []string{"-r", "-B", "-R", "-E"}, load: []string{"-d", "-c"}}, "lua": {code: []string{"-e"}, load: []string{"-l"}},
	"julia": {code: []string{"-e", "-E"}}, "rscript": {code: []string{"-e"}}, "osascript": {code: []string{"-e"}},
	"java": {load: []string{"-javaagent", "-agentlib", "-agentpath", "-cp", "-classpath"}},
	"env":  {code: []string{"-S", "--split-string"}, cluster: "S"},
	"npx":  {code: []string{"-c", "--call"}, other: registry}, "npm": {code: []string{"-c", "--call"}, other: registry, subcommands: true},
	"uvx": {other: registry}, "uv": {other: registry, subcommands: true}, "pip": {other: registry, subcommands: true}, "pipx": {other: registry, subcommands: true},
	"docker": container, "podman": container, "nerdctl": container,
	"ssh": {other: map[string]string{"-o": "ssh options can run commands on this machine"}},
	"git": {load: []string{"-c", "--exec-path", "--upload-pack"}, subcommands: true},
}

var registry = map[string]string{
	"--registry": elsewhere, "--index": elsewhere, "--index-url": elsewhere, "-i": elsewhere, "--default-index": elsewhere, "--extra-index-url": elsewhere, "--find-links": elsewhere,
}

const elsewhere = "packages come from another registry"

// fetches reports whether a program downloads what it runs, given the words after it.
func fetches(name string, words []string) bool {
	next := ""
	if len(words) > 0 {
		next = words[0]
	}
	switch name {
	case "npx", "bunx", "pnpx", "uvx":
		return true
	case "npm":
		return next == "exec" || next == "x"
	case "pnpm", "yarn":
		return next == "dlx"
	case "pipx", "docker", "podman", "nerdctl":
		return next == "run"
	case "uv":
		return next == "tool"
	case "deno":
		return slices.ContainsFunc(words, func(w string) bool {
			return strings.HasPrefix(w, "https:") || strings.HasPrefix(w, "npm:") || strings.HasPrefix(w, "jsr:")
		})
	case "go":
		return next == "run" && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "@") })
	}
	return false
}

// variables says what well-known variables do, by name in upper case. A trailing "*"
// stands for any text.
var variables = map[string][]string{
	"loads other code into programs": {
		"LD_*", "DYLD_*", "GCONV_PATH", "NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE", "NODE_ICU_DATA", "BUN_OPTIONS",
		"PYTHONSTARTUP", "PYTHONPATH", "PYTHONHOME", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONWARNINGS", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX",
		"PERL5OPT", "PERL5LIB", "PERLLIB", "PERL5DB", "RUBYOPT", "RUBYLIB", "GEM_PATH", "GEM_HOME", "BUNDLE_GEMFILE", "BASH_ENV", "ZDOTDIR", "BASH_FUNC_*", "PROMPT_COMMAND", "PS4", "SHELLOPTS", "BASHOPTS",
		"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "MAVEN_OPTS", "GRADLE_OPTS", "PHPRC", "PHP_INI_SCAN_DIR", "LUA_INIT*", "LUA_PATH*", "LUA_CPATH*",
		"DOTNET_STARTUP_HOOKS", "DOTNET_ADDITIONAL_DEPS", "CORECLR_*", "COR_PROFILER*", "COR_ENABLE_PROFILING", "R_PROFILE*", "R_ENVIRON*", "JULIA_LOAD_PATH", "JULIA_DEPOT_PATH",
		"OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "GIO_EXTRA_MODULES", "GTK_MODULES", "QT_PLUGIN_PATH", "GLIBC_TUNABLES", "VIMINIT", "EXINIT",
	},
	"changes which programs run": {
		"PATH", "PATHEXT", "COMSPEC", "SHELL", "IFS", "GIT_*", "SSH_ASKPASS", "SUDO_ASKPASS", "PAGER", "MANPAGER", "EDITOR", "VISUAL", "BROWSER", "LESSOPEN", "LESSCLOSE",
		"CC", "CXX", "RUSTC_WRAPPER", "CARGO_*", "GOFLAGS", "GOROOT", "MAKEFLAGS", "HOME", "XDG_CONFIG_HOME",
	},
	"reads credentials, and maybe the command that makes them, from another file": {
		"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
	},
	"changes where packages come from": {
		"NPM_CONFIG_*", "YARN_*", "PNPM_*", "PIP_*", "UV_*", "GOPROXY", "GONOSUMDB", "GONOSUMCHECK", "BUN_CONFIG_*", "DENO_*", "CARGO_REGISTRIES_*", "BUNDLE_MIRROR*",
	},
	"sends traffic elsewhere, or trusts other certificates": {
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
		"AWS_CA_BUNDLE", "AWS_ENDPOINT_URL*", "PYTHONHTTPSVERIFY", "DOCKER_HOST", "DOCKER_CONFIG", "KUBECONFIG", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL",
	},
}

// VariableRisk returns what a variable of this name does to a program, such as "changes
// which programs run". It returns "" for variables that it does not know.
func VariableRisk(name string) string {
	upper := strings.ToUpper(name)
	found := ""
	for text, names := range variables {
		for _, n := range names {
			prefix, any := strings.CutSuffix(n, "*")
			if (upper == n || any && strings.HasPrefix(upper, prefix)) && (found == "" || text < found) {
				found = text
			}
		}
	}
	return found
}

// maxLookalikes bounds the characters that a risk lists.
const maxLookalikes = 5

// lookalikes points out letters that can be mistaken for ASCII letters, as in the name
// of a package or host, and characters that are not visible.
func lookalikes(text string) string {
	var odd []string
	for _, r := range text {
		if r < 0x80 && unicode.IsPrint(r) || r == '\n' || r == '\t' {
			continue
		}
		if name := fmt.Sprintf("U+%04X", r); len(odd) < maxLookalikes && !slices.Contains(odd, name) {
			odd = append(odd, name)
		}
	}
	if odd == nil {
		return ""
	}
	return "has characters outside of ASCII, which can look like others or be invisible: " + strings.Join(odd, ", ")
}
