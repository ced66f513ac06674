package codemode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// A Pool opens the servers of owners when they are first used, and closes them when they
// are not used any more. Its methods may be called concurrently.
type Pool struct {
	o    PoolOptions
	log  *slog.Logger
	full rate.Sometimes // for the warning that it is full

	mu      sync.Mutex
	closed  bool                 // guarded by mu
	open    map[string]*opened   // guarded by mu: by owner
	stale   map[*opened]struct{} // guarded by mu: in use, and closed with their last use
	closing sync.WaitGroup       // of servers that are being opened or closed
}

// PoolOptions configure a Pool.
type PoolOptions struct {
	// Names returns the names of an owner's servers, as configured. It opens nothing.
	Names func(owner string) []string
	// Open opens the servers of an owner without waiting for them. close ends them and
	// waits for that.
	Open func(owner string) (s Servers, close func() error, err error)
	// Max bounds the owners whose servers are open; 0 means 16. Each server may be a
	// process of 100 MB.
	Max int
	// Idle is the time without calls after which an owner's servers are closed; 0 means
	// never.
	Idle time.Duration
	Log  *slog.Logger // nil discards
}

// opened are the servers of one owner.
type opened struct {
	ready   chan struct{} // closed when the fields below are set
	servers Servers
	close   func() error
	err     error

	uses  int         // guarded by Pool.mu
	since time.Time   // guarded by Pool.mu: when uses fell to zero
	timer *time.Timer // guarded by Pool.mu; nil: none
}

// NewPool returns a pool. It opens nothing.
func NewPool(o PoolOptions) *Pool {
	if o.Max == 0 {
		o.Max = 16
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Pool{o: o, log: o.Log, full: rate.Sometimes{Interval: time.Minute}, open: make(map[string]*opened), stale: make(map[*opened]struct{})}
}

// Of returns the servers of an owner, which each use opens if necessary.
func (p *Pool) Of(owner string) Servers { return pooled{p, owner} }

// errPoolClosed is the error of a call that comes after Close.
var errPoolClosed = errors.New("the server is stopping")

// use returns the open servers of an owner. The caller calls release when it no longer
// uses them.
func (p *Pool) use(ctx context.Context, owner string) (s Servers, release func(), err error) {
	one, mine, victim, err := p.reserve(owner)
	if err != nil {
		return nil, nil, err
	}
	if mine {
		go func() { // Close waits for it; the caller waits no longer than ctx
			defer p.closing.Done()
			p.end(victim) // first: its place is the new one's
			one.servers, one.close, one.err = p.o.Open(owner)
			if one.err != nil {
				p.forget(owner, one)
			}
			close(one.ready)
		}()
	}
	select {
	case <-one.ready:
	case <-ctx.Done():
		p.release(owner, one)
		return nil, nil, context.Cause(ctx)
	}
	if one.err != nil {
		p.release(owner, one)
		return nil, nil, one.err
	}
	return one.servers, func() { p.release(owner, one) }, nil
}

// reserve counts a use of an owner's servers. mine reports that the caller has to open
// them, after it has ended victim, if that is not nil, and to call closing.Done then.
func (p *Pool) reserve(owner string) (one *opened, mine bool, victim *opened, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, nil, errPoolClosed
	}
	if one = p.open[owner]; one == nil {
		if len(p.open) >= p.o.Max {
			if victim = p.evictLocked(); victim == nil {
				p.full.Do(func() {
					p.log.Warn("all places for the MCP servers of owners are in use; raise --tools-max-owners", logkey.Count, p.o.Max)
				})
				return nil, false, nil, &Error{Code: Unavailable, Message: fmt.Sprintf("the servers of %d other users are in use: try again in a moment", p.o.Max)}
			}
		}
		one, mine = &opened{ready: make(chan struct{})}, true
		p.open[owner] = one
		p.closing.Add(1)
	}
	one.uses++
	if one.timer != nil {
		one.timer.Stop()
	}
	return one, mine, victim, nil
}

// evictLocked removes the servers that have been idle longest; nil if all are in use. The
// caller ends them.
func (p *Pool) evictLocked() *opened {
	oldest := ""
	var victim *opened
	for owner, one := range p.open {
		if one.uses == 0 && (victim == nil || one.since.Before(victim.since)) {
			oldest, victim = owner, one
		}
	}
	if victim != nil {
		p.removeLocked(oldest, victim)
	}
	return victim
}

// removeLocked removes servers from those that are open. The caller ends them.
func (p *Pool) removeLocked(owner string, one *opened) {
	delete(p.open, owner)
	p.closing.Add(1)
	if one.timer != nil {
		one.timer.Stop()
	}
}

// end ends servers that have been removed. It does nothing for nil.
func (p *Pool) end(one *opened) {
	if one == nil {
		return
	}
	defer p.closing.Done()
	<-one.ready
	if one.err != nil {
		return
	}
	if err := one.close(); err != nil {
		p.log.Warn("close MCP servers", logkey.Error, err)
	}
}

// forget removes servers that could not be opened.
func (p *Pool) forget(owner string, one *opened) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[owner] == one {
		delete(p.open, owner)
	}
}

// release ends a use.
func (p *Pool) release(owner string, one *opened) {
	p.mu.Lock()
	one.uses--
	one.since = time.Now()
	var ended *opened
	if one.uses == 0 {
		_, stale := p.stale[one]
		switch {
		case stale:
			delete(p.stale, one)
			p.closing.Add(1)
			ended = one
		case p.open[owner] != one || p.o.Idle == 0:
		case one.timer == nil:
			one.timer = time.AfterFunc(p.o.Idle, func() { p.expire(owner, one) })
		default:
			one.timer.Reset(p.o.Idle)
		}
	}
	p.mu.Unlock()
	if ended != nil {
		go p.end(ended) // Close waits for it
	}
}

// expire ends servers that have been idle for long enough.
func (p *Pool) expire(owner string, one *opened) {
	p.mu.Lock()
	idle := p.open[owner] == one && one.uses == 0 && time.Since(one.since) >= p.o.Idle
	if idle {
		p.removeLocked(owner, one)
	}
	p.mu.Unlock()
	if idle {
		p.end(one)
	}
}

// Renew has later calls of an owner open the servers anew, as after a change of their
// configuration. Calls in progress end with the earlier ones, which are then closed. Renew
// does not wait for that: a program may take seconds to end.
func (p *Pool) Renew(owner string) {
	p.mu.Lock()
	one := p.open[owner]
	var idle *opened
	switch {
	case one == nil:
	case one.uses == 0:
		p.removeLocked(owner, one)
		idle = one
	default:
		delete(p.open, owner)
		p.stale[one] = struct{}{}
	}
	p.mu.Unlock()
	if idle != nil {
		go p.end(idle) // Close waits for it
	}
}

// Close closes all servers and waits for them. Calls in progress end with an error, and
// later ones fail.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	var all []*opened
	for owner, one := range p.open {
		p.removeLocked(owner, one)
		all = append(all, one)
	}
	for one := range p.stale {
		delete(p.stale, one)
		p.closing.Add(1)
		all = append(all, one)
	}
	p.mu.Unlock()
	for _, one := range all {
		go p.end(one)
	}
	p.closing.Wait()
}

// pooled are the servers of an owner of a pool.
type pooled struct {
	p     *Pool
	owner string
}

func (p pooled) Names() []string { return p.p.o.Names(p.owner) }

func (p pooled) Tools(ctx context.Context, server string) []Tool {
	servers, release, err := p.p.use(ctx, p.owner)
	if err != nil {
		return nil
	}
	defer release()
	return servers.Tools(ctx, server)
}

func (p pooled) Unavailable(ctx context.Context, server, tool string) *Error {
	servers, release, err := p.p.use(ctx, p.owner)
	if err != nil {
		return asError(ctx, err)
	}
	defer release()
	return servers.Unavailable(ctx, server, tool)
}

func (p pooled) Call(ctx context.Context, t Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	servers, release, err := p.p.use(ctx, p.owner)
	if err != nil {
		return nil, err
	}
	defer release()
	return servers.Call(ctx, t, arguments)
}
