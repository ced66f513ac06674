//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/glovebox-dev/glovebox/bench/proc"
	"github.com/glovebox-dev/glovebox/bench/report"
)

// memoryScenario measures the memory of an idle box: the growth of the server and all its
// processes by n boxes, divided by n.
func memoryScenario(ctx context.Context, b *bench) error {
	idle, loaded := b.memoryOfKernel(ctx)
	if err := b.buildTemplates(ctx, plain, nothing); err != nil {
		return err
	}
	// First with pandas imported in each box, then preloaded by the template.
	for _, kind := range []struct {
		id, name, language, code, preload string
		peer                              report.Figure
		limit                             float64
	}{
		{"memory.plain", "idle box, Python", "python", "print(1)", nothing, idle, 40},
		{"memory.pandas", "idle box, after import pandas", "python", "import pandas; print(1)", nothing, loaded, 65},
		{"memory.template", "idle box, pandas from the template and used", "python", useOfPandas, preloaded, loaded, 65},
		{"memory.tables", "idle box, numpy and pandas alone from the template and used", "python", useOfPandas, tables, loaded, 65},
		{"memory.node", "idle box, JavaScript", "javascript", "console.log(1)", nothing, report.Figure{}, 0},
	} {
		state := map[string]string{nothing: plain, tables: lean, preloaded: shared}[kind.preload]
		if kind.preload != nothing {
			if !b.offersTemplates(ctx) {
				b.add(report.Absent(kind.id, kind.name+" (PSS)", notOffered).AtMost(report.Median, kind.limit))
				continue
			}
			if err := b.buildTemplates(ctx, state, kind.preload); err != nil {
				return err
			}
		}
		m, err := b.memoryOfBoxes(ctx, b.n(8, 2), state, kind.language, kind.code, "GLOVEBOX_PRELOAD="+kind.preload)
		if err != nil {
			return err
		}
		b.add(memoryRows(kind.id, kind.name, m, kind.peer, kind.limit)...)
	}
	const pair = "boxes of the pool, one of Python with pandas and one of Node"
	if !b.offersTemplates(ctx) {
		b.add(report.Absent("memory.pool", pair+" (PSS)", notOffered))
	} else {
		pool, err := b.memoryOfPool(ctx)
		if err != nil {
			return err
		}
		b.add(memoryRows("memory.pool", pair, pool, loaded, 0)...)
	}
	b.add(idle, loaded)
	return nil
}

// memoryRows returns the rows of a memory measurement, with a target if limit is set.
func memoryRows(id, name string, m proc.Memory, peer report.Figure, limit float64) []report.Figure {
	row := report.Measured(id, name+" (PSS)", "MB", float64(m.PSS)/1e6).Against(peer)
	if limit > 0 {
		row = row.AtMost(report.Median, limit)
	}
	return []report.Figure{
		row,
		report.Measured(id+".guest", "of which the guest's own memory", "MB", float64(m.Shared)/1e6).As(report.Part),
		report.Measured(id+".whole", "with guest memory that nothing maps now", "MB", float64(m.Whole)/1e6).As(report.Part),
	}
}

// memory returns the memory of the server and all its processes.
func (s *server) memory() (proc.Memory, error) {
	tree, err := proc.Tree(s.cmd.Process.Pid)
	if err != nil {
		return proc.Memory{}, err
	}
	return proc.MemoryOf(tree)
}

func each(before, after proc.Memory, n int) proc.Memory {
	by := int64(n)
	return proc.Memory{PSS: (after.PSS - before.PSS) / by, Shared: (after.Shared - before.Shared) / by, Whole: (after.Whole - before.Whole) / by}
}

// memoryOfBoxes creates n boxes, runs code in each and returns the memory of one. One more
// box comes before the measurement, so that shared memory does not count.
func (b *bench) memoryOfBoxes(ctx context.Context, n int, state, language, code string, settings ...string) (proc.Memory, error) {
	s, err := b.serve(ctx, state, append(settings, "GLOVEBOX_POOL_SIZE=0", "GLOVEBOX_PAUSE_AFTER=never")...)
	if err != nil {
		return proc.Memory{}, err
	}
	defer s.stop()
	var ids []string
	more := func() error {
		_, made, err := s.call(ctx, "create_context", map[string]any{"name": fmt.Sprintf("idle-%d", len(ids)), "language": language})
		if err != nil {
			return err
		}
		id, _ := made["context_id"].(string)
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
	before, err := s.memory()
	if err != nil {
		return proc.Memory{}, err
	}
	for range n {
		if err := more(); err != nil {
			return proc.Memory{}, err
		}
	}
	if err := sleep(ctx, quiet); err != nil {
		return proc.Memory{}, err
	}
	after, err := s.memory()
	if err != nil {
		return proc.Memory{}, err
	}
	return each(before, after, n), s.end(ctx, ids...)
}

// quiet is the idle time before a measurement, in which garbage of a run is freed.
const quiet = 2 * time.Second

// memoryOfPool measures the boxes of a pool: a server with a large pool against one with a
// small pool.
func (b *bench) memoryOfPool(ctx context.Context) (proc.Memory, error) {
	small, large := 1, b.n(6, 3)
	weigh := func(boxes int) (proc.Memory, error) {
		s, err := b.serve(ctx, shared, fmt.Sprintf("GLOVEBOX_POOL_SIZE=%d", boxes))
		if err != nil {
			return proc.Memory{}, err
		}
		defer s.stop()
		if err := s.poolFull(ctx, boxes); err != nil {
			return proc.Memory{}, err
		}
		if err := sleep(ctx, quiet); err != nil {
			return proc.Memory{}, err
		}
		return s.memory()
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

// memoryOfKernel measures the memory of a Jupyter kernel without its client, idle and with
// pandas.
func (b *bench) memoryOfKernel(ctx context.Context) (idle, loaded report.Figure) {
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
