//go:build linux

package attack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

// Config is what a run attacks.
type Config struct {
	// Maker makes the boxes. Required. Its engine is used by nobody else.
	Maker *machine.Maker
	// Program is the path of glovebox, for attacks on the server. Required by these
	// attacks.
	Program string
	// StateDir is the state directory of the engine and, shared with it, of the
	// servers that are started. Required by the attacks on the server.
	StateDir string
	// Dir is an existing, empty directory for files of the run. Required.
	Dir string
	// Progress is called with each result as it is known, never concurrently. It may
	// be nil.
	Progress func(Result)
	// Answer is how quickly the host and a neighbouring box must answer beside an attack: a
	// second if it is 0, and longer on a machine that is slow without one. At most MaxAnswer.
	Answer time.Duration
	// Log is the log. Default: discarded.
	Log *slog.Logger

	// The following weaken what is attacked, for tests of the judge.

	weaken  func(engine.Limits) engine.Limits // the limits that boxes get instead
	target  string                            // the address of the server that is attacked instead
	secure  *tls.Config                       // of clients of target; nil: no TLS
	extraMB int                               // that attacks on memory try to take beyond the ceiling
	seconds int                               // that attacks on memory last, if more than memorySeconds
	mcp     weakMCP                           // what the attacks on glovebox mcp meet instead
	calls   weakCalls                         // what the attacks on code mode meet instead
	egress  weakEgress                        // what the attacks on the network of boxes meet instead
	images  weakImages                        // what the attacks with images meet instead
	volumes weakVolumes                       // what the attacks on quotas of volumes meet instead
}

// rig is what the trials of a run share.
type rig struct {
	cfg     *Config
	bait    *bait
	witness *witness
	server  *servers
}

// attackTimeout bounds one attack with its examination.
const attackTimeout = 3 * time.Minute

// Run runs the attacks, those that may run side by side first, and returns the
// report. An error means that the run could not start or was interrupted; the
// report then has the results of the attacks that ran to their end.
func Run(ctx context.Context, cfg Config, attacks []Attack) (*Report, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	report := newReport(&cfg)
	report.Selected = len(attacks)
	if err := os.Chmod(cfg.Dir, 0o755); err != nil {
		return report, fmt.Errorf("open the directory of the run to boxes: %w", err)
	}
	r := &rig{cfg: &cfg}
	r.server = &servers{rig: r}
	dir := filepath.Join(cfg.Dir, "bait")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return report, fmt.Errorf("prepare the attacks: %w", err)
	}
	var err error
	if r.bait, err = plant(dir); err != nil {
		return report, fmt.Errorf("prepare the attacks: %w", err)
	}
	defer r.bait.close()
	if r.witness, err = newWitness(ctx, &cfg); err != nil {
		return report, fmt.Errorf("prepare the attacks: %w", err)
	}
	before := everything(r.witness.neighbour.ID)
	report.Baseline = r.witness.baseline

	var beside, alone []Attack
	for _, a := range attacks {
		if a.Alone {
			alone = append(alone, a)
		} else {
			beside = append(beside, a)
		}
	}
	r.all(ctx, report, beside, lanes())
	r.all(ctx, report, alone, 1)
	report.sort(attacks)

	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), bootTimeout)
	defer cancel()
	if err := r.server.close(); err != nil {
		report.Left = append(report.Left, err.Error())
	}
	report.Left = append(report.Left, leftSince(before, r.witness.neighbour.ID)...)
	if err := r.witness.close(closing); err != nil {
		report.Left = append(report.Left, fmt.Sprintf("the neighbour: %v", err))
	}
	report.finish()
	return report, context.Cause(ctx)
}

// lanes is the number of attacks that run side by side.
func lanes() int { return max(2, min(4, runtime.NumCPU())) }

// all runs attacks, n at a time.
func (r *rig) all(ctx context.Context, report *Report, attacks []Attack, n int) {
	queue := make(chan *Attack)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range n {
		wg.Go(func() {
			for a := range queue {
				res := r.one(ctx, a)
				if ctx.Err() != nil {
					continue // it was interrupted, and what it found may come of that
				}
				mu.Lock()
				report.Results = append(report.Results, res)
				if r.cfg.Progress != nil {
					r.cfg.Progress(res)
				}
				mu.Unlock()
			}
		})
	}
	for i := range attacks {
		if ctx.Err() != nil {
			break
		}
		queue <- &attacks[i]
	}
	close(queue)
	wg.Wait()
}

// one runs an attack. An attack that could not be carried out, or that only delayed
// something, is run again, up to three times in all: it may have met a busy moment of
// the machine. Any other broken promise counts at once.
func (r *rig) one(ctx context.Context, a *Attack) Result {
	const runs = 3
	res := r.try(ctx, a, r.witness.allowed)
	for range runs - 1 {
		if ctx.Err() != nil || res.Outcome != Failed && !res.onlyLate {
			break
		}
		res = r.try(ctx, a, r.witness.allowedNow(ctx))
	}
	return res
}

// try runs an attack once. Answers may take as long as allowed meanwhile.
func (r *rig) try(ctx context.Context, a *Attack, allowed time.Duration) Result {
	ctx, cancel := context.WithTimeoutCause(ctx, attackTimeout, fmt.Errorf("the attack took longer than %v", attackTimeout))
	defer cancel()
	t := &trial{rig: r, attack: a, nonce: newNonce(), began: time.Now(), allowed: allowed}
	watch := r.witness.watch(ctx, allowed)
	err := a.run(ctx, t)
	for _, c := range t.boxes() {
		c.settle(context.WithoutCancel(ctx))
	}
	worst, late := watch.stop()
	for _, l := range late {
		t.late("%s", l)
	}
	r.bait.check(t)
	if cause := context.Cause(ctx); cause != nil && err != nil {
		err = errors.Join(err, cause)
	}
	res := t.result(err)
	res.Worst = worst
	return res
}

// python returns the path of Python in boxes.
func (r *rig) python() string {
	if p := r.cfg.Maker.Interpreters[box.Python]; p != "" {
		return p
	}
	return "python3"
}
