package volume

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// tree makes n directories with a file each in what boxes of an owner see.
func (q *quotas) tree(owner string, n, size int) {
	q.Helper()
	for i := range n {
		fill(q.T, q.data(owner, fmt.Sprintf("d%d/file", i)), size)
	}
}

// stopped returns the number of scans that have stopped.
func (q *quotas) stopped() (n int) {
	for _, d := range q.set.dirs {
		if d.scan != nil {
			n++
		}
	}
	return n
}

// A directory within its quota stays writable however long its scan takes. The scan goes on
// where it stopped, and other owners have their turns meanwhile.
func TestWatch_SlowDirectoryIsNoOffence(t *testing.T) {
	q := newQuotas(t)
	q.watch.slice = 0 // a slice is one look at the clock
	q.boot("alice")
	q.tree("alice", 200, 0)
	q.boot("bob")
	rounds := 0
	for q.round(time.Second); q.set.dirs[q.set.Peek("alice")[0].Host].scan != nil && rounds < 1000; rounds++ {
		q.watch.slice = time.Nanosecond // so that slow ones have their turn
		q.round(time.Minute)
		if q.frozen("alice") || q.frozen("bob") {
			t.Fatalf("round %d: frozen: alice %t, bob %t", rounds, q.frozen("alice"), q.frozen("bob"))
		}
	}
	if st := q.set.Stats(); rounds < 5 || rounds == 1000 || st.Scans[Unfinished] > 0 || q.stopped() > 0 {
		t.Errorf("%d rounds, %v; want a scan of many rounds that ends well, and %d left", rounds, st.Scans, q.stopped())
	}
	if st := q.set.Stats(); st.Scans[OK] < 3 {
		t.Errorf("bob's directory was scanned %d times in %d rounds", st.Scans[OK]-1, rounds)
	}
}

// A slow directory that is over its quota is noticed as soon as its scan has seen that much.
func TestWatch_SlowDirectoryOverItsQuota(t *testing.T) {
	q := newQuotas(t)
	q.watch.slice = time.Nanosecond
	q.boot("alice")
	q.tree("alice", 300, 16) // of 1 MiB, 64 files are allowed
	for rounds := 0; !q.frozen("alice"); rounds++ {
		if q.round(time.Minute); rounds == 100 {
			t.Fatalf("not noticed in %d rounds; %v", rounds, q.set.Stats().Scans)
		}
	}
	if st := q.set.Stats(); st.Scans[OK] > 0 || st.Scans[Over] != 1 || q.stopped() > 0 {
		t.Errorf("got %v, %d scans left", st.Scans, q.stopped())
	}
}

// Scans that have stopped hold little together: the heaviest one ends, and those of others
// go on.
func TestWatch_HeaviestScanEnds(t *testing.T) {
	q := newQuotas(t)
	q.watch.slice = time.Nanosecond
	q.watch.maxWeight = 10 * descriptorWeight
	for _, owner := range []string{"alice", "bob"} {
		q.boot(owner)
	}
	q.tree("alice", 200, 0)
	deep := q.data("bob", strings.Repeat("d/", 80))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for range 10 {
		q.round(time.Minute)
	}
	if q.frozen("alice") || !q.frozen("bob") {
		t.Errorf("frozen: alice %t, bob with the deep directory %t", q.frozen("alice"), q.frozen("bob"))
	}
	q.watch.close()
	if after := openFiles(t); after > before {
		t.Errorf("leak: %d descriptors before the scans, %d after", before, after)
	}
}

// If many scans have stopped that are light, none of the owners is to blame: all scans come to
// their end, though they do not all go on at once.
func TestWatch_ManyLightScansAreNoOffence(t *testing.T) {
	q := newQuotas(t)
	q.watch.slice = time.Nanosecond
	q.watch.maxWeight = 12 * descriptorWeight // each of 8 scans holds 2 descriptors
	owners := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, owner := range owners {
		q.boot(owner)
		q.tree(owner, 60, 0)
	}
	q.boxes = nil // directories are forgotten once they are measured
	for rounds := 0; len(q.set.dirs) > 0; rounds++ {
		if q.round(time.Minute); rounds == 1000 {
			t.Fatalf("after %d rounds, %d directories are not measured", rounds, len(q.set.dirs))
		}
		if n := q.stopped(); rounds == 0 && (n < 4 || n > 6) {
			t.Errorf("%d scans have stopped after the first round, want some, and some that wait", n)
		}
		for _, d := range q.set.dirs {
			if d.fails > 0 || d.over {
				t.Fatalf("round %d: the directory of %s has %d unfinished scans, over: %t", rounds, d.owner, d.fails, d.over)
			}
		}
	}
	if st := q.set.Stats(); st.Scans[Unfinished] > 0 || st.Scans[OK] != uint64(len(owners)) {
		t.Errorf("got %v, want each directory scanned once", st.Scans)
	}
}

// A scan that has stopped keeps its directory from being forgotten, and nothing else does.
func TestWatch_StoppedScanOfAnOwnerWithoutBoxes(t *testing.T) {
	q := newQuotas(t)
	q.watch.slice = time.Nanosecond
	q.boot("alice")
	q.tree("alice", 200, 0)
	q.boxes = nil
	for rounds := 0; len(q.set.dirs) > 0; rounds++ {
		if q.round(time.Minute); rounds == 1000 {
			t.Fatalf("the directory is not forgotten after %d rounds", rounds)
		}
	}
	if st := q.set.Stats(); st.Scans[OK] != 1 {
		t.Errorf("got %v, want one scan", st.Scans)
	}
}
