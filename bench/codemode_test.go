//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/bench/codemode"
)

func TestCodemodeTables(t *testing.T) {
	solved := func(requests, results int) map[string]*solution {
		all := make(map[string]*solution)
		for _, task := range codemode.Tasks {
			c := codemode.Cost{Catalogue: 1000, Requests: requests, Results: results, Carried: 3 * results, Turns: 2}
			all[task.Name] = &solution{Cost: c, All: c, Ms: []float64{400, 100, 200}}
		}
		return all
	}
	ways := []*way{
		{id: "direct", name: "direct calls", solved: solved(100, 58900)},
		{id: "gateway", name: "through one server", solved: solved(100, 58900)},
		{id: "code", name: "code in JavaScript", solved: solved(500, 1500)},
		{id: "python", name: "code in Python", solved: solved(500, 1500)},
		{id: "utcp", name: "a peer", why: errors.New("cannot run here").Error()},
	}
	ways[2].solved["sum"].Cost.Results = 59000
	got := codemodeTables(ways)
	for _, want := range []string{
		"| logs | files | 60,000 | 3,000 | 5.0% | 5.0% | 2.5% | 3.4% | 2 → 2 | 200 ms | 200 ms |",
		"| sum | everything | 60,000 | 60,500 | **101%**, more |",
		"| **the eight large tasks** |  | 480,000 | 24,000 | 5.0% |",
		"| code in JavaScript | 1,000 | 24,000 | 12,000 |",
		"| a peer | cannot run here | | | | |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the tables lack %q:\n%s", want, got)
		}
	}
}

func TestNotNamed(t *testing.T) {
	text := "tools.files.read_text_file({path: string}): …\ntools.everything.get_sum({a: number, b: number})"
	got := notNamed([]string{"files.read_text_file", "everything.get-sum", "sql.execute_sql"}, text)
	if len(got) != 1 || got[0] != "sql.execute_sql" {
		t.Errorf("notNamed = %q, want sql.execute_sql alone", got)
	}
}

func TestInUTCP(t *testing.T) {
	for program, want := range map[string]string{
		`const {content} = await tools.files.read_file({path: "tools.txt"});`:                           `const content = await files.files_read_file({path: "tools.txt"});`,
		`const {content: list} = await tools.files.list({}); const {data} = await tools.sql.query({});`: `const list = await files.files_list({}); const {data} = await sql.sql_query({});`,
		`await tools.everything.get_sum({a: 1});`:                                                       `await everything.everything_get_sum({a: 1});`,
	} {
		if got := inUTCP(program); got != want {
			t.Errorf("inUTCP(%s) = %s, want %s", program, got, want)
		}
	}
}

// solved is a solver that knows the answers, but for one task.
type solved struct {
	w     *codemode.World
	dir   string
	wrong string
}

func (solved) definitions(*codemode.Task) (own, all string) { return "own", "own and all" }

func (s solved) solve(_ context.Context, t *codemode.Task) ([]codemode.Turn, any, error) {
	turns := []codemode.Turn{{Requests: "r\n", Results: "result\n", Calls: 1}}
	if t.Name == s.wrong {
		return turns, "another answer", nil
	}
	return turns, t.Want(s.w), nil
}

func (solved) close() error { return nil }

// TestSolveAll_WrongAnswer: a task fails if its answer is wrong, or if it left nothing behind
// where it should have.
func TestSolveAll_WrongAnswer(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skipf("needs Python, which fills the database: %v", err)
	}
	for wrong, want := range map[string]string{
		"payments": `task payments: the answer is "another answer"`,
		"none":     "task audit: look at what the task left",
	} {
		dir := t.TempDir()
		b := &bench{options: options{dir: dir, python: python}, dir: dir}
		one := &way{id: "test", name: "test", open: func(_ context.Context, _ *bench, w *codemode.World, dir string) (solver, error) {
			return solved{w, dir, wrong}, nil
		}}
		err := b.solveAll(t.Context(), one, 0, func(s string) (int, error) { return len(s), nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with a wrong answer to %s: %v, want %q", wrong, err, want)
		}
		if got := one.solved["logs"]; got == nil || got.Cost.Sum() != 12 || got.All.Sum() != 20 || got.Cost.Turns != 1 {
			t.Errorf("the right task before it: %+v", got)
		}
		transcript, err := os.ReadFile(filepath.Join(dir, "codemode", "logs-test.txt"))
		if err != nil || !strings.Contains(string(transcript), "=== round trip 1, the results\nresult\n") {
			t.Errorf("the transcript is %q, %v", transcript, err)
		}
	}
}
