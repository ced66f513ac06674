package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

const (
	// meetWait is what a server that asks before the client has said who it is
	// waits for that. Clients do so at once.
	meetWait = 5 * time.Second
	// tellWait bounds telling a client what no request of its waits for.
	tellWait = 10 * time.Second
	// maxPages bounds the pages that clients were asked to open and that may still
	// be done; the oldest are forgotten.
	maxPages = 1000
)

// only is the one client of a gateway over standard input and output.
type only struct {
	once    sync.Once
	met     chan struct{}
	session *mcp.ServerSession // set before met is closed; nil if the client is a modern one
}

// is says who the client is; the first time counts.
func (o *only) is(session *mcp.ServerSession) {
	o.once.Do(func() {
		o.session = session
		close(o.met)
	})
}

// meet returns the client when it has said who it is; nil if it is a modern one,
// which can be asked nothing outside of its requests.
func (o *only) meet(ctx context.Context) (*mcp.ServerSession, error) {
	timer := time.NewTimer(meetWait)
	defer timer.Stop()
	select {
	case <-o.met:
		return o.session, nil
	case <-timer.C:
		return nil, errors.New("the client has not said who it is")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// known is the client if it has said who it is and is not a modern one; else nil.
func (o *only) known() *mcp.ServerSession {
	select {
	case <-o.met:
		return o.session
	default:
		return nil
	}
}

// logged passes a server's log message on to the client whose call is under way
// there, or to the only client that there is. It is for nobody else.
func (g *Gateway) logged(ctx context.Context, server string, m *mcp.LoggingMessageParams) {
	named := *m
	named.Meta = nil
	named.Logger = server
	if m.Logger != "" {
		named.Logger += "/" + m.Logger
	}
	if c, err := g.lines.whose(ctx, server, false); err == nil {
		if waiting, session, _ := c.attended(); waiting != nil {
			_ = session.Log(waiting, &named) // a client that is gone does not miss it
		}
		return
	} else if !errors.Is(err, errNobody) {
		return
	}
	if session := g.only.known(); session != nil {
		ctx, cancel := context.WithTimeout(g.ctx, tellWait)
		defer cancel()
		_ = session.Log(ctx, &named)
	}
}

// levels are the levels of log messages, the most verbose first.
var levels = []mcp.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// hear has servers tell as much as the client wants that wants most. Others get what
// they asked for all the same: each message is held against the level of its client.
func (g *Gateway) hear(level mcp.LoggingLevel) {
	at := slices.Index(levels, level)
	g.mu.Lock()
	defer g.mu.Unlock()
	if at >= 0 && (g.level == "" || at < slices.Index(levels, g.level)) {
		g.level = level
	}
}

// verbose tells a server of the older era which messages to send. It matters little
// enough that the call goes on without it.
func (g *Gateway) verbose(ctx context.Context, s *mcpkit.Session) {
	g.mu.Lock()
	level := g.level
	told := g.told[s.Name()] == level
	g.mu.Unlock()
	if level == "" || told {
		return
	}
	info, err := s.Initialize(ctx)
	if err != nil || revision.IsModern(info.ProtocolVersion) || info.Capabilities == nil || info.Capabilities.Logging == nil {
		return
	}
	if err := s.SetLoggingLevel(ctx, level); err != nil {
		g.log.Debug("set the logging level of a server", "server", s.Name(), "err", err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told[s.Name()] = level
}

// pages are those that clients were asked to open, by server and id: when a server
// says that one is done, its client is told.
type pages struct {
	mu    sync.Mutex
	of    map[string]*mcp.ServerSession // guarded by mu
	order []string                      // guarded by mu: oldest first
}

func (p *pages) open(server, id string, session *mcp.ServerSession) {
	key := server + " " + id
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = make(map[string]*mcp.ServerSession)
	}
	if p.of[key] == nil {
		if len(p.order) == maxPages {
			delete(p.of, p.order[0])
			p.order = p.order[1:]
		}
		p.order = append(p.order, key)
	}
	p.of[key] = session
}

// done tells the client of a page that it is done, once.
func (p *pages) done(ctx context.Context, server, id string) {
	key := server + " " + id
	p.mu.Lock()
	session := p.of[key]
	delete(p.of, key)
	p.order = slices.DeleteFunc(p.order, func(one string) bool { return one == key })
	p.mu.Unlock()
	if session != nil {
		ctx, cancel := context.WithTimeout(ctx, tellWait)
		defer cancel()
		_ = session.NotifyElicitationComplete(ctx, &mcp.ElicitationCompleteParams{ElicitationID: id})
	}
}
