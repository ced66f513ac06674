package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// interval is the least time between two scans of a directory.
	interval = 5 * time.Second
	// share bounds the part of the time that scans of one directory take, as a divisor, so
	// that a large one delays those of others little.
	share = 20
	// maxFails is how many scans of a directory in a row may remain unfinished before it
	// counts as over its quota: otherwise a tree that is too large to be scanned would have
	// no quota.
	maxFails = 2
)

// limits bound a scan.
type limits struct {
	names int           // of files and directories
	depth int           // of directories, each of which holds a descriptor
	time  time.Duration // of the scan
}

// scanLimits are those of scans: half a million files take a second or two from memory.
var scanLimits = limits{names: 500_000, depth: 100, time: 10 * time.Second}

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

// directory is a directory with a quota.
type directory struct {
	quota int64
	over  bool
	fails int       // unfinished scans in a row
	next  time.Time // when it is scanned again
}

// quotaOf notes that boxes use a directory with a quota, and reports whether they may only
// read it now.
func (s *Set) quotaOf(host string, quota int64) (over bool) {
	if quota == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dirs[host]
	if d == nil {
		d = &directory{quota: quota}
		s.dirs[host] = d
	}
	return d.over
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

// Watch measures the directories with quotas that boxes have used, one at a time, until ctx
// ends. It calls changed after a round of scans if a directory is over its quota or was
// before: Of returns other mounts then, and boxes may have the old ones.
func (s *Set) Watch(ctx context.Context, log *slog.Logger, changed func()) {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		if s.round(ctx, log, time.Now) {
			changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// round scans the directories whose time has come, and reports whether one of them is over
// its quota or was before.
func (s *Set) round(ctx context.Context, log *slog.Logger, now func() time.Time) (changed bool) {
	s.mu.Lock()
	var due []string
	for host, d := range s.dirs {
		if !now().Before(d.next) {
			due = append(due, host)
		}
	}
	s.mu.Unlock()
	for _, host := range due {
		if ctx.Err() != nil {
			return changed
		}
		s.mu.Lock()
		quota := s.dirs[host].quota
		s.mu.Unlock()
		begun := now()
		bytes, err := measure(ctx, host, quota, scanLimits)
		if ctx.Err() != nil {
			return changed
		}
		if s.note(log, host, bytes, err, begun, now()) {
			changed = true
		}
	}
	return changed
}

// note records the result of a scan.
func (s *Set) note(log *slog.Logger, host string, bytes int64, err error, begun, ended time.Time) (changed bool) {
	s.mu.Lock()
	d := s.dirs[host]
	was := d.over
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
	d.next = ended.Add(max(interval, share*ended.Sub(begun)))
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
	return was || over
}
