package codemode

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// maxChanged bounds the tools that changes names.
const maxChanged = 5

// changes are the calls of a run that may have changed something. The zero value has none. Its
// methods may be called concurrently.
type changes struct {
	mu    sync.Mutex
	names []string       // in the order of the first calls, at most maxChanged; guarded by mu
	calls map[string]int // by those names; guarded by mu
	more  int            // calls of further tools; guarded by mu
}

// begin records a call before the server gets it, since a run can end while it waits for the
// answer. end is for the outcome: a call that was never made is no change.
func (c *changes) begin(t Tool) (end func(err error)) {
	if t.Annotations != nil && t.Annotations.ReadOnlyHint {
		return func(error) {}
	}
	name := t.dotted()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, named := c.calls[name]
	switch {
	case named:
		c.calls[name]++
	case len(c.names) < maxChanged:
		if c.calls == nil {
			c.calls = make(map[string]int)
		}
		named = true
		c.names, c.calls[name] = append(c.names, name), 1
	default:
		c.more++
	}
	return func(err error) {
		if notCalled(err) {
			c.undo(name, named)
		}
	}
}

// undo forgets a call. named says that it is among those by name.
func (c *changes) undo(name string, named bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !named {
		c.more--
		return
	}
	if c.calls[name]--; c.calls[name] == 0 { // its place is for another tool
		delete(c.calls, name)
		c.names = slices.DeleteFunc(c.names, func(n string) bool { return n == name })
	}
}

// notCalled reports whether the error of Servers.Call says that the server got no call.
func notCalled(err error) bool {
	if errors.Is(err, mcpkit.ErrNotSent) {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	return ok && (e.Code.refused() || e.unsent)
}

// String lists the tools with the number of their calls, such as "files.write_file (2)", with an
// ellipsis for further ones; "" if there are none.
func (c *changes) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, name := range c.names {
		all = append(all, fmt.Sprintf("%s (%d)", plainName(name), c.calls[name]))
	}
	if c.more > 0 {
		all = append(all, "…")
	}
	return strings.Join(all, ", ")
}

// maxChangedName bounds a name in the list, in bytes.
const maxChangedName = 80

// plainName returns the name of a tool for a sentence. Servers choose the names of their tools: one
// that is no word is quoted, so that it cannot pass for a part of the sentence.
func plainName(name string) string {
	short := truncate.Bytes(name, maxChangedName)
	if !isWord(name) {
		return strconv.Quote(visible.Line(short))
	}
	return short
}

// isWord reports whether a name consists of letters, digits, dots, underscores and dashes.
func isWord(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return r != '.' && r != '_' && r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
}

// uncalled are the tools whose calls ended, with their run or by the program, before their servers
// got them: while a server was starting, or while a person was asked. A tool that the run has called
// besides is none of them. The zero value has none.
type uncalled struct {
	mu     sync.Mutex
	names  []string          // each once, at most maxChanged and one more; guarded by mu
	called map[string]*began // tools of which another call may have reached its server; guarded by mu
}

// began are the calls of a tool that may have reached its server.
type began struct {
	calls    int
	uncalled bool // another one has not: if none of these has either, the tool is listed
}

// add adds the tool of a call; t is empty if it was not known yet.
func (u *uncalled) add(t Tool, in toolCall) {
	name := cmp.Or(in.Name, in.Server+"."+in.Tool)
	if t.Tool != nil {
		name = t.dotted()
	}
	name = plainName(name)
	u.mu.Lock()
	defer u.mu.Unlock()
	if c := u.called[name]; c != nil {
		c.uncalled = true
		return
	}
	u.listLocked(name)
}

func (u *uncalled) listLocked(name string) {
	if len(u.names) <= maxChanged && !slices.Contains(u.names, name) {
		u.names = append(u.names, name)
	}
}

// begin notes a call whose server may get it: the tool is not one of those without a call. end is for the
// outcome: a call that its server did not get is none after all. cancelled says that it was cancelled.
func (u *uncalled) begin(t Tool) (end func(err error, cancelled bool)) {
	name := plainName(t.dotted())
	u.mu.Lock()
	defer u.mu.Unlock()
	c := u.called[name]
	if c == nil {
		if u.called == nil {
			u.called = make(map[string]*began)
		}
		c = &began{uncalled: slices.Contains(u.names, name)}
		u.called[name] = c // the budget of the run bounds them
		u.names = slices.DeleteFunc(u.names, func(n string) bool { return n == name })
	}
	c.calls++
	return func(err error, cancelled bool) {
		if !notCalled(err) {
			return
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		c.uncalled = c.uncalled || cancelled
		if c.calls--; c.calls > 0 {
			return
		}
		if delete(u.called, name); c.uncalled {
			u.listLocked(name)
		}
	}
}

// Uncalled lists the tools whose servers got no call, because each was cancelled before, in the form
// of [Run.Changed] without numbers. It may be called after End.
func (r *Run) Uncalled() string {
	r.uncalled.mu.Lock()
	defer r.uncalled.mu.Unlock()
	names := slices.Clone(r.uncalled.names)
	if len(names) > maxChanged {
		names[maxChanged] = "…"
	}
	return strings.Join(names, ", ")
}

// Changed lists the tools that the run has called so far and that their servers do not declare as
// read-only, with the number of calls: "files.write_file (2), mail.send (1)". It names tools as
// programs write them, at most five, and is "" if there are none. It may be called after End.
func (r *Run) Changed() string { return r.changes.String() }
