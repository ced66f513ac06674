package enginetest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func snapshotTests() []test {
	return []test{
		{"processes-and-files-come-back", needs[engine.Snapshotter](testSnapshotProcesses)},
		{"kernels-come-back", needs[engine.Snapshotter](testSnapshotKernels)},
		{"original-goes-on", needs[engine.Snapshotter](testSnapshotOriginal)},
		{"restored-guests-differ", needs[engine.Snapshotter](testSnapshotDiffer)},
		{"clocks-go-on", needs[engine.Snapshotter](testSnapshotClocks)},
		{"busy-guest", needs[engine.Snapshotter](testSnapshotBusy)},
		{"calls-meanwhile-are-answered", needs[engine.Snapshotter](testSnapshotCalls)},
		{"flood-of-output", needs[engine.Snapshotter](testSnapshotFlood)},
		{"paused-guest", needs[engine.Snapshotter](testSnapshotPaused)},
		{"snapshot-of-a-restored-guest", needs[engine.Snapshotter](testSnapshotChain)},
		{"restored-guests-at-once", needs[engine.Snapshotter](testSnapshotMany)},
		{"snapshot-is-inspected", needs[engine.Snapshotter](testSnapshotInspect)},
		{"snapshot-may-be-moved", needs[engine.Snapshotter](testSnapshotMoved)},
		{"limits-hold-after-restore", needs[engine.Snapshotter](testSnapshotLimits)},
		{"snapshot-into-what-is-not-empty-is-invalid", needs[engine.Snapshotter](testSnapshotDir)},
		{"snapshot-after-destroy-is-gone", needs[engine.Snapshotter](testSnapshotGone)},
		{"snapshot-while-destroyed", needs[engine.Snapshotter](testSnapshotWhileDestroyed)},
		{"snapshots-and-pauses-at-once", needs[engine.Snapshotter](testSnapshotAtOnce)},
		{"cancelled-snapshot-leaves-nothing", needs[engine.Snapshotter](testSnapshotCancelled)},
		{"snapshot-without-room-is-exhausted", needs[engine.Snapshotter](testSnapshotNoRoom)},
		{"damaged-snapshot-is-invalid", needs[engine.Snapshotter](testRestoreDamaged)},
		{"snapshot-of-another-spec-is-invalid", needs[engine.Snapshotter](testRestoreOther)},
		{"restore-refuses-what-create-refuses", needs[engine.Snapshotter](testRestoreLikeCreate)},
		{"cancelled-restore-leaves-nothing", needs[engine.Snapshotter](testRestoreCancelled)},
	}
}

// trySnapshot stores b in dir.
func (b *box) trySnapshot(dir string) (engine.Snapshot, error) {
	b.t.Helper()
	taken := engine.Snapshot{Dir: dir}
	s := ability[engine.Snapshotter](b.t)
	err := b.t.call("snapshot", func(ctx context.Context) (err error) {
		taken.Ref, err = s.Snapshot(ctx, b.ID(), dir)
		return err
	})
	if err == nil {
		b.t.removeLater(taken)
	}
	return taken, err
}

// removeLater frees what the engine keeps of a snapshot at the end of the test.
func (t *tester) removeLater(s engine.Snapshot) {
	t.Cleanup(func() { t.must("remove snapshot", t.removeSnapshot(s)) })
}

func (t *tester) removeSnapshot(s engine.Snapshot) error {
	t.Helper()
	return t.call("remove snapshot", func(ctx context.Context) error {
		return ability[engine.Snapshotter](t).RemoveSnapshot(ctx, s)
	})
}

// snapshot stores b in a new directory.
func (b *box) snapshot() engine.Snapshot {
	b.t.Helper()
	s, err := b.trySnapshot(b.t.TempDir())
	b.t.must("snapshot "+b.ID(), err)
	return s
}

func (t *tester) tryRestore(id string, spec *engine.Spec, s engine.Snapshot) (engine.Guest, error) {
	t.Helper()
	var g engine.Guest
	err := t.call("restore", func(ctx context.Context) (err error) {
		g, err = ability[engine.Snapshotter](t).Restore(ctx, id, spec, s)
		return err
	})
	return g, err
}

// restore boots a guest from a snapshot and destroys it at the end of the test.
func (t *tester) restore(spec *engine.Spec, s engine.Snapshot) *box {
	t.Helper()
	id := newID()
	g, err := t.tryRestore(id, spec, s)
	t.must("restore "+id, err)
	b := t.own(g)
	b.user = t.h.User(t.e, id)
	return b
}

// wake opens the link of a restored guest, where that is one of several.
func (b *box) wake() *box {
	b.t.Helper()
	hello := b.hello()
	hello.Restored, hello.Entropy = true, make([]byte, 32)
	rand.Read(hello.Entropy)
	err := b.t.call("resume link", func(ctx context.Context) error {
		l, err := client.Resume(ctx, b.Guest, client.Options{Hello: hello})
		if err == nil {
			b.l = l
		}
		return err
	})
	b.t.must("resume link to "+b.ID(), err)
	return b
}

// interpreters are where the suite looks for them in guests.
var interpreters = map[string]string{"python": "/usr/bin/python3", "javascript": "/usr/bin/node"}

// talkWithKernels opens the link of a guest that is to have kernels.
func (b *box) talkWithKernels() *box {
	b.t.Helper()
	hello := b.hello()
	hello.Interpreters = interpreters
	b.t.must("open link to "+b.ID(), b.tryTalk(hello))
	return b
}

// tryRun runs code in the language's kernel.
func (b *box) tryRun(language, code string) (protocol.RunResult, string, error) {
	b.t.Helper()
	var s sink
	var res protocol.RunResult
	err := b.t.call("run", func(ctx context.Context) (err error) {
		res, err = b.l.Run(ctx, protocol.Run{Kernel: language, Language: language}, []byte(code), &s)
		return err
	})
	return res, strings.TrimSpace(s.stdout()), err
}

// run runs code that must succeed and returns what it prints.
func (b *box) run(language, code string) string {
	b.t.Helper()
	res, out, err := b.tryRun(language, code)
	if err != nil || !res.OK {
		b.t.Fatalf("run %q in %s: %+v, %v", code, b.ID(), res, err)
	}
	return out
}

// languages returns the languages whose kernels start in b.
func (b *box) languages() []string {
	b.t.Helper()
	var have []string
	for _, language := range []string{"python", "javascript"} {
		_, _, err := b.tryRun(language, "1")
		switch codeOf(err) {
		case protocol.CodeStart, protocol.CodeNoLanguage:
			b.t.Logf("no %s kernel: %v", language, err)
		default:
			b.t.must("run "+language, err)
			have = append(have, language)
		}
	}
	if len(have) == 0 {
		b.t.Skip("no kernel starts in guests of this harness")
	}
	return have
}

func number(t *tester, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatalf("%q is no number", s)
	}
	return n
}

func testSnapshotProcesses(t *tester) {
	b := t.create(t.spec()).talk().install()
	b.sh("mkdir -p a/b && echo written > a/b/file && chmod 640 a/b/file && ln -s file a/b/link")
	b.exec(protocol.Exec{Shell: b.probe + " count > numbers &"}, nil)
	// A process with a file open that has no name any more.
	b.exec(protocol.Exec{Shell: "echo kept > secret; (exec 3<secret; rm secret; touch ready; while [ ! -e go ]; do sleep 0.02; done; cat <&3 > found) > /dev/null 2>&1 &"}, nil)
	b.sh("while [ ! -e ready ]; do sleep 0.02; done")
	count := "tail -n 2 numbers | head -n 1"
	t.eventually("count in the background", func() bool { return b.sh(count) != "" })

	least := number(t, b.sh(count))
	taken := b.snapshot()
	most := number(t, b.sh(count))
	time.Sleep(300 * time.Millisecond) // no process of a snapshot may run meanwhile
	r := t.restore(t.spec(), taken).wake()
	r.ping()
	if got := number(t, r.sh(count)); got < least || got > most+250 {
		t.Errorf("a process that had counted to %d before and to %d shortly after the snapshot is at %d", least, most, got)
	}
	if got := r.sh("cat a/b/link; stat -c %a a/b/file; ls secret 2>/dev/null; touch go; while [ ! -s found ]; do sleep 0.02; done; cat found"); got != "written\n640\nkept\n" {
		t.Errorf("the files of the restored guest: %q", got)
	}
	first := r.sh(count)
	t.eventually("process of the restored guest counts on", func() bool { return r.sh(count) != first })
	// Each has its own layer.
	r.sh("echo changed > a/b/file")
	if got := b.sh("cat a/b/file; ls go 2>/dev/null; true"); got != "written\n" {
		t.Errorf("the original sees what the restored guest has written: %q", got)
	}
}

func testSnapshotKernels(t *tester) {
	b := t.create(t.spec()).talkWithKernels()
	languages := b.languages()
	set := map[string]string{
		"python":     "import threading, json\nx = {'n': 41}\nf = open('py', 'w+'); f.write('line'); f.flush()\ndef inc(): x['n'] += 1",
		"javascript": "globalThis.x = {n: 41}; const fd = require('fs').openSync('js', 'w+'); require('fs').writeSync(fd, 'line'); const inc = () => { x.n++ }; 0",
	}
	get := map[string]string{
		"python":     "inc(); f.write(' more'); f.flush(); print(x['n'], open('py').read())",
		"javascript": "inc(); require('fs').writeSync(fd, ' more'); console.log(x.n, require('fs').readFileSync('js', 'utf8'))",
	}
	for _, l := range languages {
		b.run(l, set[l])
	}
	taken := b.snapshot()
	r := t.restore(t.spec(), taken).wake()
	for _, x := range []*box{r, b} {
		for _, l := range languages {
			if got := x.run(l, get[l]); got != "42 line more" {
				t.Errorf("%s in %s says %q", l, x.ID(), got)
			}
		}
	}
}

// testSnapshotOriginal has a guest work during snapshots and looks that nothing
// is lost on its way.
func testSnapshotOriginal(t *tester) {
	b := t.create(t.spec()).talk().install()
	r := b.startProbe("count")
	t.eventually("command counts", func() bool { return r.last() > 20 })
	for range 3 {
		b.snapshot()
		at := r.last()
		t.eventually("command goes on counting", func() bool { return r.last() > at+20 })
		b.ping()
	}
	want := 0
	for line := range strings.Lines(r.sink.stdout()) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		n := number(t, line)
		if want == 0 {
			want = n
		}
		if n != want {
			t.Fatalf("after snapshots the output goes on with %d instead of %d", n, want)
		}
		want++
	}
	if err := b.l.Err(); err != nil {
		t.Errorf("link after snapshots: %v", err)
	}
}

func testSnapshotPaused(t *tester) {
	if _, ok := engine.As[engine.Pauser](t.e); !ok {
		t.Skip("the engine does not pause guests")
	}
	b := t.create(t.spec()).talk().install()
	r := b.startProbe("count")
	t.eventually("command counts", func() bool { return r.last() > 20 })
	b.pause()
	at := r.last()
	taken := b.snapshot()
	time.Sleep(200 * time.Millisecond) // nothing must happen
	if moved := r.last() - at; moved > 50 {
		t.Errorf("a paused guest has counted on by %d while a snapshot was taken", moved)
	}
	t.restore(t.spec(), taken).wake().ping()
	b.resume()
	b.ping()
	t.eventually("command goes on counting", func() bool { return r.last() > at+20 })
}

func testSnapshotChain(t *tester) {
	b := t.create(t.spec()).talk()
	boots := make(map[string]bool)
	var mounts []string
	for i := range 4 {
		b.sh(fmt.Sprintf("echo %d >> file", i))
		boots[b.sh("cat /proc/sys/kernel/random/boot_id")] = true
		mounts = append(mounts, b.sh("wc -l < /proc/self/mounts"))
		taken := b.snapshot()
		t.destroy(b)
		b = t.restore(t.spec(), taken).wake()
	}
	if got := b.sh("cat file"); got != "0\n1\n2\n3\n" {
		t.Errorf("after four generations the file is %q", got)
	}
	if len(boots) != 4 {
		t.Errorf("four generations have the boot ids %v", boots)
	}
	if mounts[3] != mounts[1] {
		t.Errorf("four generations have %q mounts", mounts)
	}
}

func testSnapshotMany(t *tester) {
	b := t.create(t.spec()).talk()
	b.sh("echo same > file")
	taken := b.snapshot()
	r := ability[engine.Snapshotter](t)
	guests := make([]engine.Guest, t.h.Many/2)
	errs := make([]error, len(guests))
	var wg sync.WaitGroup
	for i := range guests {
		id := newID()
		wg.Go(func() { guests[i], errs[i] = r.Restore(t.Context(), id, t.spec(), taken) })
	}
	t.inTime("restore many", time.Duration(len(guests))*t.h.Timeout, wg.Wait)
	for i, err := range errs {
		t.must("restore at once", err)
		x := t.own(guests[i])
		x.user = t.h.User(t.e, x.ID())
		if got := x.wake().sh("cat file; cat /proc/sys/kernel/hostname"); got != "same\n"+x.ID()+"\n" {
			t.Errorf("%s says %q", x.ID(), got)
		}
	}
}

func testSnapshotMoved(t *tester) {
	b := t.create(t.spec()).talk()
	b.sh("echo moved > file")
	taken := b.snapshot()
	moved := engine.Snapshot{Dir: filepath.Join(t.TempDir(), "elsewhere"), Ref: taken.Ref}
	t.must("move", os.Rename(taken.Dir, moved.Dir))
	r := t.restore(t.spec(), moved)
	// The restored guest does not need it any more.
	t.must("remove snapshot", t.removeSnapshot(moved))
	t.must("remove directory", os.RemoveAll(moved.Dir))
	if got := r.wake().sh("cat file"); got != "moved\n" {
		t.Errorf("the file is %q", got)
	}
	_, err := t.tryRestore(newID(), t.spec(), moved)
	t.wantErr("restore of a removed snapshot", err, engine.ErrInvalid)
	t.must("remove a removed snapshot", t.removeSnapshot(moved))
}

func testSnapshotLimits(t *tester) {
	spec := t.spec()
	spec.Limits.DiskMB = 32
	b := t.create(spec).talk().install()
	b.look("fill", "first", "8")
	taken := b.snapshot()
	r := t.restore(spec, taken).wake()
	r.probe = b.probe
	if res := r.exec(protocol.Exec{Argv: []string{r.probe, "fill", "second", "40"}}, nil); res.err == nil && res.Code == 0 {
		t.Errorf("a restored guest with a limit of 32 MiB has written 48 MiB")
	}
	r.ping()
	if got := r.sh("stat -c %s first"); got != "8388608\n" {
		t.Errorf("the file of before has %s bytes", got)
	}
}

func testSnapshotInspect(t *tester) {
	spec := t.spec()
	taken := t.create(spec).snapshot()
	s := ability[engine.Snapshotter](t)
	var info engine.SnapshotInfo
	t.must("inspect", t.call("inspect", func(ctx context.Context) (err error) {
		info, err = s.InspectSnapshot(ctx, taken)
		return err
	}))
	if info.RootKey != spec.Root.Key || info.Agent == "" {
		t.Errorf("the snapshot is of %+v, want root %q and an agent", info, spec.Root.Key)
	}
	check := func(spec *engine.Spec, s engine.Snapshot) error {
		return t.call("check", func(ctx context.Context) error {
			return ability[engine.Snapshotter](t).CheckSnapshot(ctx, spec, s)
		})
	}
	t.must("check", check(t.spec(), taken))
	other := t.spec()
	other.Limits.MemoryMB += 64
	t.wantErr("check with another limit", check(other, taken), engine.ErrInvalid)
	t.wantErr("check of an empty directory", check(t.spec(), engine.Snapshot{Dir: t.TempDir()}), engine.ErrInvalid)
}
