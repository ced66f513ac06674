package enginetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// The tests of this file are about what is not the same in a restored guest, and
// about snapshots of guests that are busy.

func testSnapshotDiffer(t *tester) {
	b := t.create(t.spec()).talkWithKernels()
	languages := b.languages()
	draw := map[string]string{
		"python": `import os, random, uuid, secrets, tempfile
try:
    import ssl
    more = [ssl.RAND_bytes(8).hex()]
except ImportError: more = []
try:
    import numpy
    more += [numpy.random.random(), numpy.random.default_rng().random()]
except ImportError: pass
print(*[random.random(), random.getrandbits(64), uuid.uuid4(), uuid.uuid1(), os.urandom(8).hex(), secrets.token_hex(8)] + more, sep='\n')`,
		"javascript": `{ const c = require('crypto');
console.log([Math.random(), c.randomUUID(), c.randomBytes(8).toString('hex'), c.randomInt(2 ** 47), (globalThis.crypto || c.webcrypto).getRandomValues(new Uint8Array(8)).join()].join('\n')) }`,
	}
	for _, l := range languages {
		b.run(l, draw[l]) // what is drawn ahead is in the snapshot
	}
	taken := b.snapshot()
	time.Sleep(2500 * time.Millisecond) // a clock that stood still meanwhile would show
	seen := make(map[string]string)
	restored := []*box{t.restore(t.spec(), taken).wake(), t.restore(t.spec(), taken).wake()}
	for _, x := range append(restored, b) {
		for _, l := range languages {
			for i, line := range strings.Split(x.run(l, draw[l]), "\n") {
				what := fmt.Sprintf("draw %d of %s in %s", i, l, x.ID())
				if other := seen[line]; other != "" {
					t.Errorf("%s and %s are the same: %s", what, other, line)
				}
				seen[line] = what
			}
		}
		for _, what := range []string{
			"head -c 16 /dev/urandom | od -An -tx1", "head -c 16 /dev/random | od -An -tx1",
			"cat /proc/sys/kernel/random/uuid", "cat /proc/sys/kernel/random/boot_id",
		} {
			line := x.sh(what)
			if other := seen[line]; other != "" {
				t.Errorf("%s in %s says the same as in %s", what, x.ID(), other)
			}
			seen[line] = x.ID()
		}
		boot := x.sh("cat /proc/sys/kernel/random/boot_id")
		if again := x.sh("cat /proc/sys/kernel/random/boot_id"); again != boot {
			t.Errorf("the boot id of %s changes", x.ID())
		}
		if name := strings.TrimSpace(x.sh("cat /proc/sys/kernel/hostname")); name != x.ID() {
			t.Errorf("host name of %s is %q", x.ID(), name)
		}
		before := time.Now().Add(-time.Second)
		if now := time.Unix(int64(number(t, x.sh("date +%s"))), 0); now.Before(before) || now.After(time.Now().Add(time.Second)) {
			t.Errorf("%s says it is %v, it is %v", x.ID(), now, time.Now())
		}
	}
}

// testSnapshotClocks looks at the clocks of a restored guest, and at what waits for
// them: the time that the snapshot has lain about has passed.
func testSnapshotClocks(t *tester) {
	b := t.create(t.spec()).talk()
	uptime := func(b *box) float64 {
		s, _, _ := strings.Cut(b.sh("cat /proc/uptime"), " ")
		up, err := strconv.ParseFloat(s, 64)
		t.must("read uptime", err)
		return up
	}
	b.exec(protocol.Exec{Shell: "(sleep 2; date +%s.%N > woken) > /dev/null 2>&1 &"}, nil)
	start := time.Now()
	least := uptime(b)
	taken := b.snapshot()
	time.Sleep(1500 * time.Millisecond) // must not be lost
	r := t.restore(t.spec(), taken).wake()
	for range 2 {
		before := time.Now()
		now := number(t, r.sh("date +%s%N"))
		if early, late := now < int(before.Add(-50*time.Millisecond).UnixNano()), now > int(time.Now().Add(50*time.Millisecond).UnixNano()); early || late {
			t.Errorf("the wall clock says %v, it is %v", time.Unix(0, int64(now)), before)
		}
		passed := time.Since(start).Seconds()
		if up := uptime(r); up < least+1.4 || up > least+passed+1 {
			t.Errorf("up for %v s at first and for %v s a time of %v s later", least, up, passed)
		}
	}
	t.eventually("process of before wakes up", func() bool { return r.sh("cat woken 2>/dev/null || :") != "" })
	woken, err := strconv.ParseFloat(strings.TrimSpace(r.sh("cat woken")), 64)
	t.must("read time", err)
	if slept := woken - float64(start.UnixNano())/1e9; slept < 1.5 {
		t.Errorf("a sleep of 2 s was over after %v s", slept)
	}
}

// testSnapshotFlood takes snapshots of a guest while a command writes as fast as
// it can, and looks that every byte arrives once.
func testSnapshotFlood(t *tester) {
	const mib = 48
	b := t.create(t.spec()).talk().install()
	pour := b.startProbe("pour", strconv.Itoa(mib))
	t.eventually("flood begins", func() bool { return pour.sink.size() > 1<<20 })
	var taken engine.Snapshot
	for i := 0; i < 3; i++ {
		taken = b.snapshot()
		select {
		case <-pour.done:
			if i == 0 {
				t.Log("the flood was over before the first snapshot")
			}
			i = 3
		default:
		}
	}
	if res := pour.wait(); res.err != nil || res.Code != 0 {
		t.Errorf("command that floods: %+v", res.ExecResult)
	}
	out := pour.sink.stdout()
	if len(out) != mib<<20 {
		t.Errorf("of a flood of %d bytes %d have come", mib<<20, len(out))
	}
	for at := 0; at+8 <= len(out); at += 8 {
		if got := binary.BigEndian.Uint64([]byte(out[at : at+8])); got != uint64(at) {
			t.Errorf("at byte %d of a flood comes byte %d", at, got)
			break
		}
	}
	b.ping()
	// The command was of the earlier link and ends with it.
	r := t.restore(t.spec(), taken).wake()
	r.ping()
	t.eventually("command of the earlier link ends", func() bool { return !strings.Contains(r.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "pour") })
}

// testSnapshotCalls calls a quiet guest while snapshots are taken of it: a call that arrives
// while the guest is stopped must wake it all the same.
func testSnapshotCalls(t *tester) {
	b := t.create(t.spec()).talk()
	b.snapshot() // the first takes longer than others
	for i := range 20 {
		taken := make(chan error, 1)
		dir, s := t.TempDir(), ability[engine.Snapshotter](t)
		go func() {
			ref, err := s.Snapshot(t.Context(), b.ID(), dir)
			if err == nil {
				err = s.RemoveSnapshot(t.Context(), engine.Snapshot{Dir: dir, Ref: ref})
			}
			taken <- err
		}()
		time.Sleep(time.Duration(3*i) * time.Millisecond) // another moment of it each time
		b.ping()
		t.inTime("snapshot", t.h.Timeout, func() { t.must("snapshot", <-taken) })
	}
}

// testSnapshotBusy takes snapshots while everything in the guest is under way.
func testSnapshotBusy(t *tester) {
	// Ten programs compute in two guests at once, which is no measure of how fast
	// anything is: the test checks only that it completes.
	t.h.Timeout *= 5
	b := t.create(t.spec()).talkWithKernels().install()
	languages := b.languages()
	b.startProbe("spin", "2")
	b.startProbe("pour", "65536")
	b.exec(protocol.Exec{Shell: "while :; do echo x > churn; rm churn; (true); done > /dev/null 2>&1 &"}, nil)
	b.run(languages[0], map[string]string{"python": "x = 1", "javascript": "globalThis.x = 1"}[languages[0]])
	ctx, cancel := context.WithCancelCause(t.Context())
	running := make(chan error, 1)
	var out sink
	go func() {
		endless := map[string]string{"python": "print('on')\nwhile True: x += 1", "javascript": "console.log('on'); for (;;) x++"}[languages[0]]
		_, err := b.l.Run(ctx, protocol.Run{Kernel: languages[0], Language: languages[0], GraceMS: t.h.Timeout.Milliseconds() / 2}, []byte(endless), &out)
		running <- err
	}()
	defer func() {
		cancel(errStop)
		t.inTime("end of a cancelled run", t.h.Timeout, func() { <-running })
	}()
	// An interrupt that comes before the code runs would be lost.
	t.eventually("run is under way", func() bool { return out.stdout() != "" })
	_, pauses := engine.As[engine.Pauser](t.e)
	for round := range 2 {
		s := b.snapshot()
		// Two busy guests leave so little of two processors to the engine that a restore
		// takes ten times as long. Once is enough to see that it comes about.
		alone := pauses && round > 0
		if alone {
			b.pause()
		}
		r := t.restore(t.spec(), s).wake()
		r.ping()
		// The run was of the earlier link and ends with it; its kernel stays.
		got := r.run(languages[0], map[string]string{"python": "print(x)", "javascript": "console.log(x)"}[languages[0]])
		if number(t, got) < 1 {
			t.Errorf("the kernel of the restored guest has x = %s", got)
		}
		t.destroy(r)
		if alone {
			b.resume()
		}
		b.ping()
	}
}
