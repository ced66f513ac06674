package enginetest

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
)

// patience bounds the wait for an agent that does not answer.
const patience = 700 * time.Millisecond

func hostileTests() []test {
	var tests []test
	for _, part := range []string{"gone", "silent", "mute", "shut", "garbage", "zeros", "frames", "huge", "half", "drip", "liar", "stopped"} {
		tests = append(tests, test{"agent-" + part, func(t *tester) { t.hostile(t.probeSpec(part)) }})
	}
	return append(tests, []test{
		{"agent-is-no-program", testAgentText},
		{"agent-is-of-another-machine", testAgentForeign},
		{"agent-chatters-on-stderr", testAgentChatters},
		{"agent-ignores-signals", testAgentDeaf},
		{"agent-returns-while-creating", testAgentGoneAtOnce},
		{"agent-that-does-not-read-holds-nobody-up", testAgentNotReading},
	}...)
}

// hostile boots a guest with a hostile agent. Create may fail; Dial and
// client.Open must end with an error in bounded time, without costing much memory,
// and the guest must go away like any other.
func (t *tester) hostile(spec *engine.Spec) {
	t.Helper()
	t.checkGrowth(func() {
		var g engine.Guest
		err := t.call("create", func(ctx context.Context) (err error) {
			g, err = t.e.Create(ctx, newID(), spec)
			return err
		})
		if err != nil {
			return
		}
		b := t.own(g)
		for _, open := range []func(context.Context, client.Dialer, client.Options) (*client.Conn, error){client.Open, client.Resume} {
			t.inTime("open link", patience+grace, func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				l, err := open(ctx, g, client.Options{Hello: b.hello()})
				if err == nil {
					t.Error("a link to a hostile agent was opened")
					l.Close()
				}
			})
		}
		t.destroy(b)
	})
}

// agentFile returns a spec whose agent is a file with the content.
func (t *tester) agentFile(content string) *engine.Spec {
	spec := t.spec()
	path := filepath.Join(t.TempDir(), "agent")
	t.must("write agent", os.WriteFile(path, []byte(content), 0o755))
	spec.Agent = t.h.Program(t.TB, path, []string{"agent"})
	return spec
}

func testAgentText(t *tester) { t.hostile(t.agentFile("this is no program\n")) }

// testAgentForeign has the beginning of an executable of the S/390.
func testAgentForeign(t *tester) {
	t.hostile(t.agentFile("\x7fELF\x02\x02\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x16\x00\x00\x00\x01" + string(make([]byte, 64))))
}

func testAgentChatters(t *tester) {
	b := t.create(t.probeSpec("chatter"))
	t.checkGrowth(func() {
		for range 5 {
			b.echoes()
			time.Sleep(50 * time.Millisecond)
		}
		t.destroy(b)
	})
}

func testAgentDeaf(t *tester) {
	b := t.create(t.probeSpec("deaf"))
	b.echoes()
	t.destroy(b)
}

func testAgentGoneAtOnce(t *tester) {
	for range 5 {
		var g engine.Guest
		err := t.call("create", func(ctx context.Context) (err error) {
			g, err = t.e.Create(ctx, newID(), t.probeSpec("gone"))
			return err
		})
		if err != nil {
			continue
		}
		if exit := t.exit(t.own(g)); exit.Reason != engine.ExitExited || exit.Code != 3 {
			t.Errorf("exit of an agent that returned 3 at once is %+v", exit)
		}
	}
}

func testAgentNotReading(t *tester) {
	b := t.create(t.probeSpec("silent"))
	conn := b.dial()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, endless{})
		done <- err
	}()
	other := t.create(t.probeSpec("echo"))
	other.echoes()
	t.destroy(b)
	t.inTime("write to a guest that was destroyed", t.h.Timeout, func() { <-done })
	t.close(conn)
	other.echoes()
}
