//go:build linux

package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/server/tools"
)

// neighborFlags are limits that one owner can reach, and which leave room for another.
var neighborFlags = append([]string{
	"--max-sessions", "16", "--max-contexts", "16", "--max-total-memory-mb", "16384",
	"--owner-max-boxes", "6", "--owner-max-memory-mb", "8192", "--snapshot-disk-mb", "1000",
	"--session-timeout", "5", "--cleanup-interval", "1", "--pause-after", "2",
	"--max-connections", "400", "--max-streams", "200",
}, plain...)

// A neighbor's latency may grow to neighborFactor times what it is without the other
// owner's load, which takes processor time too, or to neighborFloor.
const (
	neighborFactor = 10
	neighborFloor  = 8 * time.Second
)

// tour calls every tool once or more on boxes of one owner, and returns how long each tool
// took, the slowest call if there are several. It fails the test if a call fails.
func tour(b boxes) map[string]time.Duration {
	b.t.Helper()
	took := map[string]time.Duration{}
	do := func(tool string, a args) args {
		b.t.Helper()
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		res, out, text, err := b.call(ctx, tool, a)
		took[tool] = max(took[tool], time.Since(begun))
		if err != nil || res.IsError {
			b.t.Errorf("%s %v: got error %v, answer %s after %v", tool, a, err, text, time.Since(begun))
			return args{}
		}
		return out
	}
	id := func(a args, key string) string { s, _ := a[key].(string); return s }

	do("execute_code", args{"session_id": "work", "code": "x = 41"})
	do("execute_command", args{"session_id": "work", "command": "echo from the shell"})
	do("upload_file", args{"session_id": "work", "path": "f.txt", "content": "kept"})
	do("download_file", args{"session_id": "work", "path": "f.txt"})
	do("list_files", args{"session_id": "work"})
	do("get_sessions", args{})
	do("get_volume_path", args{})
	do("get_volume_mappings", args{})
	saved := id(do("snapshot_session", args{"session_id": "work"}), "snapshot_id")
	fork := id(do("fork_session", args{"session_id": "work"}), "session_id")
	do("execute_code", args{"session_id": "work", "code": "x = 0"})
	do("restore_session", args{"snapshot_id": saved, "session_id": "work"})
	out := do("execute_code", args{"session_id": "work", "code": "print(x + 1, open('f.txt').read())"})
	if got := strings.TrimSpace(fmt.Sprint(out["stdout"])); got != "42 kept" {
		b.t.Errorf("after the rollback: got %q, want %q", got, "42 kept")
	}
	do("delete_snapshot", args{"snapshot_id": saved})
	do("stop_session", args{"session_id": fork})

	context := id(do("create_context", args{"name": "work in a context"}), "context_id")
	do("run_code", args{"context_id": context, "code": "y = 1"})
	do("list_contexts", args{})
	saved = id(do("snapshot_context", args{"context_id": context}), "snapshot_id")
	do("list_snapshots", args{})
	fork = id(do("fork_context", args{"context_id": context}), "context_id")
	do("restore_context", args{"snapshot_id": saved, "context_id": context})
	do("delete_snapshot", args{"snapshot_id": saved})
	do("stop_context", args{"context_id": fork})
	do("stop_context", args{"context_id": context})
	return took
}

// load is what an owner does to a server.
type load struct {
	name string
	// attack makes calls that end with ctx, and returns when they are under way.
	attack func(ctx context.Context, b *attacker)
}

// attacker is an owner with many clients. One alone sends a request only when the one
// before has been taken up.
type attacker struct {
	boxes
	client func() boxes
	calls  sync.WaitGroup
}

// begin makes a call that may fail.
func (b *attacker) begin(ctx context.Context, tool string, a args) {
	c := b.client()
	b.calls.Go(func() { c.call(ctx, tool, a) })
}

// sessions waits until an owner has n sessions of a status.
func (b boxes) sessions(status string, n int) {
	b.t.Helper()
	eventually(b.t, fmt.Sprintf("%d sessions are %s", n, status), time.Minute, func() bool {
		found := 0
		for _, s := range b.items("get_sessions", "sessions") {
			if s["status"] == status {
				found++
			}
		}
		return found >= n
	})
}

// occupied has n sessions of an owner run code for longer than the test.
func occupied(ctx context.Context, b *attacker, n int) {
	for i := range n {
		b.begin(ctx, "execute_code", args{"session_id": fmt.Sprint("busy", i), "code": "import time; time.sleep(280)", "timeout": 300})
	}
	b.sessions("running", n)
}

// refusal waits until a call is refused with an error that has these words.
func (b boxes) refusal(ctx context.Context, words, tool string, a args) {
	b.t.Helper()
	last := ""
	if !polltest.Soon(time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, _, text, err := b.call(ctx, tool, a)
		last = fmt.Sprint(text, err)
		return strings.Contains(last, words)
	}) {
		b.t.Fatalf("%s %v: got %s, want it refused with %q", tool, a, last, words)
	}
}

var loads = []load{
	{name: "busy box", attack: func(ctx context.Context, b *attacker) {
		b.must("execute_code", args{"session_id": "busy0", "code": "x = 1"})
		b.must("snapshot_session", args{"session_id": "busy0", "name": "of busy"})
		occupied(ctx, b, 1)
		for range 5 {
			b.begin(ctx, "snapshot_session", args{"session_id": "busy0"})
			b.begin(ctx, "fork_session", args{"session_id": "busy0"})
		}
		b.sessions("creating", 5)
		for range 12 {
			b.begin(ctx, "restore_session", args{"snapshot_id": "of busy", "session_id": "busy0"})
		}
	}},
	{name: "held slot", attack: func(ctx context.Context, b *attacker) {
		for i := range 4 {
			b.must("execute_code", args{"session_id": fmt.Sprint("large", i), "code": "import os; x = os.urandom(48 << 20)"})
		}
		for i := range 4 {
			c := b.client()
			b.calls.Go(func() {
				for ctx.Err() == nil {
					_, out, _, err := c.call(ctx, "snapshot_session", args{"session_id": fmt.Sprint("large", i)})
					if err == nil {
						c.call(ctx, "delete_snapshot", args{"snapshot_id": out["snapshot_id"]})
					}
				}
			})
		}
	}},
	{name: "full disk", attack: func(_ context.Context, b *attacker) {
		for i := range 4 {
			b.must("execute_code", args{"session_id": fmt.Sprint("large", i), "code": "import os; x = os.urandom(80 << 20)"})
		}
		for n := range 100 {
			res, _, text, err := b.call(b.t.Context(), "snapshot_session", args{"session_id": fmt.Sprint("large", n%4)})
			if err != nil {
				b.t.Fatal(err)
			}
			if res.IsError {
				if !strings.Contains(text, "LIMIT") && !strings.Contains(text, "limit") {
					b.t.Errorf("the last snapshot: got %s, want a limit", text)
				}
				return
			}
		}
		b.t.Error("100 snapshots were not refused")
	}},
	{name: "full queue", attack: func(ctx context.Context, b *attacker) {
		occupied(ctx, b, 1)
		for range 17 {
			b.begin(ctx, "execute_code", args{"session_id": "busy0", "code": "1"})
			b.begin(ctx, "execute_command", args{"session_id": "busy0", "command": "sleep 280"})
		}
		b.refusal(ctx, "calls wait already", "execute_code", args{"session_id": "busy0", "code": "1"})
	}},
	{name: "full memory", attack: func(ctx context.Context, b *attacker) {
		occupied(ctx, b, 6)
		b.refusal(ctx, "Limit per user exceeded", "execute_code", args{"code": "1"})
		b.refusal(ctx, "Limit per user exceeded", "create_context", args{"name": "more"})
	}},
}

// TestNeighbor has one owner reach every limit that owners share, while another one uses
// every tool: the other's calls succeed in about the time that they take otherwise, and
// their idle boxes keep what they had.
func TestNeighbor(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	k := newTokens(t)
	s := startServer(t, t.TempDir(), append([]string{"--tokens-file", k.file}, neighborFlags...)...)
	bob := s.as(t, k.bob)
	bob.execute("idle", "kept = 'since the beginning'; open('idle.txt', 'w').write(kept)")
	tour(bob) // builds what is missing
	alone := tour(bob)
	for _, tool := range tools.All() {
		if alone[tool.Def.Name] == 0 && !tool.NeedsCode() {
			t.Errorf("%s is not part of the tour", tool.Def.Name)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	for _, l := range loads {
		t.Run(l.name, func(t *testing.T) {
			bob := s.as(t, k.bob)
			alice := &attacker{boxes: s.as(t, k.alice), client: func() boxes { return s.as(t, k.alice) }}
			defer tidy(alice.boxes)
			ctx, cancel := context.WithCancel(t.Context())
			defer alice.calls.Wait()
			defer cancel()
			l.attack(ctx, alice)
			for tool, took := range tour(bob) {
				limit := max(neighborFactor*alone[tool], neighborFloor)
				t.Logf("%s took %v, %v alone", tool, took.Round(time.Millisecond), alone[tool].Round(time.Millisecond))
				if took > limit {
					t.Errorf("%s took %v, %v alone; want at most %v", tool, took, alone[tool], limit)
				}
			}
			eventually(t, "the idle session leaves memory", time.Minute, func() bool {
				got := bob.must("get_sessions", args{"session_id": "idle"})["sessions"].([]any)[0].(args)
				return got["status"] == "hibernated"
			})
			bob.want(bob.execute, "idle", "print(kept, open('idle.txt').read())", "since the beginning since the beginning")
		})
	}
}

// tidy removes all that an owner has.
func tidy(b boxes) {
	for _, s := range b.items("get_sessions", "sessions") {
		b.call(b.t.Context(), "stop_session", args{"session_id": s["session_id"]})
	}
	for _, s := range b.items("list_snapshots", "snapshots") {
		b.must("delete_snapshot", args{"snapshot_id": s["snapshot_id"]})
	}
}
