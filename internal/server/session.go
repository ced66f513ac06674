package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
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

// An mcpSession is an MCP session over HTTP. Only the account that opened it may use it; others
// get the answer for an unknown session. So a token without the scope use can cancel no call,
// answer no question and take no stream of those with it.
type mcpSession struct {
	id      string
	account account
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
	each  int // of one owner; 0: no limit
	idle  time.Duration
	close func(*mcpSession, error) // ends a session that has been removed from live

	mu      sync.Mutex
	live    map[string]*mcpSession // guarded by mu
	opening map[account]int        // guarded by mu: reserved and not open yet
}

// reserve reserves a place for a new session of an account, and may evict an idle one for
// it, or says which limit is reached. The caller calls release when the new session is
// open, or failed to open.
func (ss *sessions) reserve(p account) (release func(), exceeded excess) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	mine, owners, all := 0, make(map[string]int), len(ss.live)
	count := func(of account, n int) {
		owners[of.owner] += n
		if of == p {
			mine += n
		}
	}
	for _, s := range ss.live {
		count(s.account, 1)
	}
	for of, n := range ss.opening {
		count(of, n)
		all += n
	}
	own := func(s *mcpSession) bool { return s.account == p && s.idleLongEnough() }
	more := func(s *mcpSession) int { return owners[s.account.owner] - owners[p.owner] }
	switch {
	case ss.each > 0 && p.reader && mine >= int(half(int64(ss.each))):
		if !ss.evictLocked(own) {
			return nil, ownerExcess
		}
	case ss.each > 0 && owners[p.owner] >= ss.each:
		if !ss.evictLocked(p.evictable(func(s *mcpSession) bool { return s.account.owner == p.owner })) && !ss.evictLocked(own) {
			return nil, ownerExcess
		}
	case all < ss.limit:
	// Sessions of the owner's readers make room first, then the account's own. One of an owner that
	// would still have more sessions than this one makes room even if it was in use just now: else
	// the owner that begins sessions fastest has all of them. Readers evict none of their owner's
	// others, but those of other owners: else few owners would keep the readers of all others out.
	case ss.evictLocked(p.evictable(func(s *mcpSession) bool { return s.account.owner == p.owner || more(s) > 1 })):
	case ss.evictLocked(own):
	case ss.evictLocked(func(s *mcpSession) bool { return more(s) > 0 && s.idleLongEnough() }):
	case ss.evictLocked(func(s *mcpSession) bool { return more(s) > 1 }):
	default:
		return nil, totalExcess
	}
	ss.opening[p]++
	return func() {
		ss.mu.Lock()
		defer ss.mu.Unlock()
		if ss.opening[p]--; ss.opening[p] == 0 {
			delete(ss.opening, p)
		}
	}, withinLimits
}

// evictable returns which of the sessions that match are evicted for an account although they were in
// use just now: those of readers, for others.
func (p account) evictable(match func(*mcpSession) bool) func(*mcpSession) bool {
	return func(s *mcpSession) bool { return !p.reader && s.account.reader && match(s) }
}

// idleLongEnough reports whether the session has been idle for so long that its client is probably
// not about to use it.
func (sess *mcpSession) idleLongEnough() bool { return time.Since(sess.since) >= restBeforeEviction }

// evictLocked ends the session that has been idle longest of those that match, or in its place one of its
// owner's readers.
func (ss *sessions) evictLocked(match func(*mcpSession) bool) bool {
	victim := ss.idlestLocked(match)
	if victim == nil {
		return false
	}
	readers := account{victim.account.owner, true}
	if first := ss.idlestLocked(func(s *mcpSession) bool { return s.account == readers }); first != nil {
		victim = first
	}
	ss.removeLocked(victim, errEvicted)
	return true
}

// idlestLocked returns the session that has been idle longest of those that match; nil if all are in use.
func (ss *sessions) idlestLocked(match func(*mcpSession) bool) (idlest *mcpSession) {
	for _, s := range ss.live {
		if s.busy == 0 && match(s) && (idlest == nil || s.since.Before(idlest.since)) {
			idlest = s
		}
	}
	return idlest
}

// add adds a session that the SDK has begun.
func (ss *sessions) add(m *mcp.ServerSession, c *conn, by *caller, version string) {
	s := &mcpSession{id: m.ID(), account: by.account(), version: version, mcp: m, conn: c, since: time.Now()}
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

// acquire finds a session of an account and keeps it from expiring until release is called.
// foreign reports that the session is another account's.
func (ss *sessions) acquire(id string, p account) (s *mcpSession, release func(), foreign bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s = ss.live[id]; s == nil || s.account != p {
		return nil, nil, s != nil
	}
	ss.useLocked(s)
	return s, func() { ss.release(s) }, false
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
// no such session, or it belongs to another account.
func (s *Server) holdSession(w http.ResponseWriter, r *http.Request, id json.RawMessage) (sess *mcpSession, release func(), ok bool) {
	sess, release, foreign := s.sessions.acquire(r.Header.Get(headerSession), callerIn(r).account())
	if sess != nil {
		return sess, release, true
	}
	reason := unknownSession
	if foreign {
		reason = "foreign_session"
	}
	s.refuseEnded(w, r, id, reason)
	return nil, nil, false
}

// trackSessions adds sessions over HTTP when they begin, and gives tools what is remembered of
// the client of a session.
func (s *Server) trackSessions(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		cl := callIn(ctx)
		if cl != nil && cl.session != nil {
			ctx = tools.WithClient(ctx, &cl.session.client)
		}
		res, err := next(ctx, method, req)
		if begun, ok := res.(*mcp.InitializeResult); ok && err == nil && cl != nil && cl.conn != nil && cl.session == nil {
			if sess, ok := req.GetSession().(*mcp.ServerSession); ok {
				s.sessions.add(sess, cl.conn, cl.caller, begun.ProtocolVersion)
			}
		}
		return res, err
	}
}

const (
	// maxHandshake bounds the parameters of initialize that the SDK keeps, in bytes: what clients say of
	// themselves takes a tenth of it.
	maxHandshake = 16 << 10
	// maxLevel bounds the name of a level of logging, in bytes: longer than any.
	maxLevel = 32
)

// boundState bounds what the SDK keeps of a client for as long as its session lasts: the bodies that it
// came in count against no limit any more.
func (s *Server) boundState(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch r := req.(type) {
		case *mcp.ServerRequest[*mcp.InitializeParams]:
			if r.Params == nil {
				break
			}
			r.Params.Meta = nil // nothing reads it, nor the experimental capabilities and icons, which may be large
			if r.Params.Capabilities != nil {
				r.Params.Capabilities.Experimental = nil
			}
			if r.Params.ClientInfo != nil {
				r.Params.ClientInfo.Icons = nil
			}
			if b, err := json.Marshal(r.Params); err != nil || len(b) > maxHandshake {
				if cl := callIn(ctx); cl != nil { // over HTTP
					s.auditRefusalOf(cl.caller, http.MethodPost, requestLimit)
				}
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("Invalid parameters: those of initialize take %d bytes, and at most %d are kept: shorten clientInfo and capabilities", len(b), maxHandshake)}
			}
		//lint:ignore SA1019 clients of the revisions before 2026-07-28 set it
		case *mcp.ServerRequest[*mcp.SetLoggingLevelParams]:
			if r.Params != nil && len(r.Params.Level) > maxLevel {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid parameters: there is no such level: use debug, info, notice, warning, error, critical, alert or emergency"}
			}
		}
		return next(ctx, method, req)
	}
}
