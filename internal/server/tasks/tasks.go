// Package tasks is the tasks extension of MCP, io.modelcontextprotocol/tasks: a
// client that declares it gets, in place of the answer of a long tool call, a
// task that it asks about until the answer is there.
//
// The life of a task: a tools/call of a tool that has a [Policy] begins to run. If
// its answer is there at once, the client gets it, and there was no task. If it is
// not, the client gets the task, which is then working; it may ask for input
// and wait for it; and it ends completed with the result of the call, failed with
// its error, or cancelled. It can be asked about until its time is over, and by
// nobody but the one who made it. What runs is bounded, and what is kept.
//
// The package knows no tools and no boxes: it is given what does a call.
package tasks

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// Extension is the name under which clients and servers declare it.
const Extension = "io.modelcontextprotocol/tasks"

// A Policy says how the calls of a tool become tasks.
type Policy struct {
	// Required refuses clients that do not declare the extension. Otherwise
	// they are answered as if there were no tasks.
	Required bool
	// AskFirst has the tool ask for input before there is a task: a call
	// without input is an ordinary one.
	AskFirst bool
}

// Limits bounds what tasks may use. Zero fields mean their defaults.
type Limits struct {
	Running     int           // tasks that run at once, of one owner; 32, which is more than a box queues
	Kept        int           // tasks of one owner, until their time is over; 256
	All         int           // tasks of all owners; 4096
	Result      int           // bytes of one result; 16 MiB, above what a call with images says
	ResultsKept int           // bytes of the results of one owner; 32 MiB
	ResultsAll  int           // bytes of all results; 128 MiB
	TTL         time.Duration // from the beginning of a task until it is forgotten; 1 h, far above any time-out of a call
	Poll        time.Duration // between two looks of a client; 1 s
	Patience    time.Duration // that a call waits for its answer before it becomes a task; 500 ms
}

func (l Limits) withDefaults() Limits {
	def(&l.Running, 32)
	def(&l.Kept, 256)
	def(&l.All, 4096)
	def(&l.Result, 16<<20)
	def(&l.ResultsKept, 32<<20)
	def(&l.ResultsAll, 128<<20)
	def(&l.TTL, time.Hour)
	def(&l.Poll, time.Second)
	def(&l.Patience, 500*time.Millisecond)
	return l
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Options configures [New].
type Options struct {
	Policies map[string]Policy // by the name of the tool; the calls of others are never tasks
	// Call does a tools/call that has no session, and returns when ctx ends
	// at the latest.
	Call   mcp.MethodHandler
	Limits Limits
	Log    *slog.Logger // nil discards
}

// Tasks are the tasks of a server. Its methods may be called concurrently.
type Tasks struct {
	opts   Options
	limits Limits
	server string // names this process in the ids of its tasks

	running sync.WaitGroup

	mu     sync.Mutex
	closed bool             // guarded by mu
	tasks  map[string]*task // guarded by mu, by id
	owners map[string]*uses // guarded by mu; nobody without a task has an entry
	bytes  int              // guarded by mu: of all results
}

// uses is what one owner has.
type uses struct{ tasks, running, bytes int }

var (
	errCancelled = errors.New("the client cancelled the task")
	errExpired   = errors.New("the time of the task is over")
	errClosed    = errors.New("the server is shutting down")
	errBusy      = errors.New("the tool is busy; try again later")
	errGone      = errors.New("the client is gone")
)

// New returns a server's tasks, of which there are none yet.
func New(opts Options) *Tasks {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Tasks{
		opts: opts, limits: opts.Limits.withDefaults(), server: rand.Text()[:8],
		tasks: make(map[string]*task), owners: make(map[string]*uses),
	}
}

// Close cancels what runs, waits for it until ctx ends, and forgets all tasks. No
// new ones begin. It may be called again.
func (s *Tasks) Close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	for _, t := range s.tasks {
		t.cancel(errClosed)
		s.forgetLocked(t)
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		s.opts.Log.Warn("give up waiting for calls that do not end", logkey.Error, context.Cause(ctx))
	}
}

// Len returns how many tasks there are, and how many of them have not ended.
func (s *Tasks) Len() (all, unfinished int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		if !t.status.final() {
			unfinished++
		}
	}
	return len(s.tasks), unfinished
}

// Linger waits until whoever asked about a task lately has been told its end, at
// most for two looks: a server that stops ends calls, and would otherwise throw
// away what they came to.
func (s *Tasks) Linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.limits.Poll)
	defer cancel()
	for _, t := range s.awaited() {
		select {
		case <-t.told:
		case <-ctx.Done():
			return
		}
	}
}

// awaited are the tasks whose end a client will soon ask for.
func (s *Tasks) awaited() []*task {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*task
	for _, t := range s.tasks {
		if t.status.final() && !t.wasTold && time.Since(t.asked) < 3*s.limits.Poll {
			list = append(list, t)
		}
	}
	return list
}

// begin makes a task of a call, which may not run yet. It returns nil if there is
// no room for it.
func (s *Tasks) begin(owner string, cancel context.CancelCauseFunc) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.owners[owner]
	if u == nil {
		u = &uses{}
	}
	if s.closed || len(s.tasks) >= s.limits.All || u.tasks >= s.limits.Kept || u.running >= s.limits.Running {
		return nil
	}
	now := time.Now()
	t := &task{
		id: s.server + "-" + rand.Text(), owner: owner, uses: u, cancel: cancel,
		status: working, created: now, updated: now, asked: now,
		told: make(chan struct{}), parked: make(chan struct{}), answered: make(chan struct{}, 1),
	}
	t.expiry = time.AfterFunc(s.limits.TTL, func() { s.expire(t) })
	s.tasks[t.id] = t
	s.owners[owner] = u
	u.tasks++
	u.running++
	s.running.Add(1)
	return t
}

// findLocked returns a task of the owner; nil if there is none of that id.
func (s *Tasks) findLocked(owner, id string) *task {
	t := s.tasks[id]
	if t == nil || t.owner != owner {
		return nil
	}
	return t
}

func (s *Tasks) expire(t *task) {
	t.cancel(errExpired)
	s.forget(t)
}

func (s *Tasks) forget(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(t)
}

func (s *Tasks) forgetLocked(t *task) {
	if s.tasks[t.id] != t {
		return
	}
	t.expiry.Stop()
	s.dropLocked(t)
	delete(s.tasks, t.id)
	t.uses.tasks--
	s.disownLocked(t)
}

// disownLocked forgets an owner who has nothing left.
func (s *Tasks) disownLocked(t *task) {
	if *t.uses == (uses{}) && s.owners[t.owner] == t.uses {
		delete(s.owners, t.owner)
	}
}

// keepLocked stores a result and reports whether there was room. For more of it,
// results that their client has been told are dropped, the oldest first.
func (s *Tasks) keepLocked(t *task, result []byte) bool {
	if len(result) > s.limits.Result {
		return false
	}
	for t.uses.bytes+len(result) > s.limits.ResultsKept || s.bytes+len(result) > s.limits.ResultsAll {
		var oldest *task
		for _, o := range s.tasks {
			mine := t.uses.bytes+len(result) <= s.limits.ResultsKept || o.owner == t.owner
			if mine && o.wasTold && len(o.result) > 0 && (oldest == nil || o.updated.Before(oldest.updated)) {
				oldest = o
			}
		}
		if oldest == nil {
			return false
		}
		s.dropLocked(oldest)
		oldest.shrunk = true
	}
	t.result = result
	t.uses.bytes += len(result)
	s.bytes += len(result)
	return true
}

func (s *Tasks) dropLocked(t *task) {
	t.uses.bytes -= len(t.result)
	s.bytes -= len(t.result)
	t.result = nil
}
