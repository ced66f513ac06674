//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
	agentlink "github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// scriptTimeout bounds an attack's script; most take less than a second.
	scriptTimeout = 25 * time.Second
	// nextTimeout bounds the next command in a box after an attack. It includes
	// the end of what the attack left running.
	nextTimeout = 10 * time.Second
	// reportTimeout bounds the report of a box that has died.
	reportTimeout = 5 * time.Second
	// destroyTimeout bounds the destruction of a box, whatever it is doing.
	destroyTimeout = 5 * time.Second
	// maxOutput bounds the output of a script that is kept.
	maxOutput = 1 << 20
)

// cell is a box under attack.
type cell struct {
	t      *trial
	m      *machine.Machine
	limits engine.Limits // as promised
	gone   bool          // destroyed
	// connectionMayEnd: the agent is hostile, and the error of a lost connection is the
	// report. The manager of boxes ends such a box.
	connectionMayEnd bool
}

// call says what a script does.
type call struct {
	function string
	args     map[string]any // beside those of the bait
	mayDie   bool           // the script may be killed, or the box with it
	timeout  time.Duration  // default: scriptTimeout
	env      []string
	host     agentlink.Host // answers the script's calls; nil allows none
}

// ended is how a script ended.
type ended struct {
	out      string // standard output and standard error
	stopped  string // see protocol.ExecResult
	code     int
	err      error // the box is lost
	finished bool  // the script came to its end
	attempts int   // attempts that were refused or contained
	broken   []string
	values   map[string]string // what the script reported by name
}

// attack runs a function of the class's guest script and judges what it reports.
func (c *cell) attack(ctx context.Context, x call) error {
	e, err := c.run(ctx, x)
	if err != nil {
		return err
	}
	return c.judge(e, x.mayDie)
}

// run runs a function of the class's guest script.
func (c *cell) run(ctx context.Context, x call) (ended, error) {
	code, err := guestScript(c.t.attack.Class)
	if err != nil {
		return ended{}, err
	}
	args := c.t.bait.args(c.t.nonce)
	args["memory_mb"], args["disk_mb"], args["pids"] = c.limits.MemoryMB, c.limits.DiskMB, c.limits.PIDs
	for k, v := range x.args {
		args[k] = v
	}
	encoded, err := json.Marshal(args)
	if err != nil {
		return ended{}, fmt.Errorf("encode the arguments of the script: %w", err)
	}
	argv := []string{c.t.python(), "-IBu", "-", x.function, string(encoded)}
	return c.exec(ctx, protocol.Exec{Argv: argv, Env: x.env}, code, x.timeout, x.host), nil
}

// exec runs a command in the box with the script on standard input. host is as in call.
func (c *cell) exec(ctx context.Context, x protocol.Exec, in []byte, timeout time.Duration, host agentlink.Host) ended {
	if timeout == 0 {
		timeout = scriptTimeout
	}
	x.TimeoutMS, x.GraceMS = timeout.Milliseconds(), 1000
	x.Capture = protocol.Capture{Head: maxOutput / 4, Tail: maxOutput / 4}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout+nextTimeout, errors.New("the agent did not end the attack in time"))
	defer cancel()
	var out output
	res, err := c.m.Agent.ExecWithCalls(ctx, x, bytes.NewReader(in), &out, host)
	e := ended{out: out.String(), stopped: res.Stopped, code: res.Code, err: err, values: map[string]string{}}
	for line := range strings.Lines(e.out) {
		kind, text, ok := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case !ok:
		case kind == "@held":
			e.attempts++
		case kind == "@broke":
			e.broken = append(e.broken, text)
		case kind == "@value":
			name, value, _ := strings.Cut(text, " ")
			e.values[name] = value
		case kind == "@done":
			e.finished = true
		}
	}
	return e
}

// judge records what a script reported. A script that ended early is an error
// unless it may die.
func (c *cell) judge(e ended, mayDie bool) error {
	for _, b := range e.broken {
		c.t.broke("%s", b)
	}
	c.t.held(e.attempts)
	c.t.bait.checkText(c.t, "output of the box", e.out)
	switch {
	case e.finished:
		return nil
	case mayDie && (e.err != nil || e.stopped != "" || e.code > 128 || e.attempts > 0):
		c.t.held(1) // the box or the script was stopped
		return nil
	case e.err != nil:
		return fmt.Errorf("the box was lost during the attack: %w", e.err)
	}
	return fmt.Errorf("the script ended early (code %d, stopped %q): %s", e.code, e.stopped, printable(tail(e.out, 600)))
}

// settle checks that the next command works or the box is reported dead, destroys
// the box, and checks that nothing is left.
func (c *cell) settle(ctx context.Context) {
	if c.gone {
		return
	}
	if how := c.next(ctx); how != "" {
		c.t.mu.Lock()
		c.t.ends = append(c.t.ends, how)
		c.t.mu.Unlock()
	}
	c.destroy(ctx)
}

// destroy destroys the box and checks that this is quick and that nothing is left.
func (c *cell) destroy(ctx context.Context) {
	c.gone = true
	before := holdings(c.m.ID)
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	start := time.Now()
	err := c.m.Close(ctx)
	if took := time.Since(start); err != nil {
		c.t.broke("the box was not destroyed: %v", err)
	} else if took > destroyTimeout {
		c.t.late("destroying the box took %v, more than %v", took.Round(time.Millisecond), destroyTimeout)
	}
	c.t.leftovers(c.m.ID, before)
}

// next runs a command in the box. It returns how the box ended, if it did.
func (c *cell) next(ctx context.Context) string {
	ctx, cancel := context.WithTimeoutCause(ctx, nextTimeout, errors.New("no answer in time"))
	defer cancel()
	var out output
	word := "alive-" + c.t.nonce
	res, err := c.m.Agent.Exec(ctx, protocol.Exec{Argv: []string{"/bin/sh", "-c", "echo " + word}, TimeoutMS: nextTimeout.Milliseconds()}, nil, &out)
	if errors.Is(err, agentlink.ErrLost) && c.connectionMayEnd {
		return "connection lost: " + printable(err.Error())
	}
	if err == nil && res.Code == 0 && strings.Contains(out.String(), word) {
		return ""
	}
	wait, cancelWait := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancelWait()
	exit, werr := c.m.Guest.Wait(wait)
	switch {
	case werr == nil && exit.Reason != "":
		return strings.TrimSuffix(fmt.Sprintf("%s: %s", exit.Reason, printable(exit.Detail)), ": ")
	case err != nil:
		c.t.broke("after the attack the box neither answers (%v) nor is reported dead", err)
	default:
		c.t.broke("the next command in the box fails: code %d, stopped %q, output %q", res.Code, res.Stopped, printable(out.String()))
	}
	return ""
}

// output keeps the first maxOutput bytes. It is a client.Sink.
type output struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

// Output implements client.Sink.
func (o *output) Output(_ protocol.Channel, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b = append(o.b, p[:min(len(p), maxOutput-len(o.b))]...)
}

// Display implements client.Sink.
func (o *output) Display(protocol.Display) {}

// String returns the output so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.b)
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
