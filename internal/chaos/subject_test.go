//go:build linux && (amd64 || arm64) && !cgo

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// maxHistory bounds the events that are kept of one box.
const maxHistory = 80

// subject is a box that the run uses, and what the box should remember: the token of the
// call that began its variables and how often they were counted up since.
type subject struct {
	run   *run
	owner box.Owner
	kind  box.Kind
	name  string // the id of a session, the name of a context

	// turn is held by operations that change what the box remembers.
	turn sync.Mutex

	mu      sync.Mutex
	id      string         // guarded by mu; of a context, "" if there is none
	box     *box.Box       // guarded by mu; the last one acquired
	exists  bool           // guarded by mu
	token   string         // guarded by mu; "": unknown, whatever comes is right
	n       int            // guarded by mu; the count of the last answer
	unsure  int            // guarded by mu; calls since whose outcome is unknown
	seen    map[string]int // guarded by mu; the highest count with each token
	earlier bool           // guarded by mu; a report said that an earlier state is back
	guests  []string       // guarded by mu; ids of its latest guests
	good    time.Time      // guarded by mu; of the last call that succeeded
	history []string       // guarded by mu
}

func (s *subject) String() string { return fmt.Sprintf("%s %s of %s", s.kind, s.name, s.owner) }

// note appends an event to the history.
func (s *subject) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteLocked(format, args...)
}

func (s *subject) noteLocked(format string, args ...any) {
	event := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | ")
	s.history = append(s.history, time.Now().Format("15:04:05.000 ")+event[:min(len(event), 300)])
	s.history = s.history[max(0, len(s.history)-maxHistory):]
}

// hasGuest records that a guest is, or will be, the box.
func (s *subject) hasGuest(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.guests, id) {
		s.guests = append(s.guests, id)
		s.guests = s.guests[max(0, len(s.guests)-6):]
	}
}

// guest returns the id of the latest guest, "" if there was none.
func (s *subject) guest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.guests) == 0 {
		return ""
	}
	return s.guests[len(s.guests)-1]
}

// aftermath is how long before the last good call a fault may have struck that explains what
// happened to a box: one that stopped answering ends within about a minute.
const aftermath = 60 * time.Second

// faulted reports whether a fault may explain what happened to the box.
func (s *subject) faulted() bool {
	s.mu.Lock()
	guests, since := slices.Clone(s.guests), s.good.Add(-aftermath)
	s.mu.Unlock()
	return s.run.faults.near(since, guests...)
}

// acquire returns the box, and makes it if there is none.
func (s *subject) acquire(ctx context.Context, op string) (*box.Box, error) {
	m := s.run.manager
	if s.kind == box.KindSession {
		b, hold, err := m.Session(ctx, s.owner, box.SessionOptions{ID: s.name})
		return b, s.acquired(b, hold, err, op)
	}
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	if id == "" {
		b, err := m.CreateContext(ctx, s.owner, box.ContextOptions{Name: s.name})
		if err == nil {
			s.mu.Lock()
			s.id = b.ID()
			s.mu.Unlock()
			if guest, ok := s.run.guestOf.Load(b.ID()); ok { // it was logged before
				s.hasGuest(guest.(string))
			}
		}
		return b, s.acquired(b, box.Hold{Created: err == nil}, err, op)
	}
	b, hold, err := m.Context(ctx, s.owner, id)
	return b, s.acquired(b, hold, err, op)
}

// acquired checks what the manager reports about a box that was acquired.
func (s *subject) acquired(b *box.Box, hold box.Hold, err error, op string) error {
	if err != nil {
		return s.failed(err, op)
	}
	hold.Settle(true)
	if s.run.broken.Load().silent {
		hold.Lost = nil
		if hold.Woken != nil {
			hold.Woken.Why = nil
		}
	}
	s.mu.Lock()
	exists := s.exists
	s.exists, s.box = true, b
	if hold.Created {
		s.token, s.n, s.unsure = "", 0, 0
	}
	var lost *box.Tombstone
	switch {
	case hold.Created:
		lost = hold.Lost
		s.noteLocked("%s: a new box; the earlier one: %s", op, explain(lost))
	case hold.Woken != nil:
		lost = hold.Woken.Why
		s.noteLocked("%s: woken, behind %t: %s", op, hold.Woken.Behind, explain(lost))
		s.earlier = s.earlier || hold.Woken.Behind
	}
	s.mu.Unlock()
	switch {
	case hold.Created && exists && lost == nil:
		s.run.violate("lost", s, "%s: the box is gone, and nothing says why", op)
	case hold.Woken != nil && hold.Woken.Behind && lost == nil:
		s.run.violate("lost", s, "%s: the box has lost its latest state, and nothing says why", op)
	case hold.Woken != nil && hold.Woken.Rescued != nil:
		s.run.violate("lost", s, "%s: the memory of the box was given up: %s", op, hold.Woken.Rescued.Explain())
	case lost != nil && exists:
		s.lost(lost.Reason, op)
	}
	return nil
}

func explain(t *box.Tombstone) string {
	if t == nil {
		return "no tombstone"
	}
	return t.Explain(time.Now())
}

// lost checks a report that the box has lost its state.
func (s *subject) lost(reason box.Reason, op string) {
	s.run.count(&s.run.reported, string(reason))
	switch {
	case reason == "":
		s.run.violate("lost", s, "%s: a report names no reason", op)
	case reason == box.ReasonStopped || s.faulted():
	default:
		s.run.violate("unexplained", s, "%s: the box was lost (%s) without a fault", op, reason)
	}
}

var guestID = regexp.MustCompile(`box-[0-9a-f]{8}-[0-9a-f-]{27}`)

// failed checks the error of an operation, and returns it.
func (s *subject) failed(err error, op string) error {
	s.note("%s: %v", op, err)
	for _, guest := range guestID.FindAllString(err.Error(), 3) {
		s.hasGuest(guest) // one that was to become the box
	}
	var e *box.Error
	if !errors.As(err, &e) {
		s.run.violate("unexplained", s, "%s: an error of another type: %v", op, err)
		return err
	}
	s.run.count(&s.run.refused, string(e.Code))
	switch e.Code {
	case box.CodeGone:
		reason := box.Reason(e.Context["reason"])
		switch reason {
		case box.ReasonHibernated, box.ReasonRolledBack, box.ReasonStopped: // the next call goes on
		default:
			s.lost(reason, op)
		}
	case box.CodeNotFound:
		s.mu.Lock()
		exists := s.exists
		s.id, s.exists = "", false
		s.mu.Unlock()
		if s.kind == box.KindContext && exists {
			if reason := box.Reason(e.Context["reason"]); reason == "" {
				s.run.violate("lost", s, "%s: the context is gone, and nothing says why: %v", op, err)
			} else {
				s.lost(reason, op)
			}
		}
	case box.CodeCancelled, box.CodeBusy, box.CodeLimit, box.CodeStopFailed:
	default:
		// A guest that was to take the place of the box is not known, but its fault names itself.
		if !s.faulted() && !strings.Contains(err.Error(), plannedPrefix) {
			s.run.violate("unexplained", s, "%s failed without a fault: %s: %v", op, e.Code, err)
		}
	}
	return err
}

// counting is code that counts up a variable of the box and the one in a file, and prints
// the token, the count, and what was in the file.
const counting = `
if 'token' not in globals(): token, n = %q, 0
n += 1
try: was = open('count').read()
except FileNotFoundError: was = 'nothing'
with open('count', 'w') as f: f.write(f'{token} {n}')
print(token, n, was)`

// call counts up in the box, and checks what the box remembers. The caller has the turn.
func (s *subject) call(ctx context.Context, op string, b *box.Box) error {
	fresh := "by-" + op
	code := s.run.broken.Load().before + fmt.Sprintf(counting, fresh)
	s.mu.Lock()
	s.unsure++
	s.mu.Unlock()
	res, err := b.Run(ctx, box.RunRequest{Code: code, Timeout: callTimeout})
	if err != nil {
		return s.failed(err, op)
	}
	s.judge(res, fresh, op)
	return nil
}

// judge checks the result of a call that counted up.
func (s *subject) judge(res *box.RunResult, fresh, op string) {
	f := strings.Fields(res.Stdout)
	if !res.Success || len(f) < 3 {
		s.note("%s: %q %q %v %s", op, res.Stdout, res.Stderr, res.Notes, res.Lost)
		switch {
		case res.Lost != "":
			s.mu.Lock()
			s.token, s.n, s.unsure = "", 0, 0
			s.mu.Unlock()
		case res.TimedOut || s.faulted():
		default:
			s.run.violate("unexplained", s, "%s: the code failed without a fault", op)
		}
		return
	}
	token, was := f[0], strings.Join(f[2:], " ")
	n, _ := strconv.Atoi(f[1])
	s.mu.Lock()
	want, from, to := s.token, s.n+1, s.n+s.unsure
	back := s.earlier && n <= s.seen[token]+s.unsure
	reported := want == "" || res.Lost != "" || back
	s.token, s.n, s.unsure, s.earlier, s.good = token, n, 0, false, time.Now()
	s.seen[token] = max(s.seen[token], n)
	s.noteLocked("%s: %s %d, file %s; notes %q", op, token, n, was, res.Notes)
	s.mu.Unlock()
	switch {
	case reported:
	case token != want:
		s.run.violate("lost", s, "%s: the variables are of %q, want those of %q, and nothing says why", op, token, want)
	case n < from || n > to:
		s.run.violate("lost", s, "%s: the count is %d, want %d to %d, and nothing says why", op, n, from, to)
	}
	// A call that was cut off may have counted without writing.
	if before := fileOf(was); token != fresh && (before.token != token || before.n < n-3 || before.n > n-1) {
		s.run.violate("lost", s, "%s: the file has %q, want %s and about %d", op, was, token, n-1)
	}
}

type counted struct {
	token string
	n     int
}

func fileOf(text string) counted {
	token, n, _ := strings.Cut(text, " ")
	i, _ := strconv.Atoi(n)
	return counted{token, i}
}

// snapshotted is a saved snapshot and what the box remembered then.
type snapshotted struct {
	id     string
	token  string
	n      int
	unsure int // calls after n whose outcome is unknown
}

// callOrMake acquires the box and counts up in it. The caller has the turn, as of all that
// acquires.
func (s *subject) callOrMake(ctx context.Context, op string) error {
	b, err := s.acquire(ctx, op)
	if err != nil {
		return err
	}
	return s.call(ctx, op, b)
}

// rollBack saves a snapshot, counts up, and goes back.
func (s *subject) rollBack(ctx context.Context, op string) error {
	snap, err := s.save(ctx, op)
	if err != nil {
		return err
	}
	defer s.drop(snap)
	if b, err := s.acquire(ctx, op); err != nil {
		return err
	} else if err := s.call(ctx, op, b); err != nil {
		return err
	}
	_, err = s.run.manager.Restore(ctx, s.owner, s.kind, snap.id, box.RestoreOptions{Into: s.address()})
	if err != nil {
		// A caller who leaves does not know whether the snapshot took the box's place.
		s.mu.Lock()
		s.earlier = s.earlier || box.CodeOf(err) == box.CodeCancelled
		s.mu.Unlock()
		return s.failed(err, op)
	}
	s.mu.Lock()
	s.token, s.n, s.unsure = snap.token, snap.n, snap.unsure
	s.noteLocked("%s: rolled back to %s %d", op, snap.token, snap.n)
	s.mu.Unlock()
	return nil
}

// address is the id by which the owner names the box.
func (s *subject) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind == box.KindContext {
		return s.id
	}
	return s.name
}

// save saves a snapshot. The caller has the turn.
func (s *subject) save(ctx context.Context, op string) (snap snapshotted, err error) {
	if b, err := s.acquire(ctx, op); err != nil {
		return snap, err
	} else if err := s.call(ctx, op, b); err != nil {
		return snap, err
	}
	s.mu.Lock()
	snap.token, snap.n, snap.unsure = s.token, s.n, s.unsure
	s.mu.Unlock()
	saved, hold, err := s.run.manager.SaveSnapshot(ctx, s.owner, s.kind, s.address(), box.SnapshotOptions{})
	defer hold.Release()
	if err := s.acquired(s.last(), hold, err, op); err != nil {
		return snap, err
	}
	if hold.Woken != nil && hold.Woken.Behind {
		snap.token = "" // of an earlier state, which came back between the call and the snapshot
	}
	snap.id = saved.ID
	s.note("%s: saved as %s", op, saved.ID)
	return snap, nil
}

func (s *subject) drop(snap snapshotted) {
	if err := s.run.manager.DeleteSnapshot(s.owner, snap.id); err != nil {
		s.failed(err, "delete snapshot")
	}
}

// snapshot saves a snapshot and deletes it.
func (s *subject) snapshot(ctx context.Context, op string) error {
	snap, err := s.save(ctx, op)
	if err == nil {
		s.drop(snap)
	}
	return err
}

// fork copies the box, checks the copy, and stops it. The fork wakes a box that is not in
// memory, and has to report what it lost.
func (s *subject) fork(ctx context.Context, op string) error {
	if s.address() == "" {
		return nil
	}
	s.mu.Lock()
	exists := s.exists
	s.mu.Unlock()
	if !exists {
		return nil
	}
	opts := box.ForkOptions{ID: s.name + forkSuffix}
	if s.kind == box.KindContext {
		opts = box.ForkOptions{Name: s.name + forkSuffix}
	}
	f, hold, err := s.run.manager.Fork(ctx, s.owner, s.kind, s.address(), opts)
	if err != nil {
		if box.CodeOf(err) == box.CodeNotFound && s.kind == box.KindSession {
			s.note("%s: %v", op, err) // it has ended; the next call gets the tombstone
			return err
		}
		return s.failed(err, op)
	}
	defer hold.Release()
	if err := s.acquired(s.last(), hold, nil, op); err != nil {
		return err
	}
	res, err := f.Run(ctx, box.RunRequest{Code: "print(globals().get('token'), globals().get('n'))", Timeout: callTimeout})
	if err != nil {
		s.failed(err, op+" in the copy")
	} else {
		s.note("%s: the copy has %q", op, res.Stdout)
	}
	_, stopErr := s.run.manager.Stop(ctx, s.owner, s.kind, f.ID())
	if stopErr != nil {
		s.failed(stopErr, op+" stop the copy")
	}
	return err
}

// forkSuffix ends the ids of copies.
const forkSuffix = "-fork"

// stopBox stops the box.
func (s *subject) stopBox(ctx context.Context, op string) error {
	id := s.address()
	if id == "" {
		return nil
	}
	found, err := s.run.manager.Stop(ctx, s.owner, s.kind, id)
	if err != nil {
		return s.failed(err, op)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind == box.KindContext {
		s.id = ""
	}
	s.noteLocked("%s: stopped, found %t", op, found)
	s.exists, s.box, s.token, s.n, s.unsure = false, nil, "", 0, 0
	return nil
}

// last returns the box acquired last, nil if there is none.
func (s *subject) last() *box.Box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box
}

// command runs a command beside what else happens in the box.
func (s *subject) command(ctx context.Context, op string, b *box.Box) error {
	res, err := b.Exec(ctx, box.ExecRequest{Shell: "echo $((6 * 7)); cat count | wc -c", Timeout: callTimeout})
	if err != nil {
		return s.failed(err, op)
	}
	if !strings.HasPrefix(res.Stdout, "42\n") && !res.TimedOut && !s.faulted() {
		s.run.violate("unexplained", s, "%s: the command gave %q %q", op, res.Stdout, res.Stderr)
	}
	return nil
}

// files writes a file, reads it again and lists its directory.
func (s *subject) files(ctx context.Context, op string, b *box.Box) error {
	path, content := op+".txt", strings.Repeat(op+"\n", 200)
	if _, err := b.WriteFile(ctx, box.WriteRequest{Path: path}, strings.NewReader(content)); err != nil {
		return s.failed(err, op)
	}
	var got bytes.Buffer
	if _, err := b.ReadFile(ctx, box.ReadRequest{Path: path}, &got); err != nil {
		if box.CodeOf(err) == box.CodeFileNotFound { // the box may be another one by now
			return nil
		}
		return s.failed(err, op)
	}
	if got.String() != content {
		s.run.violate("lost", s, "%s: a file has %d bytes other than those that were written", op, got.Len())
	}
	if _, err := b.List(ctx, box.ListRequest{}); err != nil {
		return s.failed(err, op)
	}
	if err := b.Remove(ctx, box.RemoveRequest{Path: path}); err != nil && box.CodeOf(err) != box.CodeFileNotFound {
		return s.failed(err, op)
	}
	return nil
}

// cancel cancels a call that would take longer.
func (s *subject) cancel(ctx context.Context, op string, b *box.Box, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	_, err := b.Exec(ctx, box.ExecRequest{Shell: "sleep 5", Timeout: callTimeout})
	if err != nil {
		return s.failed(err, op)
	}
	return nil
}

// interrupt cancels code in the interpreter, whose variables stay.
func (s *subject) interrupt(ctx context.Context, op string, after time.Duration) error {
	b, err := s.acquire(ctx, op)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	if _, err := b.Run(short, box.RunRequest{Code: "import time\ntime.sleep(5)", Timeout: callTimeout}); err != nil {
		return s.failed(err, op)
	}
	return nil
}
