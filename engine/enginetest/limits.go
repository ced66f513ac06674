package enginetest

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func limitsTests() []test {
	return []test{
		{"memory-of-a-process-is-bounded", limited("memory", testMemory)},
		{"memory-of-many-processes-is-bounded", limited("memory", testMemoryOfMany)},
		{"within-the-memory-limit-nothing-happens", limited("memory", testMemoryEnough)},
		{"processes-are-bounded", limited("pids", testPIDs)},
		{"fork-bomb-is-bounded", limited("pids", testForkBomb)},
		{"disk-is-bounded", limited("disk", testDisk)},
		{"disk-is-bounded-for-the-agent-too", limited("disk", testDiskAgent)},
		{"processors-are-bounded", limited("cpu", testCPU)},
	}
}

// limited skips a test on engines that do not enforce the limit.
func limited(resource string, f func(t *tester, l engine.Limit)) func(t *tester) {
	return func(t *tester) {
		for _, l := range t.e.Info().Limits {
			if l.Resource == resource {
				f(t, l)
				return
			}
		}
		t.Skipf("the engine does not limit %s", resource)
	}
}

// memoryMB is the memory limit in the tests: small, so that a faulty engine does not
// harm the machine, and large enough for the guest's own kernel.
const memoryMB = 192

// limitedBox is a guest with limits that only the engine enforces: the agent adds none.
func (t *tester) limitedBox(l engine.Limits) *box {
	t.Helper()
	spec := t.spec()
	spec.Limits = l
	b := t.create(spec)
	hello := b.hello()
	hello.MemoryMB = 0
	hello.PIDs = l.PIDs // the agent has a part in holding this one
	t.must("open link", b.tryTalk(hello))
	return b.install()
}

func testMemory(t *tester, l engine.Limit) {
	t.overuse(l, [][]string{{"hog", fmt.Sprint(6 * memoryMB)}})
}

func testMemoryOfMany(t *tester, l engine.Limit) {
	var all [][]string
	for range 6 {
		all = append(all, []string{"hold", fmt.Sprint(memoryMB)})
	}
	t.overuse(l, all)
}

// noticeIn is the time for an engine to detect that a guest exceeds its limit before the
// guest takes more. It is many times the interval of a watcher, so that the result does
// not depend on how busy the machine is.
const noticeIn = 2 * time.Second

// overuse runs commands that together take six times the memory limit. Each starts when
// the previous one has its memory and the engine has had time to react. It checks that
// some commands end, or the guest, with the reason.
func (t *tester) overuse(l engine.Limit, probes [][]string) {
	b := t.limitedBox(engine.Limits{MemoryMB: memoryMB})
	var commands []*running
	ended := func() (commandsEnded int, guest *engine.Exit) {
		for _, c := range commands {
			select {
			case <-c.done:
				commandsEnded++
			default:
			}
		}
		ctx, cancel := withTimeout(t, time.Millisecond)
		defer cancel()
		if exit, err := b.Wait(ctx); err == nil {
			guest = &exit
		}
		return commandsEnded, guest
	}
	most := uint64(0)
	over := func() bool {
		if s, ok := engine.As[engine.Statser](t.e); ok {
			if stats, err := s.Stats(t.Context(), b.ID()); err == nil {
				most = max(most, stats.MemoryBytes)
			}
		}
		n, guest := ended()
		return n > 0 || guest != nil
	}
	for i, probe := range probes {
		c := b.startProbe(probe...)
		commands = append(commands, c)
		if i == len(probes)-1 {
			break
		}
		stop := false
		t.eventually("a command that has its memory, or the end of one", func() bool {
			stop = over()
			return stop || strings.Contains(c.sink.stdout(), "ready")
		})
		for end := time.Now().Add(noticeIn); i > 0 && !stop && time.Now().Before(end); stop = over() {
			time.Sleep(10 * time.Millisecond) // there is no event for memory that grows
		}
		if stop {
			break
		}
	}
	t.eventually("end of what takes too much memory", over)
	_, exit := ended()
	if exit == nil { // it may be about to end
		ctx, cancel := withTimeout(t, time.Second)
		if e, err := b.Wait(ctx); err == nil {
			exit = &e
		}
		cancel()
	}
	// A watcher samples periodically, and the engine itself needs some memory.
	if bound := uint64(3*memoryMB+512) << 20; most > bound {
		t.Errorf("the guest took %d MiB on the host before it was stopped; its limit is %d", most>>20, memoryMB)
	}
	if exit != nil {
		if exit.Reason != engine.ExitOOM {
			t.Errorf("a guest over its memory limit ended with %+v, want %s", *exit, engine.ExitOOM)
		}
		return
	}
	for _, c := range commands {
		select {
		case <-c.done:
			if strings.Contains(c.res.stdout, "all") {
				t.Errorf("a command took %d MiB of memory and ended well, the limit is %d", 6*memoryMB, memoryMB)
			}
		default:
		}
	}
	b.ping()
}

func testMemoryEnough(t *tester, _ engine.Limit) {
	b := t.limitedBox(engine.Limits{MemoryMB: memoryMB})
	b.startProbe("hold", fmt.Sprint(memoryMB/3)).says("ready")
	time.Sleep(300 * time.Millisecond) // a watcher that is wrong acts now
	b.ping()
}

func testPIDs(t *tester, _ engine.Limit) {
	const limit, tried = 64, 400
	b := t.limitedBox(engine.Limits{PIDs: limit})
	r := b.startProbe("fork", fmt.Sprint(tried))
	ended := false
	t.eventually("end of forking", func() bool {
		select {
		case <-r.done:
			ended = true
			return true
		default:
			return strings.Contains(r.sink.stdout(), "ready")
		}
	})
	var started int
	switch _, err := fmt.Sscanf(r.sink.stdout(), "started %d", &started); {
	case err != nil && !(ended && (r.res.err != nil || r.res.Code != 0)): // unless the limit ended it
		t.Errorf("the program that starts processes did not run: %q", r.sink.stdout())
	case started > limit:
		t.Errorf("a guest limited to %d processes has %d and more", limit, started)
	}
	start := time.Now()
	t.destroy(b)
	if took := time.Since(start); took > 2*time.Second+grace {
		t.Errorf("a guest full of processes took %v to destroy", took)
	}
}

// testForkBomb has every process start two more and print a line, a thousand in all
// unless something stops them.
func testForkBomb(t *tester, _ engine.Limit) {
	const limit = 64
	b := t.limitedBox(engine.Limits{PIDs: limit})
	r := b.startProbe("bomb", "9")
	r.says("ready")
	// It has gone off when there are too many, or no more for a second.
	processes := func() int { return strings.Count(r.sink.stdout(), "ready") }
	for seen, last := processes(), time.Now(); seen <= limit && time.Since(last) < time.Second; time.Sleep(10 * time.Millisecond) {
		if now := processes(); now > seen {
			seen, last = now, time.Now()
		}
	}
	if n := processes(); n > limit {
		t.Errorf("a fork bomb in a guest limited to %d processes started %d and more", limit, n)
	}
	ctx, cancel := withTimeout(t, t.h.Timeout/2)
	defer cancel()
	if _, err := b.l.Ping(ctx); err != nil {
		t.Logf("the agent does not answer in a fork bomb: %v", err)
	}
	start := time.Now()
	t.destroy(b)
	if took := time.Since(start); took > 2*time.Second+grace {
		t.Errorf("a guest with a fork bomb took %v to destroy", took)
	}
}

const diskMB = 32

func testDisk(t *tester, _ engine.Limit) { t.fillDisk(false) }

func testDiskAgent(t *tester, _ engine.Limit) { t.fillDisk(true) }

// fillDisk writes more than the disk holds, as the user or as the agent.
func (t *tester) fillDisk(asAgent bool) {
	spec := t.spec()
	spec.Limits.DiskMB = diskMB
	b := t.create(spec)
	hello := b.hello()
	if asAgent {
		hello.UID, hello.GID = -1, -1
	}
	t.must("open link", b.tryTalk(hello))
	b.install()
	files := b.user.Home
	r := b.exec(protocol.Exec{Argv: []string{b.probe, "fill", path.Join(files, "big"), fmt.Sprint(4 * diskMB)}}, nil)
	if r.err != nil || r.Code == 0 || !strings.Contains(r.stdout, "no space left") {
		t.Errorf("writing %d MiB to a disk of %d: exit code %d, %q, %v; want no space left", 4*diskMB, diskMB, r.Code, r.stdout+r.stderr, r.err)
	}
	err := b.write(path.Join(files, "more"), 0, strings.NewReader(strings.Repeat("x", 4<<20)))
	if codeOf(err) != protocol.CodeNoSpace {
		t.Errorf("write to a full disk: got error %v, want code %s", err, protocol.CodeNoSpace)
	}
	b.ping()
	b.sh("rm " + path.Join(files, "big"))
	t.must("write after files were removed", b.write(path.Join(files, "more"), 0, strings.NewReader(strings.Repeat("x", 1<<20))))
}

func testCPU(t *tester, l engine.Limit) {
	if !l.Hard {
		t.Skipf("processors are limited by %s only", l.By)
	}
	const limit, wall = 0.2, 2 * time.Second
	b := t.limitedBox(engine.Limits{CPUs: limit})
	s, ok := engine.As[engine.Statser](t.e)
	if !ok {
		t.Skip("the engine does not tell how much processor time guests use")
	}
	b.startProbe("spin", "4").says("ready")
	used := func() time.Duration {
		stats, err := s.Stats(t.Context(), b.ID())
		t.must("stats", err)
		return stats.CPU
	}
	before, start := used(), time.Now()
	time.Sleep(wall)
	share := float64(used()-before) / float64(time.Since(start))
	if share > limit*1.25 {
		t.Errorf("a guest limited to %.2f processors used %.2f", limit, share)
	}
	if share < limit/10 {
		t.Errorf("a guest that computes used %.2f processors: the count is wrong", share)
	}
}
