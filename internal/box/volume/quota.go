package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// minInterval and maxInterval bound the time between the end of a scan of a directory
	// and the time at which it is due again.
	minInterval = 5 * time.Second
	maxInterval = 30 * time.Second
	// share bounds the part of the time that scans of one directory take, as a divisor,
	// as far as maxInterval allows.
	share = 20
	// slowScan is the duration from which on a directory waits for those that take less: ten
	// of those add up to a few seconds at most, with the pauses.
	slowScan = 100 * time.Millisecond
	// slice bounds the time for which a directory is scanned, and slow ones together are,
	// before all others that are due: a scan that takes longer goes on where it stopped.
	slice = 2 * time.Second
	// maxWeight bounds the weight of all scans that have stopped: see weight. Those of usual
	// trees weigh 2 MiB each.
	maxWeight = 64 << 20
	// heavyShare is the part of maxWeight, as a divisor, beyond which one scan is too heavy. A
	// tree of 60 levels is.
	heavyShare = 4
	// maxFails is how many scans of a directory in a row may remain unfinished before it
	// counts as over its quota: otherwise a tree that is too large to be scanned would have
	// no quota.
	maxFails = 2
)

// limits bound a scan. None is of time: how long a scan takes says more of the disk than of
// the code that made the files.
type limits struct {
	names int // of files and directories
	held  int // bytes of the names that it holds in memory
	depth int // of directories, each of which holds a descriptor
}

// scanLimits are those of scans: half a million files take a second or two from memory.
var scanLimits = limits{names: 500_000, held: 16 << 20, depth: 100}

// errUnfinished means that a scan ended before it had seen everything.
var errUnfinished = errors.New("the scan cannot finish")

// errHeavy ends a heavy scan when all that have stopped hold too much.
var errHeavy = fmt.Errorf("%w: the directories are slow to scan, and too deep or too large for that", errUnfinished)

// Outcome says how a scan ended. It is a closed set: a metric label.
type Outcome string

// The closed set of outcomes.
const (
	OK         Outcome = "ok"         // within the quota
	Over       Outcome = "over"       // over the quota
	Unfinished Outcome = "unfinished" // too many files, too deep, too slow for its size, or unreadable
)

// Outcomes lists the closed set.
func Outcomes() []Outcome { return []Outcome{OK, Over, Unfinished} }

// Stats counts what a Set has measured.
type Stats struct {
	Over  int                // directories that boxes may only read now
	Scans map[Outcome]uint64 // since the start
}

// directory is an owner's directory with a quota.
type directory struct {
	owner string
	quota int64
	over  bool
	was   bool      // over at some time: boxes may have other mounts than they should
	fails int       // unfinished scans in a row
	due   time.Time // when it is scanned again
	slow  bool      // its latest scan took slowScan or more
	used  bool      // boxes may have written to it since its latest scan began
	scan  *scan     // has stopped, and goes on when it is due; nil while it runs
}

// settled reports whether a directory can be forgotten if its owner has no boxes: the
// next box finds it as a new one.
func (d *directory) settled() bool { return !d.used && !d.over && d.fails == 0 && d.scan == nil }

// use notes that boxes of an owner may write to the directories with quotas.
func (s *Set) use(owner string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.list {
		if v.Quota == 0 {
			continue
		}
		host := v.dir(owner)
		if s.dirs[host] == nil {
			s.dirs[host] = &directory{owner: owner, quota: v.Quota, due: now}
		}
		s.dirs[host].used = true
	}
}

// forget removes the directories of owners without boxes whose scans have nothing to say.
func (s *Set) forget(owners []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := make(map[string]bool, len(owners))
	for _, o := range owners {
		have[o] = true
	}
	for host, d := range s.dirs {
		if !have[d.owner] && d.settled() {
			delete(s.dirs, host)
		}
	}
}

// Stats returns what was measured.
func (s *Set) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Scans: make(map[Outcome]uint64, len(s.scans))}
	for o, n := range s.scans {
		st.Scans[o] = n
	}
	for _, d := range s.dirs {
		if d.over {
			st.Over++
		}
	}
	return st
}

// Watch measures the directories with quotas until ctx ends, one at a time: those of the owners
// that owners returns (some perhaps twice), which have boxes in memory, and those that Of has
// returned since. After each scan of a directory that is or was over its quota, it calls revise
// with the owner: Peek returns other mounts then, and boxes may have the old ones.
func (s *Set) Watch(ctx context.Context, log *slog.Logger, owners func() []string, revise func(owner string)) {
	w := &watch{set: s, log: log, owners: owners, revise: revise, now: time.Now, slice: slice, maxWeight: maxWeight}
	defer w.close()
	for ctx.Err() == nil {
		w.round(ctx)
		pause(ctx, time.Second)
	}
}

// watch is what a call of Watch works with.
type watch struct {
	set    *Set
	log    *slog.Logger
	owners func() []string
	revise func(owner string)
	now    func() time.Time

	slice     time.Duration
	maxWeight int
}

// round scans the directories that are due: the quick ones, and slow ones for a slice of time
// together. However many owners have directories that are slow to scan, and however slow the
// disk is, those of others wait for one slice. After each scan it waits as long as that took,
// so that scans take half of the time at most.
func (w *watch) round(ctx context.Context) {
	owners := w.owners()
	for _, o := range owners {
		w.set.use(o, w.now())
	}
	w.set.forget(owners)
	quick, slow := w.set.due(w.now())
	for _, host := range quick {
		if ctx.Err() != nil {
			return
		}
		pause(ctx, w.scan(ctx, host, w.slice))
	}
	for left := w.slice; len(slow) > 0 && left > 0 && ctx.Err() == nil; slow = slow[1:] {
		took := w.scan(ctx, slow[0], left)
		left -= took
		pause(ctx, took)
	}
}

// close ends the scans that have stopped.
func (w *watch) close() {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	for _, d := range w.set.dirs {
		if d.scan != nil {
			d.scan.close()
			d.scan = nil
		}
	}
}

// due lists the directories whose time has come, in the order of their times: those whose
// latest scan was quick, which a new one counts as, and the others.
func (s *Set) due(now time.Time) (quick, slow []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for host, d := range s.dirs {
		switch {
		case now.Before(d.due):
		case d.slow:
			slow = append(slow, host)
		default:
			quick = append(quick, host)
		}
	}
	first := func(a, b string) int { return s.dirs[a].due.Compare(s.dirs[b].due) }
	slices.SortFunc(quick, first)
	slices.SortFunc(slow, first)
	return quick, slow
}

// scan measures a directory for a slice of time, from where its scan stopped. If that is done,
// it acts on the result. It returns how long that took.
func (w *watch) scan(ctx context.Context, host string, slice time.Duration) time.Duration {
	w.set.mu.Lock()
	d := w.set.dirs[host]
	quota, owner, sc := d.quota, d.owner, d.scan
	if sc == nil {
		d.used = false
	}
	d.scan = nil
	w.set.mu.Unlock()
	begun := w.now()
	var err error
	done := true
	if sc == nil {
		sc, err = newScan(host, quota, scanLimits)
	}
	if err == nil {
		done, err = sc.run(ctx, slice)
	}
	ended := w.now()
	switch {
	case !done:
		w.set.stop(host, sc, ended)
		w.lighten(ended)
	case ctx.Err() != nil:
	case err != nil:
		took := ended.Sub(begun)
		if sc != nil {
			took = sc.took // of all its slices
		}
		w.noted(host, owner, 0, err, took, ended)
	default:
		w.noted(host, owner, sc.bytes, nil, max(sc.took, ended.Sub(begun)), ended)
	}
	return ended.Sub(begun)
}

// noted records the result of a scan and revises the owner's boxes.
func (w *watch) noted(host, owner string, bytes int64, err error, took time.Duration, ended time.Time) {
	if w.set.note(w.log, host, bytes, err, took, ended) {
		w.revise(owner)
	}
}

// stop keeps a scan that is not done. It goes on after the slow ones that were due before.
func (s *Set) stop(host string, sc *scan, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dirs[host]
	d.scan, d.slow, d.due = sc, true, now
}

// lighten ends scans that have stopped until the others weigh maxWeight at most. First it ends
// heavy ones, the heaviest first, as unfinished: code that makes a directory for many
// descriptors or names ends its own scans, before those of others. If there are none, there
// are many light scans: the one that has taken the least time begins
// again later, so that the others come to their end.
func (w *watch) lighten(now time.Time) {
	for {
		w.set.mu.Lock()
		sum := 0
		var heaviest, youngest string
		for host, d := range w.set.dirs {
			if d.scan == nil {
				continue
			}
			sum += d.scan.weight()
			if heaviest == "" || d.scan.weight() > w.set.dirs[heaviest].scan.weight() {
				heaviest = host
			}
			if youngest == "" || d.scan.took < w.set.dirs[youngest].scan.took {
				youngest = host
			}
		}
		if sum <= w.maxWeight {
			w.set.mu.Unlock()
			return
		}
		host, heavy := youngest, false
		if w.set.dirs[heaviest].scan.weight() > w.maxWeight/heavyShare {
			host, heavy = heaviest, true
		}
		d := w.set.dirs[host]
		sc, owner := d.scan, d.owner
		d.scan = nil
		if !heavy {
			d.used, d.due = true, now.Add(minInterval)
		}
		w.set.mu.Unlock()
		sc.close()
		if heavy {
			w.noted(host, owner, 0, errHeavy, sc.took, now)
		}
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// note records the result of a scan, and reports whether boxes may have other mounts than
// they should: the directory is over its quota or was at some time.
func (s *Set) note(log *slog.Logger, host string, bytes int64, err error, took time.Duration, ended time.Time) (revise bool) {
	s.mu.Lock()
	d := s.dirs[host]
	was := d.over
	d.slow = took >= slowScan
	outcome := OK
	switch {
	case err != nil:
		outcome = Unfinished
		if d.fails++; d.fails >= maxFails {
			d.over = true
		}
	case bytes > d.quota:
		outcome, d.fails, d.over = Over, 0, true
	default:
		d.fails, d.over = 0, false
	}
	s.scans[outcome]++
	d.due = ended.Add(min(max(minInterval, share*took), maxInterval))
	if err != nil && d.fails < maxFails {
		d.due = ended
	}
	d.was = d.was || d.over // a box in a call keeps its frozen volume until it is idle
	revise = d.was
	fails, over, quota := d.fails, d.over, d.quota
	s.mu.Unlock()
	switch {
	case err != nil && fails <= maxFails:
		log.Warn("volume not measured", logkey.Volume, host, logkey.Error, err,
			logkey.Note, fmt.Sprintf("after %d such scans in a row, boxes may only read it", maxFails))
	case over && !was:
		log.Warn("volume is over its quota: boxes may only read it", logkey.Volume, host, logkey.Bytes, bytes, logkey.Quota, quota)
	case was && !over:
		log.Info("volume is within its quota again", logkey.Volume, host, logkey.Bytes, bytes, logkey.Quota, quota)
	}
	return revise
}
