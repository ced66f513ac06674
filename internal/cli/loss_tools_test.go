//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// firstCall calls a tool in a box that has the file f and the variable x.
type firstCall struct {
	tool string
	args args   // beside the id of the box
	id   string // the name of the argument that has it
}

var firstCalls = []firstCall{
	{"execute_code", args{"code": "1"}, "session_id"},
	{"execute_command", args{"command": "true"}, "session_id"},
	{"upload_file", args{"path": "g", "content": "g"}, "session_id"},
	{"download_file", args{"path": "f"}, "session_id"},
	{"list_files", args{}, "session_id"},
	{"snapshot_session", args{}, "session_id"},
	{"fork_session", args{}, "session_id"},
	{"run_code", args{"code": "1"}, "context_id"},
	{"snapshot_context", args{}, "context_id"},
	{"fork_context", args{}, "context_id"},
}

// reportsNoLoss are the other tools that take a box, and why they report no loss.
var reportsNoLoss = map[string]string{
	"restore_session": "the caller gives up the state of the box",
	"restore_context": "the caller gives up the state of the box",
	"stop_session":    "the caller gives up the state of the box",
	"stop_context":    "the caller gives up the state of the box",
	"get_sessions":    "lists the box and does not wake it",
}

// The sentries of boxes are killed after the boxes had been written to disk and used again.
// Each tool that can be the first to wake such a box reports that the later state is lost,
// and neither it nor another tool reports that again.
func TestLoss_EachToolReportsItOnce(t *testing.T) {
	shared := t.TempDir()
	s := startServer(t, t.TempDir(), append([]string{
		"--volume", shared + ":/shared:rw", "--pause-after", "1", "--max-sessions", "20", "--max-contexts", "20",
	}, plain...)...)
	b := boxes{t, s.connect()}
	reportingTools(b)

	// Boxes with x = 1 on disk.
	ids := make(map[string]string) // of the box of each tool
	for _, first := range append(slices.Clone(firstCalls), firstCall{"restore_session", nil, "session_id"}, firstCall{"restore_context", nil, "context_id"}, firstCall{"resource", nil, "session_id"}) {
		const code = "x = 1; open('f', 'w').write('f')"
		if first.id == "session_id" {
			ids[first.tool] = "of-" + first.tool
			b.must("execute_code", args{"session_id": ids[first.tool], "code": code})
		} else {
			ids[first.tool] = b.context("of "+first.tool, "python")
			b.run(ids[first.tool], code)
		}
	}
	kept := map[string]any{
		"restore_session": b.must("snapshot_session", args{"session_id": ids["restore_session"]})["snapshot_id"],
		"restore_context": b.must("snapshot_context", args{"context_id": ids["restore_context"]})["snapshot_id"],
	}
	status := func() map[string]any {
		all := make(map[string]any)
		for _, item := range b.items("get_sessions", "sessions") {
			all[item["session_id"].(string)] = item["status"]
		}
		for _, item := range b.items("list_contexts", "contexts") {
			all[item["context_id"].(string)] = item["status"]
		}
		return all
	}
	eventually(t, "all boxes are on disk", 2*time.Minute, func() bool {
		all := status()
		for _, id := range ids {
			if all[id] != "paused" {
				return false
			}
		}
		return true
	})

	// They are killed while x is 2: a box in a call is not written.
	early := make(chan string, len(ids)) // calls that ended before the sentries
	for tool, id := range ids {
		go func() {
			name, argument := "execute_code", "session_id"
			if strings.HasSuffix(tool, "context") || tool == "run_code" {
				name, argument = "run_code", "context_id"
			}
			_, _, text, err := b.call(context.WithoutCancel(t.Context()), name, args{
				argument: id, "timeout": 300, "code": "import time; x = 2; open('/shared/" + id + "', 'w').close(); time.sleep(300)",
			})
			early <- fmt.Sprint(tool, ": ", text, err)
		}()
	}
	eventually(t, "the code runs in all boxes", 2*time.Minute, func() bool {
		select {
		case ended := <-early:
			t.Fatalf("a call ended: %s", ended)
		default:
		}
		entries, err := os.ReadDir(shared)
		return err == nil && len(entries) == len(ids)
	})
	killed := 0
	for id, process := range processesBelow(t, s.cmd.Process.Pid) {
		pid, err := strconv.Atoi(id)
		if err == nil && strings.HasPrefix(process.cmdline, "runsc-sandbox\x00") && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed != len(ids) {
		t.Fatalf("killed %d sentries of %d boxes", killed, len(ids))
	}
	eventually(t, "the server has noticed", time.Minute, func() bool {
		all := status()
		for _, id := range ids {
			if all[id] != "hibernated" {
				return false
			}
		}
		return true
	})
	for range ids {
		<-early
	}

	for _, first := range firstCalls {
		t.Run(first.tool, func(t *testing.T) { reportsOnce(boxes{t, b.c}, first, ids[first.tool]) })
	}
	// The content of a resource has no place for a report: the next call has it.
	t.Run("resource", func(t *testing.T) {
		b := boxes{t, b.c}
		uri := "glovebox://session/" + ids["resource"] + "/home/user/f"
		if res, err := b.c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err != nil || res.Contents[0].Text != "f" {
			t.Fatalf("read %s: got %+v, %v", uri, res, err)
		}
		reportsOnce(b, firstCalls[0], ids["resource"])
	})
	t.Run("restore", func(t *testing.T) {
		b := boxes{t, b.c}
		for _, kind := range []string{"session", "context"} {
			id := ids["restore_"+kind]
			out := b.must("restore_"+kind, args{"snapshot_id": kept["restore_"+kind], kind + "_id": id})
			if out["rolled_back"] != true || out["state_lost"] != nil {
				t.Errorf("restore_%s: got %v, want a box that is rolled back and has lost nothing", kind, out)
			}
			if text := lossIn(b, firstCall{"execute_command", args{"command": "true"}, "session_id"}, id); text != "" {
				t.Errorf("the call after restore_%s: got %q, want no talk of a loss", kind, text)
			}
		}
	})
}

// reportingTools checks that each tool that takes a box is in one of the two lists.
func reportingTools(b boxes) {
	b.t.Helper()
	list, err := b.c.ListTools(b.t.Context(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, tool := range list.Tools {
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil {
			b.t.Fatal(err)
		}
		takes := bytes.Contains(schema, []byte(`"session_id"`)) || bytes.Contains(schema, []byte(`"context_id"`))
		reports := slices.ContainsFunc(firstCalls, func(f firstCall) bool { return f.tool == tool.Name })
		if takes != (reports || reportsNoLoss[tool.Name] != "") {
			b.t.Errorf("%s: takes a box: %t; listed here: %t", tool.Name, takes, !takes)
		}
	}
}

// lossIn calls a tool in a box, and returns the text of its answer if that reports a loss.
func lossIn(b boxes, f firstCall, id string) string {
	b.t.Helper()
	a := args{f.id: id}
	maps.Copy(a, f.args)
	res, out, text, err := b.call(b.t.Context(), f.tool, a)
	if err != nil || res.IsError {
		b.t.Fatalf("%s: got %s, %v", f.tool, text, err)
	}
	lost, reason := out["state_lost"] == true, fmt.Sprint(out["lost_reason"])
	inText := strings.Contains(text, "what it did after that is lost")
	if b.hasLoss(f.tool) && (lost != inText || lost && !strings.HasPrefix(reason, "it crashed; what the ")) {
		b.t.Errorf("%s: state_lost is %t for the reason %q, and its text is %q", f.tool, lost, reason, text)
	}
	if inText {
		return text
	}
	return ""
}

// hasLoss reports whether the results of a tool have the member state_lost.
func (b boxes) hasLoss(tool string) bool {
	b.t.Helper()
	list, err := b.c.ListTools(b.t.Context(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	i := slices.IndexFunc(list.Tools, func(t *mcp.Tool) bool { return t.Name == tool })
	schema, err := json.Marshal(list.Tools[i].OutputSchema)
	return err == nil && bytes.Contains(schema, []byte(`"state_lost"`))
}

// reportsOnce wants the first call, and no later one, to report the loss.
func reportsOnce(b boxes, first firstCall, id string) {
	if lossIn(b, first, id) == "" {
		b.t.Errorf("%s is the first call after the loss, and does not report it", first.tool)
	}
	if text := lossIn(b, first, id); text != "" {
		b.t.Errorf("%s reports the loss again: %q", first.tool, text)
	}
	if text := lossIn(b, firstCall{"execute_command", args{"command": "true"}, "session_id"}, id); text != "" {
		b.t.Errorf("execute_command reports what %s has reported: %q", first.tool, text)
	}
	if out := b.must("execute_code", args{"session_id": id, "code": "print(x)"}); out["stdout"] != "1\n" {
		b.t.Errorf("the box has x = %q, want the earlier state that the report speaks of", out["stdout"])
	}
}
