package mcpkit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// Options configures a [Manager]. The zero value of a field means its default.
type Options struct {
	// Config defines the servers. It must not be modified afterwards.
	Config *mcpjson.Config

	// Trust returns how far to trust a definition; nil trusts none. It is called before
	// each connection, and should return when its context ends.
	Trust func(context.Context, *mcpjson.Server) (Trust, error)

	// Resolver expands the placeholders of trusted definitions. If it has no Root, the
	// Dir of each server is its root. Placeholders of untrusted definitions are expanded
	// with an empty resolver.
	Resolver mcpjson.Resolver

	// Outbound is the policy for connections to untrusted servers.
	Outbound outbound.Policy

	// Client identifies the client to servers; the default name is "mcpkit".
	Client *mcp.Implementation

	// Hooks answer questions of servers and receive their notifications.
	Hooks Hooks

	// Roots are the roots for servers whose definition has none; nil means those of
	// Config.Client.
	Roots []*mcp.Root

	// Eras remembers the eras of servers; nil detects the era with each connection.
	Eras *Eras
	// Era is the era to use with all servers; Auto detects it.
	Era Era

	// OAuth returns the login handler for a server over HTTP, or nil for none; see
	// package login. It gets the outbound policy to apply, which is nil for a trusted
	// server. It is called once for each connection. A handler that is an [io.Closer]
	// is closed with the connection.
	OAuth func(*mcpjson.Resolved, *outbound.Policy) (auth.OAuthHandler, error)

	// Stderr returns a writer for the standard error of a server's program, and Trace
	// one for the messages of a connection, in the format of package cassette. Both are
	// called once for each connection, and the writers are closed with it.
	Stderr func(server string) io.WriteCloser
	Trace  func(server string) io.WriteCloser

	// LogDir, if not empty, is a directory for logs that only the user can read:
	// NAME.stderr.log and NAME.wire.jsonl for each server, with characters that are
	// invalid in file names escaped as in URLs. Logs are rotated: see Limits.LogPart.
	// Several processes may use the directory. A log that cannot be written is skipped
	// with a warning to Log.
	LogDir string

	// Dial, if not nil, makes connections instead of the definitions, which then need
	// only a name. Trust is not checked and nothing is traced.
	Dial func(context.Context, *mcpjson.Server) (mcp.Connection, error)

	// Environ returns the environment from which programs get variables; nil means
	// os.Environ.
	Environ func() []string
	// Env are variables, as NAME=value, that every program gets in addition. A definition
	// may set them to other values.
	Env []string

	Limits Limits
	// Timeouts override those of the definitions, where not zero.
	Timeouts mcpjson.Timeouts

	// Log receives problems that do not fail a request; nil discards them.
	Log *slog.Logger
}

// Limits bounds the resources that servers may use. A field that is zero means the
// default named in its comment.
type Limits struct {
	Connect  time.Duration // for start, connection and handshake; 10 s
	Install  time.Duration // the same if the command may download the server first, as npx does; Connect
	Request  time.Duration // for a request, without the time in which questions of the server wait for an answer; 30 s
	Question time.Duration // for the answer to a question of the server; 5 min

	PendingRequests      int // concurrent requests to one server; 64
	PendingQuestions     int // questions of one server that wait for hooks; 64
	PendingNotifications int // notifications of one server that wait for hooks; 256

	Message  int   // bytes of a message; 16 MiB
	Values   int   // JSON values in a message; 500,000
	List     int   // entries of a list; 10,000
	LogPart  int64 // bytes of a part of a log in LogDir; 10 MiB
	LogParts int   // parts kept of each log; 5

	// Grace is the time between closing a program's input and SIGTERM. SIGKILL follows
	// after another ten times Grace. The default is 500 ms.
	Grace time.Duration
	// IdleGrace, if not zero, shortens Grace for a program that is idle after its input
	// was closed: it used less than a tenth of IdleGrace as processor time. Only Linux
	// reports this; elsewhere Grace applies.
	IdleGrace time.Duration
}

func (l Limits) withDefaults() Limits {
	l.Connect = cmp.Or(l.Connect, 10*time.Second)
	l.Request = cmp.Or(l.Request, 30*time.Second)
	l.Question = cmp.Or(l.Question, 5*time.Minute)
	l.PendingRequests = cmp.Or(l.PendingRequests, 64)
	l.PendingQuestions = cmp.Or(l.PendingQuestions, 64)
	l.PendingNotifications = cmp.Or(l.PendingNotifications, 256)
	l.Message = cmp.Or(l.Message, 16<<20)
	l.Values = cmp.Or(l.Values, 500_000)
	l.List = cmp.Or(l.List, 10_000)
	l.LogPart = cmp.Or(l.LogPart, 10<<20)
	l.LogParts = cmp.Or(l.LogParts, 5)
	return l
}

// ErrNoServer reports a name that is not in the configuration, ErrDisabled a server
// that is disabled there, and ErrClosed that the Manager or the session is closed.
var (
	ErrNoServer = errors.New("no server of that name")
	ErrDisabled = errors.New("the server is disabled")
	ErrClosed   = errors.New("closed")
)

// A Manager holds the sessions with the servers of a configuration. Its methods may be
// called concurrently.
type Manager struct {
	opts Options
	log  *slog.Logger

	mu       sync.Mutex
	closed   bool                // guarded by mu
	sessions map[string]*Session // guarded by mu
}

// New returns a manager. It has no side effects.
func New(opts Options) *Manager {
	opts.Limits = opts.Limits.withDefaults()
	if opts.Config == nil {
		opts.Config = &mcpjson.Config{}
	}
	if opts.Client == nil {
		opts.Client = &mcp.Implementation{Name: "mcpkit", Version: "1"}
	}
	if opts.Environ == nil {
		opts.Environ = os.Environ
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Resolver.Inputs == nil {
		opts.Resolver.Inputs = opts.Config.Inputs
	}
	return &Manager{opts: opts, log: opts.Log, sessions: make(map[string]*Session)}
}

// Config returns the configuration. Do not modify it.
func (m *Manager) Config() *mcpjson.Config { return m.opts.Config }

// Session returns the session with a server, always the same one. The session connects
// with its first request. The error matches ErrNoServer, ErrDisabled or ErrClosed.
func (m *Manager) Session(server string) (*Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("use mcp server %q: %w", server, ErrClosed)
	}
	if s := m.sessions[server]; s != nil {
		return s, nil
	}
	def := m.opts.Config.Server(server)
	if def == nil {
		return nil, &UnknownServerError{Name: server, Known: m.names()}
	}
	if def.Disabled {
		return nil, fmt.Errorf("use mcp server %q: %w", server, ErrDisabled)
	}
	s := newSession(m, def)
	m.sessions[server] = s
	return s, nil
}

func (m *Manager) names() (names []string) {
	for _, s := range m.opts.Config.Servers {
		if !s.Disabled {
			names = append(names, s.Name)
		}
	}
	return names
}

// UnknownServerError is an [ErrNoServer] with the configured names.
type UnknownServerError struct {
	Name  string
	Known []string
}

func (e *UnknownServerError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("use mcp server %q: no server is configured", e.Name)
	}
	return fmt.Sprintf("use mcp server %q: %v; the servers are: %s", e.Name, ErrNoServer, strings.Join(e.Known, ", "))
}

// Is reports whether target is [ErrNoServer].
func (e *UnknownServerError) Is(target error) bool { return target == ErrNoServer }

// ConnectIO creates a session over a stream that the caller has connected to a server,
// and performs the handshake. The name must not be in the configuration. Options.Trust
// gets a definition with nothing but this name, and has to trust it. The session closes
// the stream.
func (m *Manager) ConnectIO(ctx context.Context, name string, rwc io.ReadWriteCloser) (*Session, error) {
	s := newSession(m, &mcpjson.Server{Name: name})
	s.stream = rwc
	err := func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case m.closed:
			return ErrClosed
		case m.sessions[name] != nil || m.opts.Config.Server(name) != nil:
			return errors.New("the name is already in use")
		}
		m.sessions[name] = s
		return nil
	}()
	if err == nil {
		_, err = s.Initialize(ctx)
	}
	if err != nil {
		m.forget(s)
		return nil, errors.Join(fmt.Errorf("use mcp server %q: %w", name, err), rwc.Close())
	}
	return s, nil
}

// Release removes a session from the manager, which will not close it. A later Session
// with that name creates another. It returns false if there is none.
func (m *Manager) Release(name string) (*Session, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[name]
	delete(m.sessions, name)
	return s, s != nil
}

func (m *Manager) forget(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sessions[s.def.Name] == s {
		delete(m.sessions, s.def.Name)
	}
}

// Close closes all sessions and returns when their programs have exited.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	var all []*Session
	for _, s := range m.sessions {
		all = append(all, s)
	}
	clear(m.sessions)
	m.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = s.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// baseEnv returns the part of the environment that every program gets.
func (m *Manager) baseEnv(inherit bool) []string {
	env := slices.Clone(m.opts.Environ())
	if !inherit {
		env = slices.DeleteFunc(env, func(kv string) bool {
			return !slices.ContainsFunc(mcpjson.BaseEnv, func(name string) bool {
				return len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name
			})
		})
	}
	return append(env, m.opts.Env...)
}
