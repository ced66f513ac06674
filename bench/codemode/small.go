package codemode

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var sumTask = Task{
	Name: "sum", Servers: []string{"everything"},
	About:  "add two numbers and echo the sum",
	Tools:  []string{"everything.get-sum", "everything.echo"},
	Search: "sum, echo",
	Want:   func(*World) any { return "Echo: 4242" },
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		texts, err := c.Ask(ctx, Call{"everything", "get-sum", map[string]any{"a": 1742, "b": 2500}})
		if err != nil {
			return nil, err
		}
		sum := regexp.MustCompile(`is (\d+)`).FindStringSubmatch(texts[0])
		if sum == nil {
			return nil, fmt.Errorf("get-sum says %q", texts[0])
		}
		texts, err = c.Ask(ctx, Call{"everything", "echo", map[string]any{"message": sum[1]}})
		return strings.Join(texts, ""), err
	},
}

var noteTask = Task{
	Name: "note", Servers: []string{"files"},
	About:  "when and where the latest meeting in a directory of notes was",
	Tools:  []string{"files.list_directory", "files.read_text_file"},
	Search: "list directory, read file",
	Want:   func(*World) any { return "Held on 2026-03-18 in Bergen." },
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		list, err := c.Ask(ctx, Call{"files", "list_directory", map[string]any{"path": "notes"}})
		if err != nil {
			return nil, err
		}
		var last string
		for _, m := range listed.FindAllStringSubmatch(list[0], -1) {
			last = max(last, m[1])
		}
		texts, err := c.Ask(ctx, Call{"files", "read_text_file", map[string]any{"path": "notes/" + last, "head": 3}})
		if err != nil {
			return nil, err
		}
		lines := strings.Split(strings.TrimSpace(texts[0]), "\n")
		return lines[len(lines)-1], nil
	},
}

// remembered is what the task adds to the knowledge graph.
const remembered = "moved to the harbour in 2026"

var rememberTask = Task{
	Name: "remember", Servers: []string{"memory"},
	About:  "find an entity of the knowledge graph and add a fact",
	Tools:  []string{"memory.search_nodes", "memory.add_observations"},
	Search: "search nodes, add observations",
	Want:   func(*World) any { return map[string]any{"entity": "Rotterdam office", "added": 1} },
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		texts, err := c.Ask(ctx, Call{"memory", "search_nodes", map[string]any{"query": "Rotterdam"}})
		if err != nil {
			return nil, err
		}
		g, err := graphOf(texts[0])
		if err != nil {
			return nil, err
		}
		if len(g.Entities) != 1 {
			return nil, fmt.Errorf("search_nodes found %d entities: %.300q", len(g.Entities), texts[0])
		}
		name := g.Entities[0].Name
		texts, err = c.Ask(ctx, Call{"memory", "add_observations", map[string]any{"observations": []any{
			map[string]any{"entityName": name, "contents": []string{remembered}}}}})
		if err != nil {
			return nil, err
		}
		return map[string]any{"entity": name, "added": strings.Count(texts[0], remembered)}, nil
	},
	Effect: func(dir string) (any, error) {
		b, err := os.ReadFile(filepath.Join(dir, "memory.jsonl"))
		return strings.Count(string(b), remembered), err
	},
	WantEffect: func(*World) any { return 1 },
}

var countTask = Task{
	Name: "count", Servers: []string{"sql"},
	About:  "how many products are sold out, after a look at the columns",
	Tools:  []string{"sql.search_objects", "sql.execute_sql"},
	Search: "sql columns, execute sql",
	Want: func(w *World) any {
		n := 0
		for _, p := range w.products {
			if p.stock == 0 {
				n++
			}
		}
		return n
	},
	Direct: func(ctx context.Context, _ *World, c *Conversation) (any, error) {
		_, err := c.Ask(ctx, Call{"sql", "search_objects", map[string]any{"object_type": "column", "schema": "main", "table": "products"}})
		if err != nil {
			return nil, err
		}
		texts, err := c.Ask(ctx, Call{"sql", "execute_sql", map[string]any{"sql": "SELECT COUNT(*) AS n FROM products WHERE stock = 0"}})
		if err != nil {
			return nil, err
		}
		rows, err := rowsOf(texts[0])
		if err != nil {
			return nil, err
		}
		if len(rows) != 1 {
			return nil, fmt.Errorf("execute_sql returned %d rows: %.300q", len(rows), texts[0])
		}
		return rows[0].number("n"), nil
	},
}

// A row is a row of a table, by column.
type row map[string]any

func (r row) text(column string) string {
	s, _ := r[column].(string)
	return s
}

func (r row) number(column string) int {
	f, _ := r[column].(float64)
	return int(f)
}

// rowsOf returns the rows of a result of the server "sql".
func rowsOf(text string) ([]row, error) {
	var r struct {
		Data struct {
			Statements []struct{ Rows []row }
		}
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("parse rows: %w: %.300q", err, text)
	}
	if len(r.Data.Statements) != 1 {
		return nil, fmt.Errorf("parse rows: %d results, want 1: %.300q", len(r.Data.Statements), text)
	}
	return r.Data.Statements[0].Rows, nil
}

type entity struct {
	Name         string   `json:"name"`
	EntityType   string   `json:"entityType"`
	Observations []string `json:"observations"`
}

type relation struct {
	From         string `json:"from"`
	To           string `json:"to"`
	RelationType string `json:"relationType"`
}

type graph struct {
	Entities  []entity
	Relations []relation
}

// graphOf returns the graph of a result of the server "memory".
func graphOf(text string) (g graph, err error) {
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return g, fmt.Errorf("parse a graph: %w: %.300q", err, text)
	}
	return g, nil
}

// csvOf returns the fields of all lines but the first.
func csvOf(text string) (lines [][]string) {
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		lines = append(lines, strings.Split(line, ","))
	}
	return lines
}
