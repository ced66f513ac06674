//go:build linux

// Command soak uses a server for a long time as several owners would, while sentries and
// the server itself are killed, and compares what the server holds at the end with what it
// held at the beginning. It drives the built program over MCP with the Go SDK.
//
// A box remembers a count, in a variable and in a file. Lost is what a box forgot without
// a report, or with a report that no fault explains.
//
// It reads /proc, so it needs Linux.
//
//	go run ./e2e/soak [-for 30m] [-seed N] [-glovebox FILE]
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	glovebox := flag.String("glovebox", "bin/glovebox", "the program")
	length := flag.Duration("for", 30*time.Minute, "how long to work")
	seed := flag.Uint64("seed", 1, "derives the work and the faults")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *glovebox, *length, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "soak: error:", err)
		os.Exit(1)
	}
}

// owners are who uses the server, each with a token.
var owners = []string{"alice", "bob", "carol"}

const (
	// boxesEach is how many boxes an owner has; all together are more than fit into memory.
	boxesEach = 4
	// firstFault is when faults begin, and calm the part of the run at whose end the server
	// is not killed any more, so that its own holdings are those of a long life.
	firstFault = 10 * time.Second
	calm       = 3
)

func run(ctx context.Context, glovebox string, length time.Duration, seed uint64) error {
	program, err := filepath.Abs(glovebox)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "glovebox-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &server{program: program, dir: dir, tokens: map[string]string{}}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	defer s.kill()
	t := newTally()
	var boxes []*memory
	for i, owner := range owners {
		for n := range boxesEach {
			language := "python"
			if n == boxesEach-1 {
				language = "javascript"
			}
			boxes = append(boxes, &memory{server: s, tally: t, owner: owner, id: fmt.Sprintf("work-%d", n), language: language, rand: rand.New(rand.NewPCG(seed, uint64(i*100+n)))})
		}
	}
	// The first round of work warms everything up; then it is tidied up, and that is the
	// baseline.
	if err := inTurn(ctx, boxes, 3); err != nil {
		return err
	}
	before, err := s.baseline(ctx, nil)
	if err != nil {
		return err
	}
	for _, b := range boxes {
		b.token = ""                            // its box was stopped
		if err := b.remember(ctx); err != nil { // in its language
			return fmt.Errorf("%s's %s: %w", b.owner, b.id, err)
		}
	}
	begun := time.Now()
	working, done := context.WithTimeout(ctx, length)
	defer done()
	var group sync.WaitGroup
	for _, b := range boxes {
		group.Go(func() {
			for working.Err() == nil {
				b.work(working)
			}
		})
	}
	group.Go(func() { s.faults(working, t, rand.New(rand.NewPCG(seed, 1<<32)), begun.Add(length-length/calm)) })
	group.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// Every box answers, and remembers.
	if err := inTurn(ctx, boxes, 1); err != nil {
		return err
	}
	after, err := s.baseline(ctx, before)
	if err != nil {
		return err
	}
	s.printErrors()
	if err := t.report(time.Since(begun), seed, before, after); err != nil {
		s.dump()
		return err
	}
	return nil
}

// inTurn has every box work for some calls.
func inTurn(ctx context.Context, boxes []*memory, calls int) error {
	for _, b := range boxes {
		for range calls {
			if err := b.remember(ctx); err != nil {
				if err = b.remember(ctx); err != nil { // the first one may have been told of a loss
					return fmt.Errorf("%s's %s: %w", b.owner, b.id, err)
				}
			}
		}
	}
	return nil
}

// tally counts what happened.
type tally struct {
	mu     sync.Mutex
	calls  map[string]int // guarded by mu; by kind
	failed map[string]int // guarded by mu; by what the error says
	faults map[string]int // guarded by mu
	told   map[string]int // guarded by mu; losses that were reported and that a fault explains
	lost   []string       // guarded by mu
	kills  []time.Time    // guarded by mu
}

func newTally() *tally {
	return &tally{calls: map[string]int{}, failed: map[string]int{}, faults: map[string]int{}, told: map[string]int{}}
}

func (t *tally) count(counter map[string]int, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	counter[what]++
}

// fault counts a fault, which may take the state of a box.
func (t *tally) fault(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults[what]++
	t.kills = append(t.kills, time.Now())
}

// faultSince reports whether there was a fault since a time, or shortly before.
func (t *tally) faultSince(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.kills) > 0 && t.kills[len(t.kills)-1].After(at.Add(-10*time.Second))
}

// lose records a loss that should not be.
func (t *tally) lose(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	t.lost = append(t.lost, text)
	fmt.Println("LOST:", text)
}

// report prints the table, and returns an error if something was lost or is left.
func (t *tally) report(took time.Duration, seed uint64, before, after *holdings) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := func(m map[string]int) string {
		var cells []string
		n := 0
		for _, k := range slices.Sorted(maps.Keys(m)) {
			cells = append(cells, fmt.Sprintf("%s %d", k, m[k]))
			n += m[k]
		}
		return fmt.Sprintf("%d (%s)", n, strings.Join(cells, ", "))
	}
	fmt.Printf("\nsoak: %v as uid %d, seed %d\n", took.Round(time.Second), os.Getuid(), seed)
	fmt.Printf("  calls    %s\n  errors   %s\n  faults   %s\n  reported %s\n  lost     %d\n", list(t.calls), list(t.failed), list(t.faults), list(t.told), len(t.lost))
	fmt.Printf("  %-12s %12s %12s %12s\n", "", "before", "after", "limit")
	var left []string
	for _, row := range after.rows(before) {
		mark := ""
		if row.after > row.limit {
			left = append(left, row.name)
			mark = "  LEAK"
		}
		fmt.Printf("  %-12s %12d %12d %12d%s\n", row.name, row.before, row.after, row.limit, mark)
	}
	if len(after.processes) != len(before.processes) {
		fmt.Println("processes before:")
		printProcesses(before.processes)
		fmt.Println("processes after:")
		printProcesses(after.processes)
	}
	if len(after.files) > len(before.files) {
		for _, path := range slices.Sorted(maps.Keys(after.files)) {
			if _, ok := before.files[path]; !ok {
				fmt.Printf("file since then: %q, %d bytes\n", path, after.files[path])
			}
		}
	}
	switch {
	case len(t.lost) > 0:
		return fmt.Errorf("%d losses", len(t.lost))
	case len(left) > 0:
		return fmt.Errorf("above the baseline: %s", strings.Join(left, ", "))
	}
	return nil
}

func printProcesses(list map[int]string) {
	for _, pid := range slices.Sorted(maps.Keys(list)) {
		fmt.Printf("  %7d %s\n", pid, list[pid])
	}
}
