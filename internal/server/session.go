package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// restBeforeEviction is how long a session must be idle before a new one may evict it:
// longer than a model thinks between two calls.
const restBeforeEviction = time.Minute

const methodCancelled = "notifications/cancelled"

var (
	errCancelled = errors.New("the client cancelled the call")
	errDeleted   = errors.New("the client ended the session")
	errIdle      = errors.New("the session was idle for too long")
	errEvicted   = errors.New("the session made room for a new one")
)

// An mcpSession is an MCP session over HTTP. Only the owner that opened it may use it;
// others get the answer for an unknown session.
type mcpSession struct {
	id      string
	owner   string
	version string // of the protocol
	mcp     *mcp.ServerSession
	ended   context.Context // until the session ends
	end     context.CancelCauseFunc
	conn    *conn
	client  tools.Client

	busy  int         // guarded by sessions.mu: requests and calls in flight
	since time.Time   // guarded by sessions.mu: when busy fell to zero
	timer *time.Timer // guarded by sessions.mu: ends the session
}

// sessions are the open sessions over HTTP.
type sessions struct {
	limit int
	idle  time.Duration
	close func(*mcpSession, error) // ends a session that has been removed from live

	mu      sync.Mutex
	live    map[string]*mcpSession // guarded by mu
	opening int                    // guarded by mu: reserved, not open yet
}

// reserve reserves a place for a new session of an owner, and may evict an idle one for
// it. The caller calls release when the new session is open, or failed to open.
func (ss *sessions) reserve(owner string) (release func(), ok bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.live)+ss.opening >= ss.limit && !ss.evictLocked(owner) {
		return nil, false
	}
	ss.opening++
	return func() {
		ss.mu.Lock()
		ss.opening--
		ss.mu.Unlock()
	}, true
}

// evictLocked ends the session that has been idle longest: of the owner itself or, if
// none of those is idle, of an owner with more sessions.
func (ss *sessions) evictLocked(owner string) bool {
	has := make(map[string]int)
	for _, s := range ss.live {
		has[s.owner]++
	}
	var oldest *mcpSession
	for _, s := range ss.live {
		own := s.owner == owner
		if s.busy > 0 || time.Since(s.since) < restBeforeEviction || !own && has[s.owner] <= has[owner] {
			continue
		}
		if oldest == nil || own && oldest.owner != owner || own == (oldest.owner == owner) && s.since.Before(oldest.since) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	ss.removeLocked(oldest, errEvicted)
	return true
}

// add adds a session that the SDK has begun.
func (ss *sessions) add(m *mcp.ServerSession, c *conn, owner, version string) {
	s := &mcpSession{id: m.ID(), owner: owner, version: version, mcp: m, conn: c, since: time.Now()}
	s.ended, s.end = context.WithCancelCause(context.Background())
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s.timer = time.AfterFunc(ss.idle, func() { ss.expire(s) })
	ss.live[s.id] = s
}

func (ss *sessions) expire(s *mcpSession) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.busy == 0 && time.Since(s.since) >= ss.idle {
		ss.removeLocked(s, errIdle)
	}
}

// hold finds a session and keeps it from expiring until release is called.
func (ss *sessions) hold(id string) (s *mcpSession, release func()) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s = ss.live[id]; s == nil {
		return nil, nil
	}
	ss.useLocked(s)
	return s, func() { ss.release(s) }
}

// use keeps a session from expiring until release is called.
func (ss *sessions) use(s *mcpSession) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.useLocked(s)
}

func (ss *sessions) useLocked(s *mcpSession) {
	s.timer.Stop()
	s.busy++
}

func (ss *sessions) release(s *mcpSession) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s.busy--; s.busy == 0 && ss.live[s.id] == s {
		s.since = time.Now()
		s.timer.Reset(ss.idle)
	}
}

// find returns an open session, or nil.
func (ss *sessions) find(id string) *mcpSession {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.live[id]
}

// remove ends a session, if it is open.
func (ss *sessions) remove(id string, cause error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.live[id]; s != nil {
		ss.removeLocked(s, cause)
	}
}

// removeAll ends all sessions.
func (ss *sessions) removeAll(cause error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, s := range ss.live {
		ss.removeLocked(s, cause)
	}
}

func (ss *sessions) removeLocked(s *mcpSession, cause error) {
	if ss.live[s.id] != s {
		return
	}
	delete(ss.live, s.id)
	s.timer.Stop()
	ss.close(s, cause)
}

func (ss *sessions) count() int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.live)
}

// closeSession cancels the calls of a session, ends its streams, and closes it in the
// SDK. It does not wait for that, which takes until the last handler returns.
func (s *Server) closeSession(sess *mcpSession, cause error) {
	s.log.Debug("end session", logkey.MCPSession, sess.id, logkey.Reason, cause)
	s.calls.cancel(func(m mcp.Session) bool { return m == mcp.Session(sess.mcp) }, cause)
	sess.end(cause)
	s.closing.add(1)
	go func() {
		defer s.closing.add(-1)
		_ = sess.mcp.Close() // there is no one to report it to
	}()
}

// holdSession finds the session that a request names. It refuses the request if there is
// no such session, or it belongs to another owner.
func (s *Server) holdSession(w http.ResponseWriter, r *http.Request, id json.RawMessage) (sess *mcpSession, release func(), ok bool) {
	sess, release = s.sessions.hold(r.Header.Get(headerSession))
	if sess != nil && sess.owner == callerIn(r).owner() {
		return sess, release, true
	}
	if sess != nil {
		release()
	}
	s.refuse(w, http.StatusNotFound, id, codeRefused, "Session not found: begin a new one with initialize")
	return nil, nil, false
}

// open adds sessions over HTTP when they begin, and gives tools what is remembered of
// the client of a session.
func (s *Server) open(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		cl := callIn(ctx)
		if cl != nil && cl.session != nil {
			ctx = tools.WithClient(ctx, &cl.session.client)
		}
		res, err := next(ctx, method, req)
		if begun, ok := res.(*mcp.InitializeResult); ok && err == nil && cl != nil && cl.conn != nil && cl.session == nil {
			if sess, ok := req.GetSession().(*mcp.ServerSession); ok {
				s.sessions.add(sess, cl.conn, cl.caller.owner(), begun.ProtocolVersion)
			}
		}
		return res, err
	}
}
