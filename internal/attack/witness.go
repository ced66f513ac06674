//go:build linux

package attack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/box/machine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// answerTime is the default of Config.Answer.
	answerTime = time.Second
	// askEvery is the pause between two questions to each.
	askEvery = 200 * time.Millisecond
	// muchTooLate is how many times the allowed time a single answer may take.
	muchTooLate = 3
	// noAnswer is when a question is given up.
	noAnswer = 10 * time.Second
	// MaxAnswer is the longest Config.Answer.
	MaxAnswer = noAnswer / 2
	// mostAllowed bounds what a busy machine makes of answerTime.
	mostAllowed = 3 * time.Second
)

// witness measures whether the host and a neighbouring box answer.
type witness struct {
	dir       string
	neighbour *machine.Machine
	baseline  Answers
	answer    time.Duration // of the Config
	allowed   time.Duration // see Answers.allow
}

// newWitness boots the neighbour and measures how both answer while nothing
// attacks them.
func newWitness(ctx context.Context, cfg *Config) (*witness, error) {
	w := &witness{dir: filepath.Join(cfg.Dir, "witness"), answer: cmp.Or(cfg.Answer, answerTime)}
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		return nil, err
	}
	booting, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("not booted within %v", bootTimeout))
	defer cancel()
	var err error
	if w.neighbour, err = cfg.Maker.Boot(booting, "attack-neighbour-"+newNonce(), small); err != nil {
		return nil, fmt.Errorf("boot a neighbour: %w", err)
	}
	if w.baseline, err = w.measure(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("before the attacks, %w", err), w.close(context.WithoutCancel(ctx)))
	}
	w.allowed = w.baseline.allow(w.answer)
	return w, nil
}

// measure returns the slowest of some answers.
func (w *witness) measure(ctx context.Context) (worst Answers, err error) {
	for range 5 {
		for _, ask := range w.questions() {
			took, err := ask.ask(ctx)
			if err != nil {
				return worst, fmt.Errorf("%s: %w", ask.name, err)
			}
			worst.add(ask.name, took)
		}
	}
	return worst, nil
}

// allow returns how long an answer may take beside an attack, if it took a without one: at
// least least.
func (a Answers) allow(least time.Duration) time.Duration {
	return max(least, 3*time.Duration(max(a.HostMS, a.NeighbourMS))*time.Millisecond)
}

// allowedNow returns how long an answer may take beside an attack that is run again: other
// programs of the machine may have become busy since the baseline.
func (w *witness) allowedNow(ctx context.Context) time.Duration {
	now, err := w.measure(ctx)
	if err != nil { // the attack finds that, too
		return w.allowed
	}
	return max(w.allowed, min(now.allow(w.answer), mostAllowed))
}

// question is something that must be answered.
type question struct {
	name string
	ask  func(context.Context) (time.Duration, error)
}

const (
	theHost      = "the host"
	theNeighbour = "a neighbour"
)

func (w *witness) questions() []question {
	return []question{{theHost, w.askHost}, {theNeighbour, w.askNeighbour}}
}

// askHost starts a program and writes a file.
func (w *witness) askHost(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, noAnswer)
	defer cancel()
	start := time.Now()
	f, err := os.CreateTemp(w.dir, "")
	if err != nil {
		return 0, err
	}
	_, err = f.WriteString("answer")
	if err := errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return 0, err
	}
	err = exec.CommandContext(ctx, "/bin/true").Run()
	return time.Since(start), err
}

// askNeighbour starts a program in the neighbouring box.
func (w *witness) askNeighbour(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, noAnswer)
	defer cancel()
	start := time.Now()
	var out output
	res, err := w.neighbour.Agent.Exec(ctx, protocol.Exec{Argv: []string{"/bin/sh", "-c", "echo $((6 * 7))"}, TimeoutMS: noAnswer.Milliseconds()}, nil, &out)
	if err == nil && (res.Code != 0 || strings.TrimSpace(out.String()) != "42") {
		err = fmt.Errorf("code %d, output %q", res.Code, out.String())
	}
	return time.Since(start), err
}

func (w *witness) close(ctx context.Context) error { return w.neighbour.Close(ctx) }

func (a *Answers) add(name string, took time.Duration) {
	if name == theHost {
		a.HostMS = max(a.HostMS, took.Milliseconds())
	} else {
		a.NeighbourMS = max(a.NeighbourMS, took.Milliseconds())
	}
}

// watch is the watch over one attack.
type watch struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	worst Answers  // guarded by mu
	late  []string // guarded by mu
}

// watch asks both until the watch is stopped. Answers may take as long as allowed.
func (w *witness) watch(ctx context.Context, allowed time.Duration) *watch {
	ctx, cancel := context.WithCancel(ctx)
	s := &watch{cancel: cancel}
	for _, q := range w.questions() {
		s.wg.Go(func() { s.keepAsking(ctx, q, allowed) })
	}
	return s
}

// keepAsking asks until ctx ends or an answer is late. Other programs of the machine
// may delay a single answer: it counts as late if the next one is late as well or if
// it took muchTooLate times as long as allowed.
func (w *watch) keepAsking(ctx context.Context, q question, allowed time.Duration) {
	for ctx.Err() == nil {
		for attempt := 1; ; attempt++ {
			took, err := q.ask(context.WithoutCancel(ctx))
			w.mu.Lock()
			w.worst.add(q.name, took)
			w.mu.Unlock()
			if err == nil && took <= allowed {
				break
			}
			if attempt == 2 || took > muchTooLate*allowed {
				w.record(q, took, allowed, err)
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(askEvery):
		}
	}
}

func (w *watch) record(q question, took, allowed time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.late = append(w.late, fmt.Sprintf("%s does not answer: %v", q.name, err))
		return
	}
	w.late = append(w.late, fmt.Sprintf("%s answers after %v; %v are allowed", q.name, took.Round(time.Millisecond), allowed))
}

// stop ends the watch and returns the worst answers and what was late.
func (w *watch) stop() (Answers, []string) {
	w.cancel()
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.worst, w.late
}
