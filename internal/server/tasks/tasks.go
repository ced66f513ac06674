// Package tasks implements the tasks extension of MCP, io.modelcontextprotocol/tasks: a
// client that declares it gets a task in place of the answer to a long tool call, and
// polls the task until it has the answer.
//
// A tools/call of a tool with a [Policy] starts to run. If it ends at once, the client
// gets the answer and no task. Otherwise the client gets a task in the state working.
// The task may wait for input from the client. It ends completed with the result of the
// call, failed with its error, or cancelled. Only its owner can poll it, until its TTL is
// over. Running tasks and kept results are bounded.
//
// The package knows no tools and no boxes: its options have the handler of calls.
package tasks

import (
	"cmp"
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

// A Policy configures how calls of a tool become tasks.
type Policy struct {
	// Required refuses clients that do not declare the extension. Otherwise they
	// wait for the answer.
	Required bool
	// AskFirst makes a task only of calls that carry input: the tool asks for it in
	// an ordinary call first.
	AskFirst bool
}

// Limits bounds the resources of tasks. Zero fields mean their defaults.
type Limits struct {
	Running     int           // tasks that run at once, of one owner; 32, which is more than a box queues
	Kept        int           // tasks of one owner, until their time is over; 256
	All         int           // tasks of all owners; 4096
	Result      int           // bytes of one result; 16 MiB, above what a call with images says
	ResultsKept int           // bytes of the results of one owner; 32 MiB
	ResultsAll  int           // bytes of all results; 128 MiB
	TTL         time.Duration // from the beginning of a task until it is forgotten; 1 h, far above any time-out of a call
	Poll        time.Duration // between two requests of a client for the state; 1 s
	AnswerWait  time.Duration // that a call waits for its answer before it becomes a task; 500 ms
}

func (l Limits) withDefaults() Limits {
	l.Running = cmp.Or(l.Running, 32)
	l.Kept = cmp.Or(l.Kept, 256)
	l.All = cmp.Or(l.All, 4096)
	l.Result = cmp.Or(l.Result, 16<<20)
	l.ResultsKept = cmp.Or(l.ResultsKept, 32<<20)
	l.ResultsAll = cmp.Or(l.ResultsAll, 128<<20)
	l.TTL = cmp.Or(l.TTL, time.Hour)
	l.Poll = cmp.Or(l.Poll, time.Second)
	l.AnswerWait = cmp.Or(l.AnswerWait, 500*time.Millisecond)
	return l
}

// Options configures [New].
type Options struct {
	Policies map[string]Policy // by the name of the tool; the calls of others are never tasks
	// Call serves a tools/call without a session, and returns when ctx ends at the
	// latest. It calls Begun once the call is registered.
	Call   mcp.MethodHandler
	Limits Limits
	// Server names this server in the ids of tasks, among others that forward requests about
	// them to it. "", or no function: a name that nobody knows.
	Server func() string
	Log    *slog.Logger // nil discards
}

// name names this server in the ids of its tasks.
func (s *Tasks) name() string {
	if s.opts.Server != nil {
		if name := s.opts.Server(); name != "" {
			return name
		}
	}
	return s.server
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
	owners map[string]*uses // guarded by mu; only owners with tasks
	bytes  int              // guarded by mu: of all results
}

// uses counts the resources of one owner.
type uses struct{ tasks, running, bytes int }

var (
	errCancelled = errors.New("the client cancelled the task")
	errExpired   = errors.New("the time of the task is over")
	errClosed    = errors.New("the server is shutting down")
	errBusy      = errors.New("the tool is busy; try again later")
	errGone      = errors.New("the client is gone")
)

// New returns an empty set of tasks.
func New(opts Options) *Tasks {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Tasks{
		opts: opts, limits: opts.Limits.withDefaults(), server: rand.Text()[:8],
		tasks: make(map[string]*task), owners: make(map[string]*uses),
	}
}

// Close cancels running tasks, waits for them until ctx ends, and removes all tasks.
// Afterwards no call becomes a task. It may be called again.
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

// Linger waits until clients that polled recently have the results of their finished
// tasks, at most two poll intervals. A stopping server would otherwise discard them.
func (s *Tasks) Linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.limits.Poll)
	defer cancel()
	for _, t := range s.awaited() {
		select {
		case <-t.delivered:
		case <-ctx.Done():
			return
		}
	}
}

// awaited returns finished tasks that a client polled recently and has no result of.
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

// begin adds a task for a call that does not run yet. It returns nil at a limit.
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
		id: s.name() + "-" + rand.Text(), owner: owner, uses: u, cancel: cancel,
		status: statusWorking, created: now, updated: now, asked: now,
		delivered: make(chan struct{}), parked: make(chan struct{}), answered: make(chan struct{}, 1),
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

// disownLocked removes an owner without tasks and results.
func (s *Tasks) disownLocked(t *task) {
	if *t.uses == (uses{}) && s.owners[t.owner] == t.uses {
		delete(s.owners, t.owner)
	}
}

// keepLocked stores a result, and reports false if there is no room. It makes room by
// dropping results that their clients have, the oldest first. For the limit of all owners it
// also drops results of the owner with the most bytes, if that owner keeps more than this
// one would: else few owners would keep the others out until their tasks expire.
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
		if oldest == nil && t.uses.bytes+len(result) <= s.limits.ResultsKept {
			oldest = s.heaviestLocked(t.uses.bytes + len(result))
		}
		if oldest == nil {
			return false
		}
		s.dropLocked(oldest)
		if oldest.dropped = droppedEarly; oldest.wasTold {
			oldest.dropped = deliveredBefore
		}
	}
	t.result = result
	t.uses.bytes += len(result)
	s.bytes += len(result)
	return true
}

// heaviestLocked returns the task with the oldest result of the owner with the most bytes;
// nil if no owner has more than the given bytes.
func (s *Tasks) heaviestLocked(bytes int) (oldest *task) {
	var most *uses
	for _, u := range s.owners {
		if u.bytes > bytes && (most == nil || u.bytes > most.bytes) {
			most = u
		}
	}
	for _, t := range s.tasks {
		if t.uses == most && len(t.result) > 0 && (oldest == nil || t.updated.Before(oldest.updated)) {
			oldest = t
		}
	}
	return oldest
}

func (s *Tasks) dropLocked(t *task) {
	t.uses.bytes -= len(t.result)
	s.bytes -= len(t.result)
	t.result = nil
}
