//go:build linux

package attack

import (
	"context"
	"fmt"
	"time"
)

func agentClass() class {
	hostile := func(name, claim, function string) Attack {
		return Attack{Name: name, Claim: claim, Alone: true, run: hostileAgent(function)}
	}
	return class{
		name:  "agent",
		about: "The agent in the box has been compromised and lies to the server.",
		attacks: []Attack{
			hostile("garbage", "random bytes from the agent end at most its own connection", "garbage"),
			hostile("zeros", "endless zeros from the agent end at most its own connection", "zeros"),
			hostile("huge-frames", "frames that announce gigabytes allocate nothing", "huge_frames"),
			hostile("half-frame", "the server serves other boxes while an agent sends half of a frame", "half_frame"),
			hostile("json", "text like JSON or HTTP from the agent ends at most its own connection", "json_lines"),
			hostile("nested", "deeply nested text from the agent is not parsed", "nested"),
			hostile("drip", "the server serves other boxes while an agent sends single bytes", "drip"),
			hostile("ended", "an agent that ends takes its box with it, with a reason", "end"),
			hostile("traced", "an agent that is traced harms at most its own box", "close_streams"),
			{Name: "stopped", Claim: "a box whose agent does not answer is given up in time and destroyed", Alone: true, run: stoppedAgent},
		},
	}
}

// hostileAgent runs a function of the class's script as the root of a box. The server,
// which is this process, must not take memory for what it receives.
func hostileAgent(function string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		c, err := t.boot(ctx, shape{asAgent: true})
		if err != nil {
			return err
		}
		c.connectionMayEnd = true
		return t.keepsMemory(func() error {
			return c.attack(ctx, call{function: function, mayDie: true, timeout: 6 * time.Second})
		})
	}
}

// keepsMemory records if this process, which is the server of the box, takes memory
// during f.
func (t *trial) keepsMemory(f func() error) error {
	const allowed = 64 << 10 // kB; the pipe, the window and garbage of Go
	before := statusKB("self", "VmRSS")
	err := f()
	after := statusKB("self", "VmRSS")
	t.check(after < before+allowed, "the server took %d MiB", (after-before)>>10)
	return err
}

// stoppedAgent stops the agent, which then answers nothing.
func stoppedAgent(ctx context.Context, t *trial) error {
	c, err := t.boot(ctx, shape{asAgent: true})
	if err != nil {
		return err
	}
	const limit = 3 * time.Second
	start := time.Now()
	calling, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	e, err := c.run(calling, call{function: "stop"})
	if err != nil {
		return err
	}
	took := time.Since(start)
	t.check(took < limit+2*nextTimeout, "the call returned after %v", took)
	if e.finished {
		return fmt.Errorf("the agent was not stopped: %s", printable(e.out))
	}
	c.destroy(ctx)
	return nil
}
