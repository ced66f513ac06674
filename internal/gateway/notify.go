package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

const (
	// clientWait bounds the wait for the sole client to initialize, for servers that
	// request input before. Clients initialize at once.
	clientWait = 5 * time.Second
	// notifyTimeout bounds a notification that no request waits for.
	notifyTimeout = 10 * time.Second
	// maxURLElicitations bounds the URL elicitations that are not complete; the oldest
	// are dropped.
	maxURLElicitations = 1000
)

// soleClient is the only client of a gateway over standard input and output.
type soleClient struct {
	once    sync.Once
	known   chan struct{}
	session *mcp.ServerSession // set before known is closed; nil if the client is modern
}

// set stores the client's session. Only the first call has an effect.
func (c *soleClient) set(session *mcp.ServerSession) {
	c.once.Do(func() {
		c.session = session
		close(c.known)
	})
}

// wait returns the client's session once it has initialized; nil if the client is
// modern, since nothing can be requested from it outside of its own requests.
func (c *soleClient) wait(ctx context.Context) (*mcp.ServerSession, error) {
	timer := time.NewTimer(clientWait)
	defer timer.Stop()
	select {
	case <-c.known:
		return c.session, nil
	case <-timer.C:
		return nil, errors.New("the client has not initialized")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// current returns the session of a legacy client that has initialized, else nil.
func (c *soleClient) current() *mcp.ServerSession {
	select {
	case <-c.known:
		return c.session
	default:
		return nil
	}
}

// forwardLog forwards a server's log message to the client whose call is in progress
// there, or to the sole client. No other client gets it.
func (g *Gateway) forwardLog(ctx context.Context, server string, m *mcp.LoggingMessageParams) {
	named := *m
	named.Meta = nil
	named.Logger = server
	if m.Logger != "" {
		named.Logger += "/" + m.Logger
	}
	if c, err := g.serializer.callFor(ctx, server, false); err == nil {
		if waiting, session, _ := c.waiter(); waiting != nil && session != nil {
			_ = session.Log(waiting, &named) // the client may be gone
		}
		return
	} else if !errors.Is(err, errNoCall) {
		return
	}
	if session := g.sole.current(); session != nil {
		ctx, cancel := context.WithTimeout(g.ctx, notifyTimeout)
		defer cancel()
		_ = session.Log(ctx, &named)
	}
}

// logLevels are the levels of log messages, the most verbose first.
var logLevels = []mcp.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// lowerLevel lowers the level that is requested from servers to the most verbose of any
// client. Each client still gets only messages of its own level: the SDK filters them.
func (g *Gateway) lowerLevel(level mcp.LoggingLevel) {
	at := slices.Index(logLevels, level)
	g.mu.Lock()
	defer g.mu.Unlock()
	if at >= 0 && (g.level == "" || at < slices.Index(logLevels, g.level)) {
		g.level = level
	}
}

// sendLevel sets the logging level of a legacy server. A failure does not fail the
// call.
func (g *Gateway) sendLevel(ctx context.Context, s *mcpkit.Session) {
	g.mu.Lock()
	level := g.level
	sent := g.sentLevels[s.Name()] == level
	g.mu.Unlock()
	if level == "" || sent {
		return
	}
	info, err := s.Initialize(ctx)
	if err != nil || revision.IsModern(info.ProtocolVersion) || info.Capabilities == nil || info.Capabilities.Logging == nil {
		return
	}
	if err := s.SetLoggingLevel(ctx, level); err != nil {
		g.log.Debug("set the logging level of a server", logkey.Server, s.Name(), logkey.Error, err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sentLevels[s.Name()] = level
}

// urlElicitations maps URL elicitations, by server and id, to the sessions that
// notifications of their completion go to.
type urlElicitations struct {
	mu       sync.Mutex
	sessions map[string]*mcp.ServerSession // guarded by mu
	order    []string                      // guarded by mu: oldest first
}

func (u *urlElicitations) add(server, id string, session *mcp.ServerSession) {
	key := server + " " + id
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sessions == nil {
		u.sessions = make(map[string]*mcp.ServerSession)
	}
	if u.sessions[key] == nil {
		if len(u.order) == maxURLElicitations {
			delete(u.sessions, u.order[0])
			u.order = u.order[1:]
		}
		u.order = append(u.order, key)
	}
	u.sessions[key] = session
}

// complete notifies the client of an elicitation, once, that it is complete.
func (u *urlElicitations) complete(ctx context.Context, server, id string) {
	key := server + " " + id
	u.mu.Lock()
	session := u.sessions[key]
	delete(u.sessions, key)
	u.order = slices.DeleteFunc(u.order, func(one string) bool { return one == key })
	u.mu.Unlock()
	if session != nil {
		ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		_ = session.NotifyElicitationComplete(ctx, &mcp.ElicitationCompleteParams{ElicitationID: id})
	}
}
