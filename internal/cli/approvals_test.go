//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestCode_approvals has clients of both eras approve calls of code in boxes, while the
// boxes use no CPU, and restarts the server.
func TestCode_approvals(t *testing.T) {
	dir := t.TempDir()
	state, file, audit := filepath.Join(dir, "state"), filepath.Join(dir, "mcp.json"), filepath.Join(dir, "audit")
	writeServers(t, file, map[string]definition{"a": keeperNamed("apple")})
	trusting(t, state, "--config", file, "a")
	var s *serverProcess
	start := func() {
		s = startServer(t, state, "--preload", "none", "--pool-size", "0", "--tools", file, "--audit-log", audit)
		s.awaitReady()
	}
	start()
	const timeout = 10 * time.Second // of the code
	var decision atomic.Value        // of the next questions
	var asked atomic.Int64
	connect := func(version string) *mcp.ClientSession {
		o := &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			if asked.Add(1); !strings.Contains(req.Params.Message, "1. a.put (may change or delete data)\n") {
				t.Errorf("the question is %q", req.Params.Message)
			}
			begun := time.Now()
			if !polltest.Soon(20*time.Second, func() bool {
				before := cpuBelow(t, s.cmd.Process.Pid)
				time.Sleep(500 * time.Millisecond)
				return cpuBelow(t, s.cmd.Process.Pid)-before <= 50*time.Millisecond
			}) {
				t.Error("the box uses CPU time while it is parked")
			}
			if decision.Load() == "once" { // longer than the time-out of the code
				time.Sleep(time.Until(begun.Add(timeout + time.Second)))
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"call_1": decision.Load()}}, nil
		}}
		c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.endpoint}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	// A thread keeps a processor busy, and the code takes less than its time-out.
	put := func(c *mcp.ClientSession, name string) string {
		t.Helper()
		res, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "execute_code", Arguments: map[string]any{"session_id": "x", "timeout": timeout.Seconds(), "code": `
import threading
busy = True
def spin():
    while busy: pass
threading.Thread(target=spin, daemon=True).start()
try:
    print(tools.a.put(name='` + name + `')['name'])
except ToolError as e:
    print(e.code)
busy = False`}})
		if err != nil {
			t.Fatal(err)
		}
		out, _, _ := strings.Cut(res.Content[0].(*mcp.TextContent).Text, "\n[session")
		return out
	}
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		c := connect(version)
		for _, step := range []struct{ decision, name, want string }{
			{"once", "one " + version, "one " + version}, {"deny", "two " + version, "denied"}, {"always", "three " + version, "three " + version},
		} {
			asked.Store(0)
			decision.Store(step.decision)
			if got := put(c, step.name); got != step.want || asked.Load() != 1 {
				t.Errorf("%s, %s: got %q after %d questions, want %q", version, step.decision, got, asked.Load(), step.want)
			}
		}
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(time.Minute); code != 0 {
		t.Fatalf("exit code %d\n%s", code, log)
	}
	start()
	asked.Store(0)
	decision.Store("deny")
	c := connect("2025-11-25")
	if got := put(c, "three 2025-11-25"); got != "three 2025-11-25" || asked.Load() != 0 {
		t.Errorf("after a restart: got %q after %d questions", got, asked.Load())
	}
	if got := put(c, "one 2025-11-25"); got != "denied" || asked.Load() != 1 {
		t.Errorf("an approval for once after a restart: got %q after %d questions", got, asked.Load())
	}

	files, err := filepath.Glob(filepath.Join(state, "approvals", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files of approvals: %q, %v", files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
	log, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"decision":"once","via":"elicitation"`, `"decision":"deny","via":"input_required"`, `"decision":"always","via":"remembered"`,
		`"msg":"approval","who":"local","box":"x","server":"a","tool":"put","sha256":"`,
	} {
		if !strings.Contains(string(log), want) {
			t.Errorf("the audit log lacks %s:\n%s", want, log)
		}
	}
	if strings.Contains(string(log), "three 20") {
		t.Errorf("the audit log has arguments:\n%s", log)
	}
}

// cpuBelow returns the CPU time of the descendants of a process.
func cpuBelow(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parent, used := make(map[int]int), make(map[int]time.Duration)
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name of the program, in parentheses, may contain anything.
		text := string(b)
		own, err := strconv.Atoi(strings.Fields(text)[0])
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if parent[own], err = strconv.Atoi(fields[1]); err != nil {
			t.Fatal(err)
		}
		var user, system int64
		if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
			t.Fatal(err)
		}
		const tick = time.Second / 100
		used[own] = time.Duration(user+system) * tick
	}
	for own, cpu := range used {
		for p := parent[own]; p > 1; p = parent[p] {
			if p == pid {
				sum += cpu
				break
			}
		}
	}
	return sum
}
