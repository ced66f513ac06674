package codemode

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestWorld_SameSeedSameData(t *testing.T) {
	data := func(seed uint64) []string {
		w := NewWorld(seed)
		all := []string{fmt.Sprint(w.files()), w.memory(), w.schema()}
		for _, path := range []string{"/shop?page=1", "/shop?page=8", "/supplier?page=3"} {
			r := httptest.NewRecorder()
			w.ServeHTTP(r, httptest.NewRequest("GET", path, nil))
			if r.Code != 200 {
				t.Errorf("page %s: status %d", path, r.Code)
			}
			all = append(all, r.Body.String())
		}
		return all
	}
	one, again, other := data(7), data(7), data(8)
	if !slices.Equal(one, again) {
		t.Error("the same seed gave other data")
	}
	for i := range one {
		if one[i] == other[i] {
			t.Errorf("part %d of the data is the same for another seed", i)
		}
	}
}

// TestTasks_AnswersSaySomething: the data has something to find for each task, or two wrong
// solutions would agree on nothing.
func TestTasks_AnswersSaySomething(t *testing.T) {
	w := NewWorld(2026)
	for _, task := range Tasks {
		answer, err := json.Marshal(task.Want(w))
		if err != nil {
			t.Fatal(err)
		}
		if text := string(answer); strings.Contains(text, "[]") || strings.Contains(text, "null") || text == "0" || text == "{}" {
			t.Errorf("task %s: the answer is %s", task.Name, text)
		}
		if err := same("answer", task.Want(w), task.Want(NewWorld(2026))); err != nil {
			t.Errorf("task %s: two answers for one seed: %v", task.Name, err)
		}
	}
}

func TestTasks_Programs(t *testing.T) {
	w := NewWorld(2026)
	w.Site = "http://127.0.0.1:1"
	large, servers := 0, map[string]bool{}
	for _, task := range Tasks {
		for _, language := range []string{"javascript", "python"} {
			all := strings.Join(task.Programs(w, language), "\n")
			if all == "" || strings.Contains(all, "SITE") {
				t.Errorf("task %s has the programs %q in %s", task.Name, all, language)
			}
			for _, tool := range task.Tools {
				if !strings.Contains(all, "tools."+strings.ReplaceAll(tool, "-", "_")+"(") {
					t.Errorf("task %s: no program in %s calls %s", task.Name, language, tool)
				}
			}
		}
		for _, server := range task.Servers {
			servers[server] = true
		}
		if task.Large {
			large++
		}
	}
	if len(Tasks) != 12 || large != 8 || len(servers) != 5 {
		t.Errorf("%d tasks, %d of them large, over %d servers; want 12, 8, 5", len(Tasks), large, len(servers))
	}
}

func TestTask_Check(t *testing.T) {
	w := NewWorld(2026)
	for _, task := range Tasks {
		if task.Effect != nil {
			continue
		}
		if err := task.Check(w, t.TempDir(), task.Want(w)); err != nil {
			t.Errorf("task %s refuses the right answer: %v", task.Name, err)
		}
		if err := task.Check(w, t.TempDir(), task.Want(NewWorld(2027))); err == nil && task != &sumTask && task != &noteTask {
			t.Errorf("task %s accepts the answer of other data", task.Name)
		}
		if err := task.Check(w, t.TempDir(), nil); err == nil {
			t.Errorf("task %s accepts no answer", task.Name)
		}
	}
	// A right answer is not enough where something has to be written.
	dir := t.TempDir()
	if err := w.Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, task := range []*Task{&auditTask, &importTask, &rememberTask} {
		if err := task.Check(w, dir, task.Want(w)); err == nil {
			t.Errorf("task %s is done although nothing was written", task.Name)
		}
	}
	report, err := json.Marshal(violations(w.manifests))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "files", "reports", "audit.json"), report, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := auditTask.Check(w, dir, auditTask.Want(w)); err != nil {
		t.Errorf("task audit with its report: %v", err)
	}
}

// sessionCaller calls one server.
type sessionCaller struct{ *mcp.ClientSession }

func (sessionCaller) Name(server, tool string) string { return server + "." + tool }

func (s sessionCaller) Call(ctx context.Context, _, tool string, arguments map[string]any) (*mcp.CallToolResult, error) {
	return s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
}

func TestConversation_Ask(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ServerOptions{Instructions: "Use it."})
	type in struct {
		Text string `json:"text"`
	}
	type out struct {
		Said string `json:"said"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "say", Description: "Say <text>"}, func(_ context.Context, _ *mcp.CallToolRequest, in in) (*mcp.CallToolResult, out, error) {
		if in.Text == "" {
			return nil, out{}, fmt.Errorf("nothing to say")
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}, &mcp.ImageContent{Data: []byte{1}, MIMEType: "image/png"}, &mcp.TextContent{Text: "end"}}}, out{in.Text}, nil
	})
	here, there := mcp.NewInMemoryTransports()
	serving, err := server.Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer serving.Close()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()

	c := &Conversation{Caller: sessionCaller{session}}
	say := func(text string) Call { return Call{"test", "say", map[string]any{"text": text}} }
	texts, err := c.Ask(t.Context(), say("one"), say("t > o"))
	if err != nil || !slices.Equal(texts, []string{"one\nend", "t > o\nend"}) {
		t.Errorf("Ask = %q, %v", texts, err)
	}
	want := Turn{
		Requests: `{"name":"test.say","arguments":{"text":"one"}}` + "\n" + `{"name":"test.say","arguments":{"text":"t > o"}}` + "\n",
		Results:  "one\nend\nt > o\nend\n", Calls: 2, Images: 2,
	}
	if len(c.Turns) != 1 || !reflect.DeepEqual(c.Turns[0], want) {
		t.Errorf("after a turn of two calls: %+v, want %+v", c.Turns, want)
	}
	if _, err := c.Ask(t.Context(), say("")); err == nil || !strings.Contains(err.Error(), "nothing to say") {
		t.Errorf("a tool that fails: %v", err)
	}

	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Catalogue(session.InitializeResult().Instructions, list.Tools)
	if err != nil || !strings.HasPrefix(text, "Use it.\n[{\"name\":\"say\",\"description\":\"Say <text>\",\"input_schema\":{") || strings.Contains(text, "said") {
		t.Errorf("the catalogue is %s, %v; want the input schema and no output schema", text, err)
	}
}

func TestCostOf(t *testing.T) {
	length := func(s string) (int, error) { return len(s), nil }
	got, err := CostOf(strings.Repeat("c", 100), []Turn{{Requests: "1234567890", Results: "12345", Calls: 1}, {Requests: "12", Results: "123", Calls: 3}}, length)
	if err != nil {
		t.Fatal(err)
	}
	// The model reads 100 and writes 10; reads 115 and writes 2; reads 120 and answers.
	want := Cost{Catalogue: 100, Requests: 12, Results: 8, Largest: 120, Carried: 100 + 10 + 115 + 2 + 120, Turns: 2, Calls: 4}
	if got != want || got.Sum() != 120 {
		t.Errorf("CostOf = %+v with the sum %d, want %+v and 120", got, got.Sum(), want)
	}
	if _, err := CostOf("", nil, func(string) (int, error) { return 0, fmt.Errorf("no tokenizer") }); err == nil {
		t.Error("a tokenizer that fails goes unnoticed")
	}
}
