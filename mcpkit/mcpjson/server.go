package mcpjson

import (
	"path"
	"slices"
	"strings"
	"time"
)

// Transport is how a server is reached. The set is closed.
type Transport string

const (
	TransportStdio Transport = "stdio"           // a child process
	TransportUnix  Transport = "unix"            // a socket on this machine
	TransportHTTP  Transport = "streamable-http" // Streamable HTTP
	TransportSSE   Transport = "sse"             // the older HTTP with server-sent events
)

// Server is the definition of one MCP server, whatever dialect it was written
// in, with placeholders unexpanded. Resolve makes of it what can be connected
// to.
//
// Which fields may be set depends on Transport: Command to StdoutLog belong to
// TransportStdio, Socket to TransportUnix, URL to OAuth to the other two.
type Server struct {
	// Name is unique in its Config: letters, digits, '_' and '-' in strict
	// dialects; elsewhere any printable text of at most 128 bytes.
	Name        string
	Title       string
	Description string

	Transport Transport

	// Command is the program, Args are its arguments without the program.
	Command Text
	Args    []Text

	// Env is set for the process, in this order. Names are unique.
	Env []Pair

	// PassEnv names variables of the caller's environment that the process gets
	// with their values; one that is not set is left out.
	PassEnv []string

	// InheritEnv gives the process the caller's whole environment instead of
	// the few harmless variables of BaseEnv.
	InheritEnv bool

	// EnvFile is a file of KEY=value lines, below Env in rank; relative to Dir.
	EnvFile Text

	// Cwd is where the process starts, relative to Dir; empty means Dir.
	Cwd Text

	// StdoutLog is where what the server writes is kept; nil for nowhere.
	StdoutLog *StdoutLog

	// Socket is the path of a unix socket, relative to Dir.
	Socket Text

	// URL is the endpoint. With SSEURL it is where requests are posted.
	URL Text

	// SSEURL is a second address, from which events are read; rarely set.
	SSEURL Text

	// SSEFallback says that the file left the kind of HTTP open: if Streamable
	// HTTP is refused, the older transport is to be tried. Only with
	// TransportHTTP.
	SSEFallback bool

	// Headers are sent with every request, in this order. Names are unique
	// without regard to case. A header that is just "Bearer" and a variable of
	// the environment is BearerTokenEnv instead.
	Headers []Pair

	// BearerTokenEnv names the variable that holds the token of the
	// Authorization header; empty for none.
	BearerTokenEnv string

	// OAuth is what the file says of logging in; nil leaves all to discovery.
	OAuth *OAuth

	// Timeouts are zero where the file says nothing.
	Timeouts Timeouts

	// Disabled servers are kept in the Config and are not to be connected to.
	Disabled bool

	// Required says that the client should not start without this server.
	Required bool

	Tools ToolFilter

	// Roots replace those of Config.Client for this server, if not nil.
	Roots []Root

	// Extra is what the file says of this server and this package does not
	// know. It is exported to the dialect that it came from only.
	Extra []Extra

	// Dir is the absolute directory in which relative paths of this definition
	// are meant: the root that the file was found below. It is part of the
	// hash, since "node server.js" is another program in another directory.
	Dir string

	// Dialect and File say where the definition comes from.
	Dialect Dialect
	File    string

	// Origins says where each field was written. Keys are field paths as Explain
	// shows them: "command", "args[0]", "env.TOKEN", "headers.Authorization".
	Origins map[string]Origin
}

// Pair is an environment variable or a header.
type Pair struct {
	Name  string
	Value Text

	// Secret says that the value is not to be shown: its name says so, or it
	// looks like a key. What it is when expanded is secret in any case if it
	// came from the environment or an input marked as a password.
	Secret bool
}

// OAuth is what a file says of logging in.
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
	ClientCredentials bool   // log in as the client itself, without a person
	Extra             []Extra
}

// Timeouts bound a server's calls; zero means the client's default.
type Timeouts struct {
	Connect time.Duration // start, handshake and first listing
	Request time.Duration // each request
}

// StdoutLog keeps what a stdio server writes.
type StdoutLog struct {
	Path            string // relative to Dir, or absolute where that was allowed
	MaxBytesPerPart int64
	MaxParts        int // 0 keeps all
}

// ToolFilter says which of a server's tools may be used.
type ToolFilter struct {
	Allow []string // nil allows all; empty allows none; '*' stands for any text
	Deny  []string // goes before Allow
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

// Origin says where the value of a field was written.
type Origin struct {
	File   string
	Line   int // from 1; 0 if not known
	Column int // from 1, in bytes

	// Key is the path in the file's own words: "mcpServers.github.headers.Authorization".
	Key string

	// Note says how the value came about if it was not written there as it is:
	// a synonym, a default of the dialect.
	Note string
}

// Needs is what a definition wants from the machine and its user before
// anything has been expanded: the facts that trust is about.
type Needs struct {
	Spawn   bool // starts a process
	Socket  bool // connects to a socket of this machine, be it for HTTP
	EnvFile bool // reads a file of variables

	// InheritEnv hands the whole environment to the process.
	InheritEnv bool

	// Env names the variables of the environment whose values are read, sorted.
	Env []string

	// Inputs are the ids of questions to the user, sorted.
	Inputs []string

	// Other are all further sources but literal values and directories:
	// keychains, password managers, files, commands.
	Other []Source

	// SensitiveHeaders are the headers that carry credentials by their name,
	// lower case, sorted; with BearerTokenEnv also authorization.
	SensitiveHeaders []string
}

// Secrets reports whether resolving the definition reads anything from outside
// of the file: the environment, files, answers of the user.
func (n Needs) Secrets() bool {
	return n.EnvFile || n.InheritEnv || len(n.Env)+len(n.Inputs)+len(n.Other) > 0
}

// sensitiveHeaders carry credentials, whatever their values look like.
var sensitiveHeaders = []string{"authorization", "cookie", "proxy-authorization"}

// Needs returns what the definition wants. It reads nothing.
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
			case SchemeValue, SchemeDir:
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
	for _, list := range []*[]string{&n.Env, &n.Inputs, &n.SensitiveHeaders} {
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
