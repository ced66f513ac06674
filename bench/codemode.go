//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/bench/codemode"
	"github.com/glovebox-dev/glovebox/bench/report"
)

// codemodeSeed is the seed of the data of the tasks.
const codemodeSeed = 2026

// solver solves tasks in one way, with servers and data of its own.
type solver interface {
	// definitions returns the text about tools that the model reads before it begins: with the
	// servers of the task alone, and with all.
	definitions(t *codemode.Task) (own, all string)
	solve(ctx context.Context, t *codemode.Task) (turns []codemode.Turn, answer any, err error)
	close() error
}

// solution is how a way solved a task.
type solution struct {
	Cost codemode.Cost `json:"cost"` // with the definitions of the servers of the task alone
	All  codemode.Cost `json:"all"`  // with the definitions of all servers
	Ms   []float64     `json:"ms"`   // of the calls, without the time of a model; a sample for each run
}

// way is a way to solve the tasks.
type way struct {
	id, name string
	open     func(ctx context.Context, b *bench, w *codemode.World, dir string) (solver, error)
	solved   map[string]*solution
	why      string // it cannot run
}

// codemodeScenario solves the tasks of bench/codemode by direct calls, by direct calls
// through one server for all, by code in boxes, and by code in a peer, and counts the
// tokens that pass through the model.
func codemodeScenario(ctx context.Context, b *bench) error {
	missing := func() error {
		for _, path := range []string{b.codemodeModule("gpt-tokenizer", "package.json"), b.codemodeModule("@playwright/mcp", "cli.js")} {
			if _, err := os.Stat(path); err != nil {
				return err
			}
		}
		return nil
	}()
	if missing != nil {
		b.add(report.Absent("codemode.large", "code, the large tasks together", "cannot run here: "+missing.Error()))
		return nil
	}
	var err error
	if b.short, err = os.MkdirTemp("", "gb-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.short)
	tokens, closeTokens, err := b.tokenizer(ctx)
	if err != nil {
		return err
	}
	defer closeTokens()
	direct := &way{id: "direct", name: "direct calls", open: openDirect}
	gateway := &way{id: "gateway", name: "direct calls through mcp serve", open: openGateway}
	code := &way{id: "code", name: "code in JavaScript", open: openCode("javascript")}
	python := &way{id: "python", name: "code in Python", open: openCode("python")}
	utcp := &way{id: "utcp", name: "UTCP code mode", open: openUTCP}
	ways := []*way{direct, gateway, code, python, utcp}
	for n := range b.n(3, 1) {
		for _, one := range ways {
			err := b.solveAll(ctx, one, n, tokens)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil && one != utcp {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			if err != nil {
				one.why = fmt.Sprintf("cannot run here: %.200s", err)
				b.logf("codemode: %s: %v", one.name, err)
			}
		}
	}
	b.addCodemode(direct, gateway, code, python, utcp)
	return b.writeCodemode(ways)
}

// solveAll solves all tasks in one way with new servers and data.
func (b *bench) solveAll(ctx context.Context, one *way, n int, tokens func(string) (int, error)) (err error) {
	if one.why != "" {
		return nil
	}
	w := codemode.NewWorld(codemodeSeed)
	pages, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	site := &http.Server{Handler: w, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- site.Serve(pages) }()
	defer func() {
		site.Close()
		<-served
	}()
	w.Site = "http://" + pages.Addr().String()
	dir := filepath.Join(b.dir, fmt.Sprintf("codemode-%s-%d", one.id, n))
	if err := b.writeWorld(ctx, w, dir); err != nil {
		return err
	}
	s, err := one.open(ctx, b, w, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if one.solved == nil {
		one.solved = make(map[string]*solution)
	}
	for _, t := range codemode.Tasks {
		limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
		begun := time.Now()
		turns, answer, err := s.solve(limited, t)
		took := ms(time.Since(begun))
		cancel()
		if err == nil {
			err = t.Check(w, dir, answer)
		}
		if err := b.writeTranscript(one, t, turns); err != nil {
			return err
		}
		if err != nil {
			return fmt.Errorf("task %s: %w", t.Name, err)
		}
		if one.solved[t.Name] == nil {
			sol := &solution{}
			own, all := s.definitions(t)
			if sol.Cost, err = codemode.CostOf(own, turns, tokens); err != nil {
				return err
			}
			if sol.All, err = codemode.CostOf(all, turns, tokens); err != nil {
				return err
			}
			one.solved[t.Name] = sol
		}
		one.solved[t.Name].Ms = append(one.solved[t.Name].Ms, took)
	}
	return nil
}

// writeWorld writes the data of the servers to dir, and fills the database.
func (b *bench) writeWorld(ctx context.Context, w *codemode.World, dir string) error {
	if err := w.Write(dir); err != nil {
		return err
	}
	schema, err := os.ReadFile(filepath.Join(dir, "schema.sql"))
	if err != nil {
		return err
	}
	fill := prepare(ctx, b.python, "-c", "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.stdin.read())", filepath.Join(dir, "shop.db"))
	fill.Stdin = bytes.NewReader(schema)
	if text, err := fill.CombinedOutput(); err != nil {
		return fmt.Errorf("fill the database: %w: %s", err, lastLine(string(text)))
	}
	return nil
}

// tokenizer starts the tokenizer. The function counts the tokens of a text.
func (b *bench) tokenizer(ctx context.Context) (tokens func(string) (int, error), end func() error, err error) {
	d, err := converse(ctx, b.peers.node(), filepath.Join(b.here, "codemode", "tokens.mjs"))
	if err != nil {
		return nil, nil, err
	}
	known := make(map[string]int) // definitions come again and again
	return func(text string) (int, error) {
		if n, ok := known[text]; ok {
			return n, nil
		}
		line, err := json.Marshal(text)
		if err != nil {
			return 0, err
		}
		n, err := d.ask(string(line))
		known[text] = int(n)
		return int(n), err
	}, d.close, nil
}

// addCodemode adds the rows. The target is judged with each token counted once, and beside
// direct calls by a model that knows only the servers of the task.
func (b *bench) addCodemode(direct, gateway, code, python, utcp *way) {
	large := func(t *codemode.Task) bool { return t.Large }
	small := func(t *codemode.Task) bool { return !t.Large }
	sum := func(s *solution) float64 { return float64(s.Cost.Sum()) }
	for _, group := range []struct {
		id, name string
		of       func(*codemode.Task) bool
	}{{"large", "large tasks", large}, {"small", "small tasks", small}} {
		row := func(id, what, unit string, value func(*solution) float64, one *way) report.Figure {
			return total("codemode."+group.id+id, "code, "+group.name+what, unit, one, group.of, value)
		}
		peer := func(id, what, unit string, value func(*solution) float64, one *way) report.Figure {
			return total("peer."+one.id+"."+group.id+id, one.name+", "+group.name+what, unit, one, group.of, value).As(report.Peer)
		}
		for _, count := range []struct {
			id, what, unit string
			value          func(*solution) float64
		}{
			{"", "", "tokens", sum},
			{".carried", ", carried", "tokens", func(s *solution) float64 { return float64(s.Cost.Carried) }},
			{".trips", ", round trips", "trips", func(s *solution) float64 { return float64(s.Cost.Turns) }},
			{".time", ", time of the calls", "ms", (*solution).milliseconds},
		} {
			beside := peer(count.id, count.what, count.unit, count.value, direct)
			ours := row(count.id, count.what, count.unit, count.value, code).Against(beside)
			if count.id == "" && group.id == "large" {
				ours = ours.AtMost(report.Ratio, 0.1)
			}
			inPython := total("codemode.python."+group.id+count.id, "code in Python, "+group.name+count.what, count.unit, python, group.of, count.value).Against(beside)
			b.add(ours, inPython, beside)
			for _, other := range []*way{gateway, utcp} {
				if other.why != "" {
					b.add(report.Absent("peer."+other.id+"."+group.id+count.id, other.name+", "+group.name+count.what, other.why).As(report.Peer))
					continue
				}
				b.add(peer(count.id, count.what, count.unit, count.value, other))
			}
		}
	}
	for _, t := range codemode.Tasks {
		only := func(other *codemode.Task) bool { return t == other }
		beside := total("peer.direct."+t.Name, direct.name+", "+t.Name, "tokens", direct, only, sum).As(report.Peer).Noting("%s", direct.solved[t.Name])
		ours := total("codemode."+t.Name, "code, "+t.Name, "tokens", code, only, sum).Against(beside).Noting("%s", code.solved[t.Name])
		if t.Large {
			ours = ours.AtMost(report.Ratio, 0.1)
		}
		b.add(ours, beside)
	}
}

// total adds up a value over some tasks.
func total(id, name, unit string, one *way, of func(*codemode.Task) bool, value func(*solution) float64) report.Figure {
	sum := 0.0
	for _, t := range codemode.Tasks {
		if of(t) {
			sum += value(one.solved[t.Name])
		}
	}
	return report.Measured(id, name, unit, sum)
}

func (s *solution) String() string {
	return fmt.Sprintf("%d round trips, %d calls, %.0f ms", s.Cost.Turns, s.Cost.Calls, s.milliseconds())
}

// milliseconds returns the median of the samples.
func (s *solution) milliseconds() float64 { return report.Measured("", "", "", s.Ms...).P50 }

// writeCodemode writes every count as costs.json, and the tables of
// docs/code-mode-benchmark.md as tables.md, to the directory of the transcripts.
func (b *bench) writeCodemode(ways []*way) error {
	type taskCosts struct {
		Task  string               `json:"task"`
		About string               `json:"about"`
		Large bool                 `json:"large"`
		Ways  map[string]*solution `json:"ways"`
	}
	var all []taskCosts
	for _, t := range codemode.Tasks {
		c := taskCosts{t.Name, t.About, t.Large, make(map[string]*solution)}
		for _, one := range ways {
			if one.why == "" {
				c.Ways[one.id] = one.solved[t.Name]
			}
		}
		all = append(all, c)
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.options.dir, "codemode", "costs.json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.options.dir, "codemode", "tables.md"), []byte(codemodeTables(ways)), 0o644)
}

// writeTranscript writes what passed through the model to the directory codemode beside the
// result, to be read by people.
func (b *bench) writeTranscript(one *way, t *codemode.Task, turns []codemode.Turn) error {
	dir := filepath.Join(b.options.dir, "codemode")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var text bytes.Buffer
	for i, turn := range turns {
		fmt.Fprintf(&text, "=== round trip %d, the model\n%s=== round trip %d, the results\n%s", i+1, turn.Requests, i+1, turn.Results)
	}
	return os.WriteFile(filepath.Join(dir, t.Name+"-"+one.id+".txt"), text.Bytes(), 0o644)
}
