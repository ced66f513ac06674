package mcpjson

import (
	"path"
	"slices"
	"strings"
	"time"
)

// Transport is the way to reach a server. The set is closed.
type Transport string

const (
	TransportStdio Transport = "stdio"           // a child process
	TransportUnix  Transport = "unix"            // a socket on this machine
	TransportHTTP  Transport = "streamable-http" // Streamable HTTP
	TransportSSE   Transport = "sse"             // the older HTTP with server-sent events
)

// Server is the definition of one MCP server in any dialect, with placeholders
// unexpanded. Resolve expands it to what a connection needs.
//
// Which fields may be set depends on Transport: Command to StdoutLog belong to
// TransportStdio, Socket to TransportUnix, URL to OAuth to the others.
type Server struct {
	// Name is unique in its Config: letters, digits, '_' and '-' in strict
	// dialects; elsewhere any printable text of at most 128 bytes.
	Name        string
	Title       string
	Description string

	Transport Transport

	// Command is the program, and Args its arguments.
	Command Text
	Args    []Text

	// Env is set for the process, in this order. Names are unique.
	Env []Pair

	// PassEnv names variables that are passed on from the caller's environment. Unset
	// ones are omitted.
	PassEnv []string

	// InheritEnv passes on the caller's whole environment, instead of the harmless
	// variables of BaseEnv.
	InheritEnv bool

	// EnvFile is a file of KEY=value lines, relative to Dir. Env overrides it.
	EnvFile Text

	// Cwd is the working directory of the program, relative to Dir; empty means Dir.
	Cwd Text

	// StdoutLog configures the log of standard output; nil means none.
	StdoutLog *StdoutLog

	// Socket is the path of a unix socket, relative to Dir.
	Socket Text

	// URL is the endpoint. If SSEURL is set, requests are posted to URL.
	URL Text

	// SSEURL is a second address, from which events are read. It is rarely set.
	SSEURL Text

	// SSEFallback reports that the file does not specify the kind of HTTP: if
	// Streamable HTTP is refused, try the older transport. Only with TransportHTTP.
	SSEFallback bool

	// Headers are sent with every request, in this order. Names are unique, ignoring
	// case. An Authorization header with "Bearer" and a variable is BearerTokenEnv
	// instead.
	Headers []Pair

	// BearerTokenEnv names the variable with the token for the Authorization header;
	// empty means none.
	BearerTokenEnv string

	// OAuth configures logins; nil leaves everything to discovery.
	OAuth *OAuth

	// Timeouts are zero where the file has none.
	Timeouts Timeouts

	// Disabled servers stay in the Config, but must not be connected to.
	Disabled bool

	// Required reports that the client should not start without this server.
	Required bool

	Tools ToolFilter

	// Roots, if not nil, override those of Config.Client.
	Roots []Root

	// Extra has the unknown members of this server. They are exported to their own
	// dialect only.
	Extra []Extra

	// Dir is the absolute directory that relative paths are relative to: the root of
	// the configuration. It is part of the hash, since "node server.js" is another
	// program in another directory.
	Dir string

	// Dialect and File tell where the definition was read.
	Dialect Dialect
	File    string

	// Origins tells where each field was written. Keys are field paths as in Explain:
	// "command", "args[0]", "env.TOKEN", "headers.Authorization".
	Origins map[string]Origin
}

// Pair is an environment variable or a header.
type Pair struct {
	Name  string
	Value Text

	// Secret reports that the value must not be shown, because of its name or because
	// it has the form of a key. The expanded value is secret in any case if it comes
	// from the environment or a password input.
	Secret bool
}

// OAuth configures logins to a server.
type OAuth struct {
	Disabled          bool // never start a login
	ClientID          Text
	ClientSecret      Text
	Scopes            []string
	RedirectURL       string
	CallbackPort      int    // of the listener on the loopback interface; 0 for any
	MetadataURL       string // of the authorization server, instead of discovery
	ClientMetadataURL string // the client id metadata document
	Resource          string // the resource indicator, instead of the URL
	ClientCredentials bool   // log in as the client itself, without a user
	Extra             []Extra
}

// Timeouts bound operations of a server; zero means the client's default.
type Timeouts struct {
	Connect time.Duration // for start, handshake and first listing
	Request time.Duration // for each request
}

// StdoutLog configures the log of a program's standard output.
type StdoutLog struct {
	Path            string // relative to Dir, or absolute if allowed
	MaxBytesPerPart int64
	MaxParts        int // 0 keeps all
}

// ToolFilter restricts the tools of a server.
type ToolFilter struct {
	Allow []string // nil allows all; empty allows none; '*' stands for any text
	Deny  []string // overrides Allow
}

// Allows reports whether a tool of that name may be used.
func (f ToolFilter) Allows(tool string) bool {
	if matchAny(f.Deny, tool) {
		return false
	}
	return f.Allow == nil || matchAny(f.Allow, tool)
}

func matchAny(patterns []string, tool string) bool {
	// path.Match stops at slashes, which tool names may have.
	flat := func(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
	for _, p := range patterns {
		if p == tool {
			return true
		}
		if ok, err := path.Match(flat(p), flat(tool)); err == nil && ok && strings.Contains(p, "*") {
			return true
		}
	}
	return false
}

// Origin tells where a field was written.
type Origin struct {
	File   string
	Line   int // from 1; 0 if not known
	Column int // from 1, in bytes

	// Key is the path in the file: "mcpServers.github.headers.Authorization".
	Key string

	// Note explains a value that was not written like this, such as a synonym or a
	// default of the dialect.
	Note string
}

// Needs lists what a definition requires of the machine and the user, before expansion.
// Trust decisions are based on it.
type Needs struct {
	Spawn   bool // starts a process
	Socket  bool // connects to a socket of this machine, also for HTTP
	EnvFile bool // reads a file of variables

	// InheritEnv passes the whole environment to the process.
	InheritEnv bool

	// Env names the environment variables that are read, sorted.
	Env []string

	// Inputs are the ids of questions to the user, sorted.
	Inputs []string

	// Dirs lists the directories of this machine whose paths are read, sorted: the
	// values of Source.Name for SchemeDir, except DirSeparator. A server over HTTP
	// would learn the path, and with it the name of the user.
	Dirs []string

	// Other lists the other sources, except literal values: keychains, password
	// managers, files, commands.
	Other []Source

	// SensitiveHeaders lists the headers that carry credentials, in lower case, sorted.
	// BearerTokenEnv adds authorization.
	SensitiveHeaders []string
}

// Secrets reports whether Resolve reads anything outside of the file: the environment,
// other files, answers of the user, paths of this machine.
func (n Needs) Secrets() bool {
	return n.EnvFile || n.InheritEnv || len(n.Env)+len(n.Inputs)+len(n.Dirs)+len(n.Other) > 0
}

// sensitiveHeaders carry credentials, whatever their values.
var sensitiveHeaders = []string{"authorization", "cookie", "proxy-authorization"}

// Needs returns what the definition requires. It reads nothing.
func (s *Server) Needs() Needs {
	overSocket := len(s.URL) > 0 && (strings.HasPrefix(s.URL[0].Literal, "unix:") || strings.HasPrefix(s.URL[0].Literal, "pipe:"))
	n := Needs{
		Spawn:      s.Transport == TransportStdio,
		Socket:     s.Transport == TransportUnix || overSocket,
		EnvFile:    len(s.EnvFile) > 0,
		InheritEnv: s.InheritEnv,
		Env:        slices.Clone(s.PassEnv),
	}
	if s.BearerTokenEnv != "" {
		n.Env = append(n.Env, s.BearerTokenEnv)
		n.SensitiveHeaders = append(n.SensitiveHeaders, "authorization")
	}
	for _, h := range s.Headers {
		if name := strings.ToLower(h.Name); slices.Contains(sensitiveHeaders, name) {
			n.SensitiveHeaders = append(n.SensitiveHeaders, name)
		}
	}
	s.texts(func(_ string, t *Text) {
		for _, src := range t.Sources() {
			switch src.Scheme {
			case SchemeValue:
			case SchemeDir:
				if src.Name != DirSeparator {
					n.Dirs = append(n.Dirs, src.Name)
				}
			case SchemeEnv:
				n.Env = append(n.Env, src.Name)
			case SchemeInput:
				n.Inputs = append(n.Inputs, src.Name)
			default:
				if !slices.Contains(n.Other, src) {
					n.Other = append(n.Other, src)
				}
			}
		}
	})
	for _, list := range []*[]string{&n.Env, &n.Inputs, &n.Dirs, &n.SensitiveHeaders} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return n
}

// texts calls f for every field that may hold placeholders, with its path.
func (s *Server) texts(f func(field string, t *Text)) {
	f("command", &s.Command)
	for i := range s.Args {
		f(indexed("args", i), &s.Args[i])
	}
	for i := range s.Env {
		f("env."+s.Env[i].Name, &s.Env[i].Value)
	}
	f("envFile", &s.EnvFile)
	f("cwd", &s.Cwd)
	f("socket", &s.Socket)
	f("url", &s.URL)
	f("sseUrl", &s.SSEURL)
	for i := range s.Headers {
		f("headers."+s.Headers[i].Name, &s.Headers[i].Value)
	}
	if s.OAuth != nil {
		f("oauth.clientId", &s.OAuth.ClientID)
		f("oauth.clientSecret", &s.OAuth.ClientSecret)
	}
}
