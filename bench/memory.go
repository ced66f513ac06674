package main

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/bench/proc"
	"github.com/glovebox-dev/glovebox/bench/report"
)

// memoryScenario weighs boxes that do nothing: what the server and all its
// processes hold more with n boxes than without, by n.
func memoryScenario(ctx context.Context, b *bench) error {
	plain, err := b.weighBoxes(ctx, "memory", "print(1)", "GLOVEBOX_PRELOAD=none")
	if err != nil {
		return err
	}
	// Imported by each for itself, as without a template.
	imported, err := b.weighBoxes(ctx, "memory", "import pandas; print(1)", "GLOVEBOX_PRELOAD=none")
	if err != nil {
		return err
	}
	idle, loaded := b.weighKernel(ctx)
	b.add(weightRows("memory.plain", "idle box, Python", plain, idle, 40)...)
	b.add(weightRows("memory.pandas", "idle box, after import pandas", imported, loaded, 65)...)
	_, offered, err := b.buildTemplates(ctx)
	if err != nil {
		return err
	}
	if offered {
		cold, err := b.weighBoxes(ctx, shared, useOfPandas)
		if err != nil {
			return err
		}
		b.add(weightRows("memory.template", "idle box from the template, pandas used", cold, loaded, 65)...)
		pool, err := b.weighPool(ctx)
		if err != nil {
			return err
		}
		b.add(weightRows("memory.pool", "box of the pool, pandas loaded", pool, loaded, 65)...)
	} else {
		b.add(report.Absent("memory.template", "idle box from the template, pandas used (PSS)", notOffered).AtMost(report.Median, 65),
			report.Absent("memory.pool", "box of the pool, pandas loaded (PSS)", notOffered).AtMost(report.Median, 65))
	}
	b.add(idle, loaded)
	return nil
}

// weightRows are the two rows of a weight.
func weightRows(id, name string, m proc.Memory, peer report.Figure, limit float64) []report.Figure {
	return []report.Figure{
		report.Measured(id, name+" (PSS)", "MB", float64(m.PSS)/1e6).Against(peer).AtMost(report.Median, limit),
		report.Measured(id+".whole", "with guest memory that nothing maps now", "MB", float64(m.Whole)/1e6).As(report.Part),
	}
}

// weigh is the memory of the server and all its processes.
func (s *server) weigh() (proc.Memory, error) {
	tree, err := proc.Tree(s.cmd.Process.Pid)
	if err != nil {
		return proc.Memory{}, err
	}
	return proc.MemoryOf(tree)
}

func each(before, after proc.Memory, n int) proc.Memory {
	return proc.Memory{PSS: (after.PSS - before.PSS) / int64(n), Whole: (after.Whole - before.Whole) / int64(n)}
}

// weighBoxes makes boxes, runs code in each, and weighs one. The first is made
// before the weighing: what all share counts once, not for each.
func (b *bench) weighBoxes(ctx context.Context, state, code string, settings ...string) (proc.Memory, error) {
	s, err := b.serve(ctx, state, append(settings, "GLOVEBOX_POOL_SIZE=0", "GLOVEBOX_PAUSE_AFTER=never")...)
	if err != nil {
		return proc.Memory{}, err
	}
	defer s.stop()
	var ids []string
	more := func() error {
		_, id, _, err := s.create(ctx, fmt.Sprintf("idle-%d", len(ids)))
		if err != nil {
			return err
		}
		ids = append(ids, id)
		_, err = s.eval(ctx, id, code)
		return err
	}
	if err := more(); err != nil {
		return proc.Memory{}, err
	}
	if err := sleep(ctx, quiet); err != nil {
		return proc.Memory{}, err
	}
	before, err := s.weigh()
	if err != nil {
		return proc.Memory{}, err
	}
	n := b.n(8, 2)
	for range n {
		if err := more(); err != nil {
			return proc.Memory{}, err
		}
	}
	if err := sleep(ctx, quiet); err != nil {
		return proc.Memory{}, err
	}
	after, err := s.weigh()
	if err != nil {
		return proc.Memory{}, err
	}
	return each(before, after, n), s.end(ctx, ids...)
}

// quiet is how long boxes do nothing before they are weighed: what a run leaves
// to be freed is freed.
const quiet = 2 * time.Second

// weighPool weighs the boxes of a pool: a server with a large one beside one with
// a small one.
func (b *bench) weighPool(ctx context.Context) (proc.Memory, error) {
	small, large := 1, b.n(6, 3)
	weigh := func(boxes int) (proc.Memory, error) {
		// Node's pool would be in the weight too, so both servers have only Python's.
		s, err := b.serve(ctx, shared, fmt.Sprintf("GLOVEBOX_POOL_SIZE=%d", boxes))
		if err != nil {
			return proc.Memory{}, err
		}
		defer s.stop()
		if err := s.calm(ctx); err != nil {
			return proc.Memory{}, err
		}
		return s.weigh()
	}
	before, err := weigh(small)
	if err != nil {
		return proc.Memory{}, err
	}
	after, err := weigh(large)
	if err != nil {
		return proc.Memory{}, err
	}
	return each(before, after, large-small), nil
}

// calm waits until the server has started no process and used next to no
// processor time for a while: its pool is full.
func (s *server) calm(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settle, fmt.Errorf("the pool was not full after %v", settle))
	defer cancel()
	const still = 2 * time.Second
	for {
		before, err := proc.Tree(s.cmd.Process.Pid)
		if err != nil {
			return err
		}
		used, err := proc.UsageOf(before)
		if err != nil {
			return err
		}
		if err := sleep(ctx, still); err != nil {
			return err
		}
		after, err := proc.Tree(s.cmd.Process.Pid)
		if err != nil {
			return err
		}
		now, err := proc.UsageOf(after)
		if err != nil {
			return err
		}
		if len(after) == len(before) && now.Since(used) < still/20 {
			return nil
		}
	}
}

// weighKernel weighs a Jupyter kernel without its client, idle and with pandas.
func (b *bench) weighKernel(ctx context.Context) (idle, loaded report.Figure) {
	idle = report.Figure{ID: "peer.jupyter.memory", Name: "Jupyter kernel, idle (PSS)"}
	loaded = report.Figure{ID: "peer.jupyter.memory.pandas", Name: "Jupyter kernel, after import pandas (PSS)"}
	weigh := func(f report.Figure, d *dialogue, code string) report.Figure {
		if _, err := d.ask("run " + code); err != nil {
			return report.Absent(f.ID, f.Name, "cannot run here: "+err.Error()).As(report.Peer)
		}
		tree, err := proc.Tree(d.cmd.Process.Pid)
		if err != nil {
			return report.Absent(f.ID, f.Name, err.Error()).As(report.Peer)
		}
		m, err := proc.MemoryOf(tree[1:])
		if err != nil {
			return report.Absent(f.ID, f.Name, err.Error()).As(report.Peer)
		}
		return report.Measured(f.ID, f.Name, "MB", float64(m.PSS)/1e6).As(report.Peer)
	}
	d, err := converse(ctx, b.peers.kernel()...)
	if err != nil {
		why := "cannot run here: " + err.Error()
		return report.Absent(idle.ID, idle.Name, why).As(report.Peer), report.Absent(loaded.ID, loaded.Name, why).As(report.Peer)
	}
	defer d.close()
	idle = weigh(idle, d, "print(1)")
	if idle.Missing != "" {
		return idle, report.Absent(loaded.ID, loaded.Name, idle.Missing).As(report.Peer)
	}
	return idle, weigh(loaded, d, "import pandas")
}
