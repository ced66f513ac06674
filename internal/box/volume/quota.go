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
	// slowScan is the duration from which on a directory waits for those that take less.
	slowScan = time.Second
	// maxFails is how many scans of a directory in a row may remain unfinished before it
	// counts as over its quota: otherwise a tree that is too large to be scanned would have
	// no quota.
	maxFails = 2
)

// limits bound a scan.
type limits struct {
	names int           // of files and directories
	held  int           // bytes of the names that it holds in memory
	depth int           // of directories, each of which holds a descriptor
	time  time.Duration // of the scan
}

// scanLimits are those of scans: half a million files take a second or two from memory.
var scanLimits = limits{names: 500_000, held: 16 << 20, depth: 100, time: 10 * time.Second}

// errUnfinished means that a scan ended before it had seen everything.
var errUnfinished = errors.New("the scan cannot finish")

// Outcome says how a scan ended. It is a closed set: a metric label.
type Outcome string

// The closed set of outcomes.
const (
	OK         Outcome = "ok"         // within the quota
	Over       Outcome = "over"       // over the quota
	Unfinished Outcome = "unfinished" // too many files, too deep, too slow, or unreadable
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
}

// settled reports whether a directory can be forgotten if its owner has no boxes: the
// next box finds it as a new one.
func (d *directory) settled() bool { return !d.used && !d.over && d.fails == 0 }

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

// Watch measures the directories with quotas until ctx ends, one at a time: those of the
// owners that owners returns (some perhaps twice), which have boxes in memory, and those that Of has returned
// since. After each scan of a directory that is or was over its quota, it calls revise with the owner: Peek returns other mounts then, and boxes may have the old ones.
func (s *Set) Watch(ctx context.Context, log *slog.Logger, owners func() []string, revise func(owner string)) {
	w := &watch{set: s, log: log, owners: owners, revise: revise, now: time.Now}
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
}

// round scans the directories that are due: the quick ones, and one slow one. However many
// owners have directories that are slow to scan, those of others wait for one of them. After
// each scan it waits as long as that took, so that scans take half of the time at most.
func (w *watch) round(ctx context.Context) {
	owners := w.owners()
	for _, o := range owners {
		w.set.use(o, w.now())
	}
	w.set.forget(owners)
	quick, slow := w.set.due(w.now())
	for _, host := range append(quick, slow[:min(1, len(slow))]...) {
		if ctx.Err() != nil {
			return
		}
		pause(ctx, w.scan(ctx, host))
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

// scan measures a directory, acts on the result, and returns how long the scan took.
func (w *watch) scan(ctx context.Context, host string) time.Duration {
	w.set.mu.Lock()
	d := w.set.dirs[host]
	quota, owner := d.quota, d.owner
	d.used = false
	w.set.mu.Unlock()
	begun := w.now()
	bytes, err := measure(ctx, host, quota, scanLimits)
	if ctx.Err() != nil {
		return 0
	}
	ended := w.now()
	if w.set.note(w.log, host, bytes, err, begun, ended) {
		w.revise(owner)
	}
	return ended.Sub(begun)
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
func (s *Set) note(log *slog.Logger, host string, bytes int64, err error, begun, ended time.Time) (revise bool) {
	s.mu.Lock()
	d := s.dirs[host]
	was := d.over
	d.slow = ended.Sub(begun) >= slowScan
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
	d.due = ended.Add(min(max(minInterval, share*ended.Sub(begun)), maxInterval))
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
