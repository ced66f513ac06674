package codemode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	runs    map[string]int       // guarded by mu: programs that use the servers of an owner
	stale   map[*opened]struct{} // guarded by mu: in use, and ended with their last use
	ending  map[string]int       // guarded by mu: servers that have not ended yet, by owner
	changed chan struct{}        // guarded by mu: closed when a place may have become free
	refused map[string]time.Time // guarded by mu: the last calls that found no place, by owner
	closing sync.WaitGroup       // of servers that are being opened or ended
}

// PoolOptions configure a Pool.
type PoolOptions struct {
	// Names returns the names of an owner's servers, as configured. It opens nothing.
	Names func(owner string) []string
	// Open opens the servers of an owner without waiting for them. close ends them and
	// waits for that.
	Open func(owner string) (s Servers, close func() error, err error)
	// Max bounds the owners whose servers are open; 0 means 16. Each server may be a
	// process of 100 MB. While the servers of as many owners are ending, none are opened: open
	// and ending ones are together those of at most twice as many owners.
	Max int
	// Idle is the time without calls and programs after which an owner's servers are closed;
	// 0 means never.
	Idle time.Duration
	Log  *slog.Logger // nil discards
}

// opened are the servers of one owner.
type opened struct {
	owner   string
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
	return &Pool{
		o: o, log: o.Log, full: rate.Sometimes{Interval: time.Minute}, open: make(map[string]*opened),
		runs: make(map[string]int), stale: make(map[*opened]struct{}), ending: make(map[string]int), changed: make(chan struct{}), refused: make(map[string]time.Time),
	}
}

// Of returns the servers of an owner, which each use opens if necessary.
func (p *Pool) Of(owner string) Servers { return pooled{p, owner} }

// errPoolClosed is the error of a call that comes after Close.
var errPoolClosed = errors.New("the server is stopping")

const (
	// placeWait is how long a call waits for a place, or for the end of its owner's earlier
	// servers. A program that does not end is killed within about that time.
	placeWait = 6 * time.Second
	// runRest is the time without calls after which the servers of a program that still runs
	// may make room for others.
	runRest = 30 * time.Second
)

// use returns the open servers of an owner. The caller calls release when it no longer
// uses them.
func (p *Pool) use(ctx context.Context, owner string) (s Servers, release func(), err error) {
	one, mine, err := p.await(ctx, owner)
	if err != nil {
		return nil, nil, err
	}
	if mine {
		go func() { // Close waits for it; the caller waits no longer than ctx
			defer p.closing.Done()
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

// refusedFor is how long calls of an owner do not wait after one that found no place: a request of
// a program, such as one that describes tools of several servers, may use the servers several times.
const refusedFor = 2 * time.Second

// await reserves servers, and waits up to placeWait if there is no place for them.
func (p *Pool) await(ctx context.Context, owner string) (_ *opened, mine bool, _ error) {
	var late <-chan time.Time
	for {
		one, mine, changed, err := p.reserve(owner)
		if one != nil || changed == nil {
			return one, mine, err
		}
		if late == nil {
			if p.refusedLately(owner) {
				return nil, false, err
			}
			timer := time.NewTimer(placeWait)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-changed:
		case <-late:
			if one, mine, _, err = p.reserve(owner); one == nil { // servers of others may have rested since
				p.refuse(owner)
			}
			return one, mine, err
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// refuse notes that a call of an owner found no place.
func (p *Pool) refuse(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.refused, func(_ string, at time.Time) bool { return time.Since(at) > refusedFor })
	p.refused[owner] = time.Now()
}

// refusedLately reports whether a call of an owner has found no place just now.
func (p *Pool) refusedLately(owner string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.refused[owner]) <= refusedFor
}

// reserve counts a use of an owner's servers. mine reports that the caller has to open
// them, and to call closing.Done then. If changed is not nil, there is no place, and err says
// why; changed is closed when there may be one.
func (p *Pool) reserve(owner string) (one *opened, mine bool, changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, nil, errPoolClosed
	}
	if one = p.open[owner]; one == nil {
		if err := p.makeRoomLocked(owner); err != nil {
			return nil, false, p.changed, err
		}
		one, mine = &opened{owner: owner, ready: make(chan struct{})}, true
		p.open[owner] = one
		p.closing.Add(1)
	}
	one.uses++
	if one.timer != nil {
		one.timer.Stop()
	}
	return one, mine, nil, nil
}

// makeRoomLocked makes room for the servers of an owner, or says why there is none: the
// owner's earlier ones have not ended, or all places are in use. An owner whose servers do
// not end delays others only if those of PoolOptions.Max owners do not.
func (p *Pool) makeRoomLocked(owner string) error {
	switch {
	case p.ending[owner] > 0:
		return &Error{Code: Unavailable, Message: "your MCP servers were closed, and one of their programs has not ended yet: try again in a moment"}
	case len(p.ending) >= p.o.Max:
		// Also with a free place, which idle servers have left that do not end: otherwise their
		// number would grow with each owner.
		p.full.Do(func() {
			p.log.Warn("the MCP servers of as many owners as there are places do not end", logkey.Count, len(p.ending))
		})
		return &Error{Code: Unavailable, Message: fmt.Sprintf("the servers of %d other users have not ended yet: try again in a moment", len(p.ending))}
	case len(p.open) < p.o.Max:
		return nil
	}
	if victim := p.victimLocked(); victim != nil {
		p.endLocked(victim)
		return nil
	}
	p.full.Do(func() {
		p.log.Warn("all places for the MCP servers of owners are in use; raise --tools-max-owners", logkey.Count, p.o.Max)
	})
	return &Error{Code: Unavailable, Message: fmt.Sprintf("the servers of %d other users are in use: try again in a moment", p.o.Max)}
}

// victimLocked returns the servers that have been idle longest, those without a program
// first; nil if all are in use.
func (p *Pool) victimLocked() (victim *opened) {
	for _, one := range p.open {
		inRun := p.runs[one.owner] > 0
		switch {
		case one.uses > 0 || inRun && time.Since(one.since) < runRest:
		case victim == nil, inRun == (p.runs[victim.owner] > 0) && one.since.Before(victim.since), !inRun && p.runs[victim.owner] > 0:
			victim = one
		}
	}
	return victim
}

// endLocked removes open servers, and ends them without waiting for that; Close waits.
func (p *Pool) endLocked(one *opened) {
	if p.open[one.owner] == one {
		delete(p.open, one.owner)
	}
	delete(p.stale, one)
	if one.timer != nil {
		one.timer.Stop()
	}
	p.ending[one.owner]++
	p.closing.Add(1)
	go p.end(one)
	p.notifyLocked() // its place is free, unless as many others are ending
}

// end ends servers that endLocked has removed.
func (p *Pool) end(one *opened) {
	defer p.closing.Done()
	<-one.ready
	if one.err == nil {
		if err := one.close(); err != nil {
			p.log.Warn("close MCP servers", logkey.Error, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending[one.owner]--; p.ending[one.owner] == 0 {
		delete(p.ending, one.owner)
	}
	p.notifyLocked()
}

// notifyLocked has those that wait for a place look again.
func (p *Pool) notifyLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// hold keeps the servers of an owner open between the calls of a program, as far as others
// leave room, until release is called.
func (p *Pool) hold(owner string) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[owner]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.runs[owner]--; p.runs[owner] > 0 {
			return
		}
		delete(p.runs, owner)
		if one := p.open[owner]; one != nil && one.uses == 0 {
			p.restLocked(one)
		}
		p.notifyLocked()
	}
}

// restLocked begins the time after which unused servers are ended.
func (p *Pool) restLocked(one *opened) {
	switch {
	case p.o.Idle == 0:
	case one.timer == nil:
		one.timer = time.AfterFunc(p.o.Idle, func() { p.expire(one) })
	default:
		one.timer.Reset(p.o.Idle)
	}
}

// forget removes servers that could not be opened.
func (p *Pool) forget(owner string, one *opened) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[owner] == one {
		delete(p.open, owner)
		p.notifyLocked()
	}
}

// release ends a use.
func (p *Pool) release(owner string, one *opened) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one.uses--
	one.since = time.Now()
	if one.uses > 0 {
		return
	}
	if _, stale := p.stale[one]; stale {
		p.endLocked(one)
	} else if p.open[owner] == one {
		p.restLocked(one)
	}
	p.notifyLocked()
}

// expire ends servers that have been idle for long enough.
func (p *Pool) expire(one *opened) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[one.owner] == one && one.uses == 0 && p.runs[one.owner] == 0 && time.Since(one.since) >= p.o.Idle {
		p.endLocked(one)
	}
}

// Renew has later calls of an owner open the servers anew, as after a change of their
// configuration. Calls in progress end with the earlier ones, which are then closed. Renew
// does not wait for that: a program may take seconds to end.
func (p *Pool) Renew(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch one := p.open[owner]; {
	case one == nil:
	case one.uses == 0:
		p.endLocked(one)
	default:
		delete(p.open, owner)
		p.stale[one] = struct{}{}
		p.notifyLocked()
	}
}

// Close closes all servers and waits for them. Calls in progress end with an error, and
// later ones fail.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for _, one := range p.open {
		p.endLocked(one)
	}
	for one := range p.stale {
		p.endLocked(one)
	}
	p.notifyLocked()
	p.mu.Unlock()
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

func (p pooled) Withheld(ctx context.Context, server string) []string {
	servers, release, err := p.p.use(ctx, p.owner)
	if err != nil {
		return nil
	}
	defer release()
	return servers.Withheld(ctx, server)
}

func (p pooled) Hold() (release func()) { return p.p.hold(p.owner) }

func (p pooled) Call(ctx context.Context, t Tool, arguments json.RawMessage) (*mcp.CallToolResult, error) {
	servers, release, err := p.p.use(ctx, p.owner)
	if err != nil {
		return nil, err
	}
	defer release()
	return servers.Call(ctx, t, arguments)
}
