package mcpkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// Options configures a [Manager]. The zero value of every field means its default.
type Options struct {
	// Config has the servers; it must not be changed afterwards.
	Config *mcpjson.Config

	// Trust says how far a definition is trusted; nil means not at all. It is asked
	// before each connection, and gives up when its context ends.
	Trust func(context.Context, *mcpjson.Server) (Trust, error)

	// Resolver expands the placeholders of trusted definitions. Those of others
	// are expanded from nothing.
	Resolver mcpjson.Resolver

	// Outbound is where connections for untrusted servers may go.
	Outbound outbound.Policy

	// Client is how the client calls itself; "mcpkit" without it.
	Client *mcp.Implementation

	// Hooks answer what servers ask and hear what they tell.
	Hooks Hooks

	// Roots are told to servers whose definition has none of its own; nil takes
	// those of Config.Client.
	Roots []*mcp.Root

	// Eras remembers which era servers speak; nil finds out each time.
	Eras *Eras
	// Era is what is spoken to all servers; Auto finds out.
	Era Era

	// OAuth returns what logs in to a server over HTTP; nil is for none, and a nil
	// func for none at all. It gets the policy to keep to, which is nil for a server
	// that the user trusts. It is called once for each connection; if what it returns
	// is an [io.Closer], it is closed with the connection. See package login.
	OAuth func(*mcpjson.Resolved, *outbound.Policy) (auth.OAuthHandler, error)

	// Stderr is where the error stream of a server's program goes, and Trace where
	// all that is said does, as package cassette writes it; nil for nowhere. Both are
	// called once for each connection; what they return is closed with it.
	Stderr func(server string) io.WriteCloser
	Trace  func(server string) io.WriteCloser

	// LogDir, if it is not empty, is a directory for the same as files of the user
	// alone: NAME.stderr.log and NAME.wire.jsonl of each server, with what no file's
	// name can have escaped as in URLs. They are written in parts: see
	// Limits.LogPart and package partlog. Any number of processes may use it. What
	// cannot be written is left out, and Log is told so.
	LogDir string

	// Dial, if it is not nil, connects in place of what definitions say, which may
	// be names alone. Nothing is trusted or traced then.
	Dial func(context.Context, *mcpjson.Server) (mcp.Connection, error)

	// Environ is the environment that programs get their part of; nil means
	// os.Environ.
	Environ func() []string

	Limits Limits
	// Timeouts go before those of the definitions, where they are not zero.
	Timeouts mcpjson.Timeouts

	// Log hears of what goes wrong beside requests; nil discards.
	Log *slog.Logger
}

// Limits bounds the resources that servers may use. A field that is zero means the
// default named in its comment.
type Limits struct {
	Connect  time.Duration // for start, connection and handshake; 10 s
	Request  time.Duration // for a request, without the time in which questions of the server wait for an answer; 30 s
	Question time.Duration // for the answer to a question of the server; 5 min

	PendingRequests      int // concurrent requests to one server; 64
	PendingQuestions     int // questions of one server that wait for hooks; 64
	PendingNotifications int // notifications of one server that wait for hooks; 256

	Message  int   // bytes of a message; 16 MiB
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
	setDefault(&l.Connect, 10*time.Second)
	setDefault(&l.Request, 30*time.Second)
	setDefault(&l.Question, 5*time.Minute)
	setDefault(&l.PendingRequests, 64)
	setDefault(&l.PendingQuestions, 64)
	setDefault(&l.PendingNotifications, 256)
	setDefault(&l.Message, 16<<20)
	setDefault(&l.List, 10_000)
	setDefault(&l.LogPart, 10<<20)
	setDefault(&l.LogParts, 5)
	return l
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// ErrNoServer says that the configuration has no server of a name, ErrDisabled that
// it has one which is switched off, ErrClosed that the Manager is closed.
var (
	ErrNoServer = errors.New("no server of that name")
	ErrDisabled = errors.New("the server is disabled")
	ErrClosed   = errors.New("closed")
)

// A Manager keeps the sessions with the servers of a configuration. Its methods may
// be called concurrently.
type Manager struct {
	opts Options
	log  *slog.Logger

	mu       sync.Mutex
	closed   bool                // guarded by mu
	sessions map[string]*Session // guarded by mu
}

// New returns a manager. It connects to nothing.
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

// Config returns the configuration, which is not to be changed.
func (m *Manager) Config() *mcpjson.Config { return m.opts.Config }

// Session returns the session with a server, the same one each time. It connects
// with its first request. The error is ErrNoServer, ErrDisabled or ErrClosed.
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

// UnknownServerError is [ErrNoServer] with the names that there are.
type UnknownServerError struct {
	Name  string
	Known []string
}

func (e *UnknownServerError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("use mcp server %q: no server is configured", e.Name)
	}
	return fmt.Sprintf("use mcp server %q: %v; there are %q", e.Name, ErrNoServer, e.Known)
}

// Is reports whether target is [ErrNoServer].
func (e *UnknownServerError) Is(target error) bool { return target == ErrNoServer }

// ConnectIO makes a session over a stream that the caller has connected to a
// server. The name must not be one of the configuration. Trust is asked as for a
// definition that is nothing but a name. The stream is closed with the session.
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
			return errors.New("there is a server of that name")
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

// Release gives a session up: the manager forgets it and will not close it. A later
// Session of that name is another. It returns false if there is none.
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

// Close ends all sessions, and returns when their programs are gone.
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

// baseEnv is what of the environment every program gets.
func (m *Manager) baseEnv(inherit bool) []string {
	env := m.opts.Environ()
	if inherit {
		return slices.Clone(env)
	}
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		return !slices.ContainsFunc(mcpjson.BaseEnv, func(name string) bool {
			return len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name
		})
	})
}
