package codemode

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"strings"
)

// A Task is a question that a model answers with tools of other servers.
type Task struct {
	Name    string // of its rows and its program
	About   string
	Servers []string // that its tools belong to
	Tools   []string // that its programs call, as server.tool
	Search  string   // the words by which a model searches for them
	Large   bool     // direct calls pass 37,000 tokens or more through the model

	// Want returns the right answer.
	Want func(*World) any
	// Direct solves the task by calling tools, as a model without code would: it sees
	// all results, and returns the answer. It asks for several results in one turn
	// where none depends on another.
	Direct func(context.Context, *World, *Conversation) (any, error)
	// Effect returns what the task left behind in the directory of the data, and
	// WantEffect what it should have; nil if it changes nothing.
	Effect     func(dir string) (any, error)
	WantEffect func(*World) any
}

//go:embed programs
var programs embed.FS

// Programs returns the programs that a model runs one after another to solve the task, in
// "javascript" or "python". They call tools as tools.SERVER.TOOL. The last one prints the
// answer as JSON. Where the shape of results or of data is not in the descriptions of the
// tools, the first one prints a sample of it, as a model has to look before it can write the
// second. They share no variables.
func (t *Task) Programs(w *World, language string) (all []string) {
	end := map[string]string{"javascript": "js", "python": "py"}[language]
	for i := 1; ; i++ {
		b, err := programs.ReadFile(fmt.Sprintf("programs/%s.%d.%s", t.Name, i, end))
		if err != nil {
			return all
		}
		all = append(all, strings.ReplaceAll(strings.TrimSpace(string(b)), "SITE", w.Site))
	}
}

// Check returns an error unless answer, and what was left in dir, are right. answer is any
// value that encodes to JSON.
func (t *Task) Check(w *World, dir string, answer any) error {
	if err := same("answer", answer, t.Want(w)); err != nil || t.Effect == nil {
		return err
	}
	left, err := t.Effect(dir)
	if err != nil {
		return fmt.Errorf("look at what the task left: %w", err)
	}
	return same("effect", left, t.WantEffect(w))
}

// same compares two values as JSON.
func same(what string, got, want any) error {
	var texts [2][]byte
	for i, v := range []any{got, want} {
		b, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode %s: %w", what, err)
		}
		var plain any
		if err := json.Unmarshal(b, &plain); err != nil {
			return fmt.Errorf("decode %s: %w", what, err)
		}
		if texts[i], err = json.Marshal(plain); err != nil { // with sorted keys
			return fmt.Errorf("encode %s: %w", what, err)
		}
	}
	if !bytes.Equal(texts[0], texts[1]) {
		return fmt.Errorf("the %s is %.300s, want %.300s", what, texts[0], texts[1])
	}
	return nil
}

// Tasks are all tasks, the large ones first.
var Tasks = []*Task{&logsTask, &paymentsTask, &outageTask, &overtimeTask, &shopTask, &quotesTask, &auditTask, &importTask, &sumTask, &noteTask, &rememberTask, &countTask}

// Warm starts what servers start with their first call, such as the browser. It is no task.
var Warm = &Task{
	Name: "warm",
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		_, err := c.Ask(ctx,
			Call{"files", "list_directory", map[string]any{"path": "notes"}},
			Call{"memory", "search_nodes", map[string]any{"query": "Rotterdam"}},
			Call{"everything", "echo", map[string]any{"message": "hello"}},
			Call{"sql", "execute_sql", map[string]any{"sql": "SELECT 1"}},
			Call{"browser", "browser_navigate", map[string]any{"url": "about:blank"}})
		return nil, err
	},
}
