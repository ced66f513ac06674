//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

type args = map[string]any

// boxes is a client that calls tools.
type boxes struct {
	t *testing.T
	c *mcp.ClientSession
}

// call returns the structured content and the first text of an answer.
func (b boxes) call(ctx context.Context, tool string, a args) (*mcp.CallToolResult, args, string, error) {
	res, err := b.c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: a})
	if err != nil {
		return nil, nil, "", err
	}
	out, _ := res.StructuredContent.(args)
	if source, ok := res.Meta["glovebox/source"]; ok {
		out["source"] = source
	}
	text := ""
	if len(res.Content) > 0 {
		if part, ok := res.Content[0].(*mcp.TextContent); ok {
			text = part.Text
		}
	}
	return res, out, text, nil
}

// must calls a tool, which must succeed.
func (b boxes) must(tool string, a args) args {
	b.t.Helper()
	res, out, text, err := b.call(b.t.Context(), tool, a)
	if err != nil || res.IsError {
		b.t.Fatalf("%s %v: got error %v, answer %s", tool, a, err, text)
	}
	return out
}

// refused calls a tool, which must fail with this code (error_code, or the code in the
// text) and these words.
func (b boxes) refused(tool string, a args, code string, words ...string) {
	b.t.Helper()
	res, _, text, err := b.call(b.t.Context(), tool, a)
	got := ""
	if e := (*jsonrpc.Error)(nil); errors.As(err, &e) {
		var data struct {
			Code string `json:"error_code"`
		}
		if err := json.Unmarshal(e.Data, &data); err != nil {
			b.t.Fatalf("%s %v: data %s: %v", tool, a, e.Data, err)
		}
		got, text = data.Code, e.Message
	} else if err == nil && res.IsError {
		var body struct{ Error, Code string }
		if e, ok := res.Meta["glovebox/error"].(args); ok {
			data, _ := e["data"].(args)
			body.Code, _ = data["error_code"].(string)
			body.Error = text
		} else if err := json.Unmarshal([]byte(text), &body); err != nil {
			b.t.Fatalf("%s %v: text %s: %v", tool, a, text, err)
		}
		got, text = body.Code, body.Error
	}
	if got != code {
		b.t.Errorf("%s %v: got code %q (%v, %s), want %q", tool, a, got, err, text, code)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			b.t.Errorf("%s %v: got %q, want it to say %q", tool, a, text, w)
		}
	}
}

// context creates a context and returns its id.
func (b boxes) context(name, language string) string {
	b.t.Helper()
	return b.must("create_context", args{"name": name, "language": language})["context_id"].(string)
}

// run runs code in a context and returns what it printed.
func (b boxes) run(id, code string) string {
	b.t.Helper()
	out := b.must("run_code", args{"context_id": id, "code": code, "timeout": 120})
	if out["success"] != true {
		b.t.Fatalf("run %q: got %v", code, out)
	}
	return strings.TrimSpace(out["stdout"].(string))
}

// execute runs code in a session and returns what it printed.
func (b boxes) execute(id, code string) string {
	b.t.Helper()
	return strings.TrimSpace(b.must("execute_code", args{"session_id": id, "code": code})["stdout"].(string))
}

// want runs code and compares what it printed.
func (b boxes) want(run func(id, code string) string, id, code, want string) {
	b.t.Helper()
	if got := run(id, code); got != want {
		b.t.Errorf("%s: %q printed %q, want %q", id, code, got, want)
	}
}

// items returns a list in the answer of a tool.
func (b boxes) items(tool, list string) []args {
	b.t.Helper()
	var items []args
	for _, item := range b.must(tool, nil)[list].([]any) {
		items = append(items, item.(args))
	}
	return items
}

// status returns the status of a context in list_contexts; "" if it is not listed.
func (b boxes) status(id string) string {
	b.t.Helper()
	for _, c := range b.items("list_contexts", "contexts") {
		if c["context_id"] == id {
			return c["status"].(string)
		}
	}
	return ""
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	polltest.Until(t, limit, what, ok)
}

// plain are settings for servers whose tests do not care where boxes come from.
var plain = []string{"--preload", "none", "--pool-size", "0"}

func TestSnapshots_Tools(t *testing.T) {
	shared := t.TempDir()
	s := startServer(t, t.TempDir(), append([]string{"--volume", shared + ":/shared:rw"}, plain...)...)
	c := s.connect()
	for _, story := range []struct {
		name string
		tell func(b boxes)
	}{
		{"a context is rolled back", rollBackContext},
		{"a session is rolled back", rollBackSession},
		{"a context is forked", forkContexts},
		{"a session is forked", forkSessions},
		{"a fork draws other random numbers", forkRandomness},
		{"a fork waits for the call that runs", func(b boxes) { forkWaits(b, shared) }},
		{"an interpreter is killed", killedInterpreter},
		{"what is not there", snapshotsRefused},
	} {
		t.Run(story.name, func(t *testing.T) { story.tell(boxes{t, c}) })
	}
}

func rollBackContext(b boxes) {
	id := b.context("rolled", "python")
	b.run(id, "x = 1; open('f', 'w').write('one')")
	snap := b.must("snapshot_context", args{"context_id": id, "name": "before", "description": "x is 1"})
	snapID := snap["snapshot_id"].(string)
	if size, _ := snap["size_bytes"].(float64); snapID == "" || size < 1<<20 || snap["created_at"] == "" {
		b.t.Errorf("snapshot_context: got %v", snap)
	}
	b.want(b.run, id, "print(x)", "1") // it continues
	b.run(id, "x = 2; import os; os.remove('f')")

	back := b.must("restore_context", args{"snapshot_id": snapID, "context_id": id})
	if back["context_id"] != id || back["name"] != "rolled" || back["rolled_back"] != true || back["source"] != "snapshot" || back["language"] != "python" {
		b.t.Errorf("restore_context: got %v, want the same context, rolled back", back)
	}
	b.want(b.run, id, "print(x, open('f').read())", "1 one")
	out := b.must("run_code", args{"context_id": id, "code": "1"})
	if out["state_lost"] != nil || out["notes"] != nil {
		b.t.Errorf("run_code after the roll back: got %v, want no talk of loss", out)
	}
	// Again, by the names of both.
	b.run(id, "x = 3")
	b.must("restore_context", args{"snapshot_id": "before", "context_id": "rolled"})
	b.want(b.run, id, "print(x)", "1")

	// A new one, beside it.
	b.run(id, "x = 4")
	other := b.must("restore_context", args{"snapshot_id": snapID, "name": "beside"})
	otherID := other["context_id"].(string)
	if otherID == id || other["name"] != "beside" || other["rolled_back"] != false || other["source"] != "snapshot" {
		b.t.Errorf("restore_context to a new one: got %v", other)
	}
	b.want(b.run, otherID, "print(x, open('f').read())", "1 one")
	b.want(b.run, id, "print(x)", "4")
	b.refused("restore_context", args{"snapshot_id": snapID, "context_id": id, "name": "n"}, "INVALID_PARAMS", "either context_id or name")

	// The snapshot outlives its box, and restored boxes outlive the snapshot.
	b.must("stop_context", args{"context_id": id})
	b.refused("restore_context", args{"snapshot_id": snapID, "context_id": id}, "CONTEXT_NOT_FOUND", "was stopped", "Leave out context_id")
	third := b.must("restore_context", args{"snapshot_id": snapID})["context_id"].(string)
	list := b.items("list_snapshots", "snapshots")
	if len(list) != 1 || list[0]["snapshot_id"] != snapID || list[0]["context_id"] != id || list[0]["session_id"] != nil ||
		list[0]["name"] != "before" || list[0]["description"] != "x is 1" || list[0]["language"] != "python" || list[0]["flavor"] != "small" {
		b.t.Errorf("list_snapshots: got %v", list)
	}
	if gone := b.must("delete_snapshot", args{"snapshot_id": snapID}); gone["status"] != "deleted" {
		b.t.Errorf("delete_snapshot: got %v", gone)
	}
	b.refused("restore_context", args{"snapshot_id": snapID}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: "+snapID)
	b.refused("delete_snapshot", args{"snapshot_id": snapID}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: "+snapID)
	if list := b.items("list_snapshots", "snapshots"); len(list) != 0 {
		b.t.Errorf("list_snapshots after the end: got %v", list)
	}
	for _, id := range []string{otherID, third} {
		b.want(b.run, id, "print(x)", "1")
		b.must("stop_context", args{"context_id": id})
	}
}

func rollBackSession(b boxes) {
	b.must("execute_code", args{"session_id": "rolled", "code": "x = 1"})
	_, snap, text, err := b.call(b.t.Context(), "snapshot_session", args{"session_id": "rolled"})
	if err != nil {
		b.t.Fatal(err)
	}
	snapID := snap["snapshot_id"].(string)
	if !strings.HasPrefix(text, "Took snapshot "+snapID+" of session rolled (") || !strings.HasSuffix(text, " MB)") {
		b.t.Errorf("snapshot_session: got text %q", text)
	}
	b.execute("rolled", "x = 2")
	_, back, text, err := b.call(b.t.Context(), "restore_session", args{"snapshot_id": snapID, "session_id": "rolled"})
	if err != nil || back["session_id"] != "rolled" || back["rolled_back"] != true || back["source"] != "snapshot" || back["template"] != "python" ||
		text != "Session rolled is rolled back to snapshot "+snapID {
		b.t.Errorf("restore_session: got %v, %q, %v", back, text, err)
	}
	out := b.must("execute_code", args{"session_id": "rolled", "code": "print(x)"})
	if out["stdout"] != "1\n" || out["session_created"] != false || out["source"] != nil || out["state_lost"] != nil {
		b.t.Errorf("execute_code after the roll back: got %v", out)
	}

	// An unknown id, and no id, create new sessions.
	made := b.must("restore_session", args{"snapshot_id": snapID, "session_id": "chosen"})
	if made["session_id"] != "chosen" || made["rolled_back"] != false {
		b.t.Errorf("restore_session to a new id: got %v", made)
	}
	b.want(b.execute, "chosen", "print(x)", "1")
	made = b.must("restore_session", args{"snapshot_id": snapID})
	id, _ := made["session_id"].(string)
	if len(id) != 36 || made["rolled_back"] != false {
		b.t.Errorf("restore_session without an id: got %v", made)
	}
	b.want(b.execute, id, "print(x)", "1")
	// A session that has ended is restored under its id.
	b.must("stop_session", args{"session_id": "chosen"})
	b.must("restore_session", args{"snapshot_id": snapID, "session_id": "chosen"})
	out = b.must("execute_code", args{"session_id": "chosen", "code": "print(x)"})
	if out["stdout"] != "1\n" || out["state_lost"] != nil {
		b.t.Errorf("execute_code in a session that came back: got %v", out)
	}

	b.refused("restore_context", args{"snapshot_id": snapID}, "INVALID_PARAMS", "is of a session", "restore_session")
	b.refused("restore_session", args{"snapshot_id": snapID, "session_id": "a/b"}, "INVALID_PARAMETERS", "Invalid session id")
	b.must("delete_snapshot", args{"snapshot_id": snapID})
	b.refused("restore_session", args{"snapshot_id": snapID, "session_id": "rolled"}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: "+snapID)
	b.want(b.execute, "rolled", "print(x)", "1") // unharmed by what was refused
	for _, id := range []string{"rolled", "chosen", id} {
		b.must("stop_session", args{"session_id": id})
	}
}

func forkContexts(b boxes) {
	parent := b.context("parent", "python")
	b.run(parent, "data = list(range(1000)); open('f', 'w').write('parent')")
	fork := b.must("fork_context", args{"context_id": parent})
	child := fork["context_id"].(string)
	if child == parent || fork["name"] != "parent copy" || fork["source"] != "fork" || fork["language"] != "python" {
		b.t.Errorf("fork_context: got %v", fork)
	}
	second := b.must("fork_context", args{"context_id": "parent", "name": "second", "description": "d"})["context_id"].(string)
	grandchild := b.must("fork_context", args{"context_id": child})["context_id"].(string)
	ids := map[string]string{parent: "parent", child: "child", second: "second", grandchild: "grandchild"}
	for id, name := range ids {
		b.run(id, "data.append("+strconv.Quote(name)+"); open('f', 'a').write("+strconv.Quote(name)+")")
	}
	for id, name := range ids {
		b.want(b.run, id, "print(len(data), sum(data[:1000]), data[-1], open('f').read())", "1001 499500 "+name+" parent"+name)
		if got := b.status(id); got != "active" {
			b.t.Errorf("status of %s: got %q", name, got)
		}
	}
	// One ends, the others do not.
	b.must("stop_context", args{"context_id": parent})
	delete(ids, parent)
	for id, name := range ids {
		b.want(b.run, id, "print(data[-1])", name)
		b.must("stop_context", args{"context_id": id})
	}
}

func forkSessions(b boxes) {
	b.must("execute_code", args{"session_id": "origin", "code": "let x = [1, 2]", "template": "node"})
	_, fork, text, err := b.call(b.t.Context(), "fork_session", args{"session_id": "origin", "new_session_id": "twin"})
	if err != nil || fork["session_id"] != "twin" || fork["source"] != "fork" || fork["template"] != "node" || fork["flavor"] != "small" ||
		text != "Session twin is a copy of session origin; the two are independent" {
		b.t.Fatalf("fork_session: got %v, %q, %v", fork, text, err)
	}
	id := b.must("fork_session", args{"session_id": "origin"})["session_id"].(string)
	b.execute("origin", "x.push('origin')")
	b.execute("twin", "x.push('twin')")
	b.want(b.execute, "origin", "console.log(x.join())", "1,2,origin")
	b.want(b.execute, "twin", "console.log(x.join())", "1,2,twin")
	b.want(b.execute, id, "console.log(x.join())", "1,2")
	b.refused("fork_session", args{"session_id": "origin", "new_session_id": "twin"}, "INVALID_PARAMETERS", "Session twin exists already")
	b.refused("fork_session", args{"session_id": "origin", "new_session_id": "a/b"}, "INVALID_PARAMETERS", "Invalid session id")
	for _, id := range []string{"origin", "twin", id} {
		b.must("stop_session", args{"session_id": id})
	}
}

func forkRandomness(b boxes) {
	for language, code := range map[string]string{
		"python":     "import os, random, uuid; print(random.random(), uuid.uuid4(), os.urandom(16).hex())",
		"javascript": "console.log(Math.random(), crypto.randomUUID(), require('crypto').randomBytes(16).toString('hex'))",
	} {
		parent := b.context("random "+language, language)
		b.run(parent, code) // so that there is a state to copy
		ids := []string{parent}
		for range 2 {
			ids = append(ids, b.must("fork_context", args{"context_id": parent})["context_id"].(string))
		}
		snap := b.must("snapshot_context", args{"context_id": parent})["snapshot_id"]
		for range 2 {
			ids = append(ids, b.must("restore_context", args{"snapshot_id": snap})["context_id"].(string))
		}
		seen := make(map[string]string)
		for _, id := range ids {
			numbers := strings.Fields(b.run(id, code))
			if len(numbers) != 3 {
				b.t.Errorf("%s: got %q, want 3 numbers", language, numbers)
			}
			for _, n := range numbers {
				if seen[n] != "" {
					b.t.Errorf("%s: %s and %s drew the same %s", language, seen[n], id, n)
				}
				seen[n] = id
			}
			b.must("stop_context", args{"context_id": id})
		}
		b.must("delete_snapshot", args{"snapshot_id": snap})
	}
}

// A fork of a busy session has the state after the running code, which runs in the
// original only. The code ends when the shared directory has a file.
func forkWaits(b boxes, shared string) {
	b.must("execute_code", args{"session_id": "busy", "code": "import time, pathlib"})
	type answer struct {
		out args
		err error
	}
	ran := make(chan answer, 1)
	go func() {
		_, out, _, err := b.call(b.t.Context(), "execute_code", args{
			"session_id": "busy", "code": "while not pathlib.Path('/shared/go').exists(): time.sleep(0.05)\nopen('/shared/log', 'a').write('ended ')\nended = True",
		})
		ran <- answer{out, err}
	}()
	eventually(b.t, "the code runs", time.Minute, func() bool {
		return slices.ContainsFunc(b.items("get_sessions", "sessions"), func(s args) bool { return s["session_id"] == "busy" && s["status"] == "running" })
	})
	forked := make(chan answer, 1)
	go func() {
		_, out, _, err := b.call(b.t.Context(), "fork_session", args{"session_id": "busy", "new_session_id": "busy-fork"})
		forked <- answer{out, err}
	}()
	time.Sleep(500 * time.Millisecond) // for a fork that would not wait to come about
	select {
	case f := <-forked:
		b.t.Fatalf("the fork did not wait: got %v, %v", f.out, f.err)
	default:
	}
	if err := os.WriteFile(filepath.Join(shared, "go"), nil, 0o644); err != nil {
		b.t.Fatal(err)
	}
	if r := <-ran; r.err != nil || r.out["success"] != true {
		b.t.Errorf("the code that ran: got %v, %v", r.out, r.err)
	}
	if f := <-forked; f.err != nil {
		b.t.Fatalf("fork: %v", f.err)
	}
	for _, id := range []string{"busy", "busy-fork"} {
		b.want(b.execute, id, "print(ended, open('/shared/log').read())", "True ended")
		b.must("stop_session", args{"session_id": id})
	}
}

// killInterpreter creates a session and kills its interpreter between two calls.
func killInterpreter(b boxes, id string) {
	pid := b.execute(id, "import os; x = 1; open('f', 'w').write('kept'); print(os.getpid())")
	b.must("execute_command", args{"session_id": id, "command": "kill -9 " + pid + "; while kill -0 " + pid + " 2>/dev/null; do sleep 0.05; done"})
}

// wantLost calls such a session or a copy of it: the first answer reports the loss.
func wantLost(b boxes, id string) {
	b.t.Helper()
	for _, lost := range []any{true, nil} {
		out := b.must("execute_code", args{"session_id": id, "code": "print('x' in globals(), open('f').read())"})
		notes, _ := json.Marshal(out["notes"])
		if out["stdout"] != "False kept\n" || out["state_lost"] != lost || strings.Contains(string(notes), "variables and files are kept") {
			b.t.Errorf("%s: got %v, want state_lost %v", id, out, lost)
		}
	}
}

// A copy of a box whose interpreter was killed reports the loss, as the box itself does.
func killedInterpreter(b boxes) {
	killInterpreter(b, "killed")
	b.must("fork_session", args{"session_id": "killed", "new_session_id": "killed-fork"})
	snap := b.must("snapshot_session", args{"session_id": "killed"})["snapshot_id"]
	b.must("restore_session", args{"snapshot_id": snap, "session_id": "killed-restored"})
	for _, id := range []string{"killed", "killed-fork", "killed-restored"} {
		wantLost(b, id)
		b.must("stop_session", args{"session_id": id})
	}
	b.must("delete_snapshot", args{"snapshot_id": snap})
}

func snapshotsRefused(b boxes) {
	id := b.context("there", "python")
	snap := b.must("snapshot_context", args{"context_id": id})["snapshot_id"]
	b.refused("fork_context", args{"context_id": "ctx-none"}, "CONTEXT_NOT_FOUND", "Context not found: ctx-none")
	b.refused("snapshot_context", args{"context_id": "ctx-none"}, "CONTEXT_NOT_FOUND", "Context not found: ctx-none")
	b.refused("restore_context", args{"snapshot_id": snap, "context_id": "ctx-none"}, "CONTEXT_NOT_FOUND", "Context not found: ctx-none", "Leave out context_id")
	b.refused("restore_context", args{"snapshot_id": "none"}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: none", "list_snapshots")
	b.refused("restore_context", args{"snapshot_id": "../../" + id, "context_id": id}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: ../../")
	b.refused("restore_context", args{"snapshot_id": strings.Repeat("x", 10000)}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: x")
	b.refused("delete_snapshot", args{"snapshot_id": "none"}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: none")
	b.refused("fork_context", args{"context_id": id, "name": "a/b"}, "INVALID_CONTEXT_NAME", "Invalid context name")
	b.refused("snapshot_context", args{"context_id": id, "name": "a/b"}, "INVALID_PARAMS", "Invalid snapshot name")
	b.refused("fork_session", args{"session_id": "none"}, "SESSION_NOT_FOUND", "Session not found: none")
	b.refused("snapshot_session", args{"session_id": "none"}, "SESSION_NOT_FOUND", "Session not found: none")
	b.refused("restore_session", args{"snapshot_id": "none", "session_id": "s"}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: none")
	b.refused("restore_session", args{"snapshot_id": snap}, "INVALID_PARAMETERS", "is of a context", "restore_context")
	if sessions := b.items("get_sessions", "sessions"); len(sessions) != 0 {
		b.t.Errorf("sessions after what was refused: got %v", sessions)
	}
	b.must("delete_snapshot", args{"snapshot_id": snap})
	b.must("stop_context", args{"context_id": id})
}

// The next server has the snapshots and the boxes.
func TestSnapshots_SurviveRestart(t *testing.T) {
	state := t.TempDir()
	s := startServer(t, state, append([]string{"--pause-after", "2"}, plain...)...)
	b := boxes{t, s.connect()}
	id := b.context("kept", "python")
	b.run(id, "x = 1")
	snap := b.must("snapshot_context", args{"context_id": id})["snapshot_id"]
	b.run(id, "x = 2")
	killInterpreter(b, "killed")
	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(time.Minute); code != 0 {
		t.Fatalf("got exit code %d\n%s", code, log)
	}

	s = startServer(t, state, append([]string{"--pause-after", "2"}, plain...)...)
	b = boxes{t, s.connect()}
	if got := b.status(id); got != "hibernated" {
		t.Errorf("status after a restart: got %q, want hibernated", got)
	}
	out := b.must("run_code", args{"context_id": id, "code": "print(x)"})
	notes, _ := json.Marshal(out["notes"])
	if out["stdout"] != "2\n" || out["state_lost"] != nil || !strings.Contains(string(notes), "This context was hibernated at 20") || !strings.Contains(string(notes), "its variables and files are kept") {
		t.Errorf("run_code after a restart: got %v", out)
	}
	wantLost(b, "killed")
	if out = b.must("run_code", args{"context_id": id, "code": "print(x)"}); out["notes"] != nil {
		t.Errorf("run_code in a box that was woken before: got %v", out)
	}
	b.must("restore_context", args{"snapshot_id": snap, "context_id": id})
	b.want(b.run, id, "print(x)", "1")
	eventually(t, "the box is written to disk and paused", 2*time.Minute, func() bool { return b.status(id) == "paused" })
	b.run(id, "x = 3")
	s.cmd.Process.Kill()
	s.cmd.Wait() // its error says that it was killed

	b = boxes{t, startServer(t, state, plain...).connect()}
	out = b.must("run_code", args{"context_id": id, "code": "print(x)"})
	reason, _ := out["lost_reason"].(string)
	notes, _ = json.Marshal(out["notes"])
	// The box may have been written once more before the kill.
	if !slices.Contains([]any{"1\n", "3\n"}, out["stdout"]) || out["state_lost"] != true || !strings.HasPrefix(reason, "the server was killed; what the context did after 20") ||
		!strings.Contains(string(notes), "what it did after that is lost") {
		t.Errorf("run_code after the server was killed: got %v", out)
	}
	b.want(b.run, b.must("restore_context", args{"snapshot_id": snap})["context_id"].(string), "print(x)", "1")
}

// Answers say where a box came from.
func TestSources(t *testing.T) {
	state := t.TempDir()
	for source, flags := range map[string][]string{
		"cold": {"--preload", "none", "--pool-size", "0"},
		"warm": {"--preload", "none", "--pool-size", "1"},
	} {
		t.Run(source, func(t *testing.T) {
			b := boxes{t, startServer(t, state, flags...).connect()}
			seen := make(map[any]bool)
			eventually(t, "contexts are "+source, 2*time.Minute, func() bool {
				c := b.must("create_context", args{"name": "c"})
				b.must("stop_context", args{"context_id": c["context_id"]})
				seen[c["source"]] = true
				return c["source"] == source
			})
			eventually(t, "sessions are "+source, 2*time.Minute, func() bool {
				s := b.must("execute_code", args{"code": "1"})
				b.must("stop_session", args{"session_id": s["session_id"]})
				seen[s["source"]] = true
				return s["source"] == source
			})
			for s := range maps.Keys(seen) {
				if !slices.Contains([]any{"warm", "cold", "boot"}, s) || s == "warm" && source == "cold" {
					t.Errorf("got source %v", s)
				}
			}
		})
	}
}

// An owner's snapshots do not exist for other owners, not even on disk.
func TestOwners_Snapshots(t *testing.T) {
	tokens := newTokens(t)
	s := startServer(t, t.TempDir(), append([]string{"--tokens-file", tokens.file}, plain...)...)
	alice, bob := s.as(t, tokens.alice), s.as(t, tokens.bob)
	id := alice.context("mine", "python")
	alice.run(id, "secret = 'of alice'")
	snap := alice.must("snapshot_context", args{"context_id": id, "name": "named"})["snapshot_id"].(string)
	alice.execute("hers", "secret = 'of alice'")
	sessionSnap := alice.must("snapshot_session", args{"session_id": "hers"})["snapshot_id"].(string)
	bobs := bob.context("mine", "python")

	if list := bob.items("list_snapshots", "snapshots"); len(list) != 0 {
		t.Errorf("the other's list_snapshots: got %v", list)
	}
	bob.refused("fork_context", args{"context_id": id}, "CONTEXT_NOT_FOUND", "Context not found: "+id)
	bob.refused("snapshot_context", args{"context_id": id}, "CONTEXT_NOT_FOUND", "Context not found: "+id)
	bob.refused("fork_session", args{"session_id": "hers"}, "SESSION_NOT_FOUND", "Session not found: hers")
	bob.refused("snapshot_session", args{"session_id": "hers"}, "SESSION_NOT_FOUND", "Session not found: hers")
	for _, name := range []string{snap, "named"} {
		bob.refused("restore_context", args{"snapshot_id": name}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: "+name)
		bob.refused("restore_context", args{"snapshot_id": name, "context_id": bobs}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: "+name)
		bob.refused("delete_snapshot", args{"snapshot_id": name}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: "+name)
	}
	bob.refused("restore_session", args{"snapshot_id": sessionSnap, "session_id": "hers"}, "SNAPSHOT_NOT_FOUND", "Snapshot not found: "+sessionSnap)
	// A snapshot cannot be restored into another owner's box either.
	own := bob.must("snapshot_context", args{"context_id": bobs})["snapshot_id"]
	bob.refused("restore_context", args{"snapshot_id": own, "context_id": id}, "CONTEXT_NOT_FOUND", "Context not found: "+id)
	bob.want(bob.run, bobs, "print('secret' in dir())", "False")

	if list := alice.items("list_snapshots", "snapshots"); len(list) != 2 {
		t.Errorf("list_snapshots: got %v, want the own two", list)
	}
	alice.run(id, "secret = None")
	alice.must("restore_context", args{"snapshot_id": "named", "context_id": id})
	alice.want(alice.run, id, "print(secret)", "of alice")
}
