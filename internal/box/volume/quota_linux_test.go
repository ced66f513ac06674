package volume

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fill writes a file of n KiB, which no file system compresses.
func fill(t *testing.T, path string, n int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, n<<10)
	rand.Read(content)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// measure scans a directory to the end, a slice after another.
func measure(ctx context.Context, dir string, most int64, l limits, slice time.Duration) (int64, error) {
	s, err := newScan(dir, most, l)
	if err != nil {
		return 0, err
	}
	for {
		if done, err := s.run(ctx, slice); done {
			return s.bytes, err
		}
	}
}

func TestMeasure(t *testing.T) {
	root, outside := dir(t), dir(t)
	fill(t, filepath.Join(outside, "large"), 4096)
	fill(t, filepath.Join(root, "a"), 100)
	fill(t, filepath.Join(root, "d/e/b"), 200)
	if err := errors.Join(
		os.Link(filepath.Join(root, "a"), filepath.Join(root, "d/again")),
		os.Symlink(outside, filepath.Join(root, "link")), os.Symlink(".", filepath.Join(root, "d/loop")),
		os.Truncate(filepath.Join(root, "a"), 1<<30), // a hole
	); err != nil {
		t.Fatal(err)
	}
	for _, slice := range []time.Duration{time.Minute, 0} {
		got, err := measure(t.Context(), root, 1<<40, scanLimits, slice)
		if err != nil || got < 300<<10 || got > 400<<10 {
			t.Errorf("in slices of %v: got %d KiB, %v, want 300 and the directories", slice, got>>10, err)
		}
		if got, err := measure(t.Context(), root, 150<<10, scanLimits, slice); err != nil || got <= 150<<10 {
			t.Errorf("with less allowed, in slices of %v: got %d KiB, %v", slice, got>>10, err)
		}
	}
}

// A scan that reaches a limit says which; it is never taken for a complete one.
func TestMeasure_Unfinished(t *testing.T) {
	root := dir(t)
	for _, name := range []string{"a", "b", "c", "d/e/f/g"} {
		fill(t, filepath.Join(root, name), 1)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		dir  string
		l    limits
		want string
	}{
		"names":   {t.Context(), root, limits{3, 100, 10}, "more than 3 files"},
		"held":    {t.Context(), root, limits{100, 3, 10}, "more than 3 bytes"},
		"depth":   {t.Context(), root, limits{100, 100, 3}, "more than 3 levels deep"},
		"ended":   {ended, root, scanLimits, "canceled"},
		"missing": {t.Context(), filepath.Join(root, "missing"), scanLimits, "no such file"},
		"link":    {t.Context(), "/proc/self/cwd", scanLimits, "cannot finish"},
	} {
		if _, err := measure(c.ctx, c.dir, 1<<40, c.l, 0); !errors.Is(err, errUnfinished) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	// Names of directories that the scan has left are not in memory any more.
	for _, name := range []string{"d/1", "d/2", "d/3", "x/1", "x/2", "x/3", "y/1", "y/2", "y/3"} {
		fill(t, filepath.Join(root, name), 1)
	}
	if _, err := measure(t.Context(), root, 1<<40, limits{100, 12, 10}, 0); err != nil {
		t.Errorf("with 6 names at the top and 6 below in the largest directory: %v", err)
	}
	before := openFiles(t)
	for range 20 {
		measure(t.Context(), root, 1<<40, limits{100, 100, 3}, 0)
	}
	if after := openFiles(t); after > before {
		t.Errorf("leak: %d descriptors before the scans, %d after", before, after)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Code that moves a file between directories all the time is found out.
func TestMeasure_Renames(t *testing.T) {
	root := dir(t)
	fill(t, filepath.Join(root, "a/file"), 1024)
	for _, name := range []string{"b", "c", "d"} {
		fill(t, filepath.Join(root, name, "small"), 1)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		names := []string{"a", "b", "c", "d"}
		for i := 0; ctx.Err() == nil; i++ {
			os.Rename(filepath.Join(root, names[i%4], "file"), filepath.Join(root, names[(i+1)%4], "file"))
		}
	}()
	found := false
	for i := 0; i < 1000 && !found; i++ {
		got, err := measure(t.Context(), root, 512<<10, scanLimits, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		found = got > 512<<10
	}
	stop()
	<-ended
	if !found {
		t.Error("1,000 scans have not seen the file that is moved")
	}
}

// quotas is a set with one volume, which Watch would scan.
type quotas struct {
	*testing.T
	parent  string
	set     *Set
	watch   *watch
	clock   time.Time
	boxes   []string // owners with boxes in memory
	revised []string // owners in the order of the calls
}

func newQuotas(t *testing.T) *quotas {
	t.Helper()
	q := &quotas{T: t, parent: dir(t), clock: time.Now()}
	var err error
	q.set, err = Open([]Volume{{Host: q.parent, Guest: "/own", PerOwner: true, Quota: 1 << 20}}, filepath.Join(dir(t), "empty"))
	if err != nil {
		t.Fatal(err)
	}
	q.watch = &watch{
		set: q.set, log: slog.New(slog.DiscardHandler), now: func() time.Time { return q.clock },
		owners: func() []string { return q.boxes }, revise: func(owner string) { q.revised = append(q.revised, owner) },
		slice: slice, maxWeight: maxWeight,
	}
	t.Cleanup(q.watch.close)
	return q
}

// boot makes the volumes of a box, which stays in memory.
func (q *quotas) boot(owner string) {
	q.Helper()
	if _, err := q.set.Of(owner); err != nil {
		q.Fatal(err)
	}
	q.boxes = append(q.boxes, owner)
}

// round has a round of scans a while later, and returns the owners that it revised.
func (q *quotas) round(later time.Duration) []string {
	q.clock, q.revised = q.clock.Add(later), nil
	q.watch.round(q.Context())
	return q.revised
}

func (q *quotas) frozen(owner string) bool { return q.set.Peek(owner)[0].Frozen }

// data returns a path in what boxes of an owner see.
func (q *quotas) data(owner, name string) string { return filepath.Join(q.parent, owner, "data", name) }

func TestSet_Quota(t *testing.T) {
	q := newQuotas(t)
	q.boot("alice")
	q.boot("bob")
	if got := q.round(time.Hour); len(got) > 0 {
		t.Errorf("empty directories are over their quota: %v", got)
	}
	large := q.data("alice", "large")
	fill(t, large, 2048)
	if got := q.round(time.Hour); !slices.Equal(got, []string{"alice"}) || !q.frozen("alice") || q.frozen("bob") {
		t.Errorf("alice is over the quota: revised %v, frozen: %t, bob: %t", got, q.frozen("alice"), q.frozen("bob"))
	}
	if st := q.set.Stats(); st.Over != 1 || st.Scans[Over] != 1 || st.Scans[OK] != 3 {
		t.Errorf("got %+v", st)
	}
	if got := q.round(time.Hour); !slices.Equal(got, []string{"alice"}) {
		t.Errorf("still over the quota: revised %v", got) // a box that could not be hibernated must end
	}
	if err := os.Remove(large); err != nil {
		t.Fatal(err)
	}
	if got := q.round(time.Hour); !slices.Equal(got, []string{"alice"}) || q.frozen("alice") {
		t.Errorf("alice is within the quota again: revised %v, frozen: %t", got, q.frozen("alice"))
	}
	if got := q.round(time.Hour); !slices.Equal(got, []string{"alice"}) {
		t.Errorf("a box that was in a call meanwhile stays frozen: revised %v", got)
	}

	// A tree that cannot be scanned has no quota for a moment only: it is scanned again at
	// once.
	deep := q.data("bob", strings.Repeat("d/", scanLimits.depth))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if q.round(time.Hour); q.frozen("bob") {
		t.Error("frozen after one unfinished scan")
	}
	if got := q.round(0); !slices.Equal(got, []string{"bob"}) || !q.frozen("bob") {
		t.Errorf("after two unfinished scans: revised %v, frozen: %t", got, q.frozen("bob"))
	}
}

// Modes that a box sets do not keep the server from enforcing the quota.
func TestSet_QuotaWithModes(t *testing.T) {
	for _, mode := range []os.FileMode{0o777, 0o000} {
		q := newQuotas(t)
		q.boot("alice")
		fill(t, q.data("alice", "large"), 2048)
		if err := os.Chmod(q.data("alice", ""), mode); err != nil {
			t.Fatal(err)
		}
		got := append(q.round(time.Hour), q.round(0)...) // an ordinary user cannot read a directory with mode 0
		if !slices.Equal(got, []string{"alice"}) || !q.frozen("alice") {
			t.Errorf("mode %o: revised %v, frozen: %t", mode, got, q.frozen("alice"))
		}
		// Nor does an owner's directory that is no longer safe.
		if err := os.Chmod(filepath.Join(q.parent, "alice"), 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := q.set.Of("alice"); !errors.Is(err, ErrUnsafe) || !q.frozen("alice") {
			t.Errorf("mode %o: a box starts: %v, frozen: %t", mode, err, q.frozen("alice"))
		}
	}
}

// An owner's boxes are revised before the next directory is scanned.
func TestWatch_RevisesAtOnce(t *testing.T) {
	q := newQuotas(t)
	for _, o := range []string{"alice", "bob", "carol"} {
		q.boot(o)
		fill(t, q.data(o, "large"), 2048)
	}
	var over []int
	q.watch.revise = func(string) { over = append(over, q.set.Stats().Over) }
	if q.round(time.Hour); !slices.Equal(over, []int{1, 2, 3}) {
		t.Errorf("at the calls of revise, %v directories were over their quota", over)
	}
}

// A directory is due at most 30 s after its scan, however long that took, and of those that
// are quick to scan, and of those that are slow, the first is the one that was due first.
func TestWatch_Due(t *testing.T) {
	q := newQuotas(t)
	for owner, c := range map[string]struct {
		took, want time.Duration
		err        error
	}{
		"a": {0, 5 * time.Second, nil}, "b": {time.Second, 20 * time.Second, nil}, "c": {9 * time.Second, 30 * time.Second, nil},
		"d": {10 * time.Second, 0, errUnfinished}, "e": {slowScan - 1, 5 * time.Second, nil},
	} {
		q.boot(owner)
		q.set.note(q.watch.log, q.set.Peek(owner)[0].Host, 0, c.err, c.took, q.clock.Add(c.took))
		if d := q.set.dirs[q.set.Peek(owner)[0].Host]; d.due.Sub(q.clock.Add(c.took)) != c.want {
			t.Errorf("a scan of %v (%v): due %v after its end, want %v", c.took, c.err, d.due.Sub(q.clock.Add(c.took)), c.want)
		}
	}
	owners := func(hosts []string) string {
		var names []string
		for _, host := range hosts {
			names = append(names, filepath.Base(filepath.Dir(host)))
		}
		return strings.Join(names, " ")
	}
	quick, slow := q.set.due(q.clock.Add(time.Hour))
	if owners(quick) != "a e" || owners(slow) != "d b c" {
		t.Errorf("quick ones in the order %q, slow ones %q; want a e, and d b c", owners(quick), owners(slow))
	}
}

// However many owners have directories that are slow to scan, a quick one of another owner
// waits for a slice of them, and each slow one has its turn.
func TestWatch_SlowDirectoriesDelayNoOtherOwner(t *testing.T) {
	q := newQuotas(t)
	q.watch.slice = time.Nanosecond // which one scan takes
	q.watch.now = func() time.Time {
		q.clock = q.clock.Add(time.Microsecond)
		return q.clock
	}
	const many = 5
	for i := range many {
		owner := fmt.Sprint("slow-", i)
		q.boot(owner)
		q.set.note(q.watch.log, q.set.Peek(owner)[0].Host, 0, nil, slowScan, q.clock)
	}
	q.boot("bob")
	fill(t, q.data("bob", "large"), 2048)
	scanned := func() uint64 { return q.set.Stats().Scans[OK] }
	before := scanned()
	if q.round(time.Hour); !q.frozen("bob") {
		t.Error("bob's directory is not scanned in the first round")
	}
	if n := scanned() - before; n != 1 {
		t.Errorf("%d slow directories are scanned before bob's can be again, want 1", n)
	}
	for range many - 1 { // they were slow then, and are quick now
		q.round(0)
	}
	if n := scanned() - before; n != many {
		t.Errorf("%d of %d slow directories had their turn", n, many)
	}
}

// The scans take half of the time at most.
func TestWatch_Waits(t *testing.T) {
	q := newQuotas(t)
	q.boot("alice")
	q.watch.now = func() time.Time { // a scan takes 20 ms
		q.clock = q.clock.Add(20 * time.Millisecond)
		return q.clock
	}
	begun := time.Now()
	q.round(time.Hour)
	if waited := time.Since(begun); q.set.Stats().Scans[OK] != 1 || waited < 20*time.Millisecond {
		t.Errorf("the round ends %v after its begin, with a scan of 20 ms", waited)
	}
}

// Directories of owners without boxes are forgotten, but neither those over their quota nor
// those that a box has used since the latest scan.
func TestWatch_Forgets(t *testing.T) {
	q := newQuotas(t)
	for _, o := range []string{"alice", "bob"} {
		q.boot(o)
	}
	fill(t, q.data("bob", "large"), 2048)
	q.boxes = nil // they lived for a moment
	if q.round(time.Hour); !q.frozen("bob") || q.set.Stats().Scans[OK] != 1 {
		t.Errorf("boxes that ended before the first scan: bob is frozen: %t, scans %v", q.frozen("bob"), q.set.Stats().Scans)
	}
	if q.round(time.Hour); len(q.set.dirs) != 1 || !q.frozen("bob") {
		t.Errorf("%d directories are remembered, want one; bob is frozen: %t", len(q.set.dirs), q.frozen("bob"))
	}
	if err := os.Remove(q.data("bob", "large")); err != nil {
		t.Fatal(err)
	}
	q.round(time.Hour)
	if q.round(time.Hour); len(q.set.dirs) != 0 {
		t.Errorf("%d directories are remembered, want none", len(q.set.dirs))
	}
	// The boxes of an owner are known without a call of Of.
	q.boxes = []string{"bob", "bob"}
	if q.round(0); len(q.set.dirs) != 1 {
		t.Errorf("%d directories are scanned, want one", len(q.set.dirs))
	}
}
