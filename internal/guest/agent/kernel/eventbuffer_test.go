package kernel

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEventBuffer_Order prints output that fits the event buffer, output that does not,
// and both, and checks that nothing is lost or out of order, however the agent waits
// for the run.
func TestEventBuffer_Order(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	cells := map[string]string{
		"for i in range(3): print(i)":                                            "0\n1\n2\n",
		"print('a' * 16000); print('b' * 16000); print('c')":                     strings.Repeat("a", 16000) + "\n" + strings.Repeat("b", 16000) + "\nc\n",
		"print('d' * 20000); print('e')":                                         strings.Repeat("d", 20000) + "\ne\n",
		"import os; print(1); os.system('echo 2'); print(3)":                     "1\n2\n3\n",
		"print(1); n = os.write(1, b'2\\n'); print(3); n = os.write(1, b'4\\n')": "1\n2\n3\n4\n",
		"import time; print(1); time.sleep(0.05); print(2)":                      "1\n2\n",
		"print('f' * 16300); time.sleep(0.05); print('g' * 100); print('h')":     strings.Repeat("f", 16300) + "\n" + strings.Repeat("g", 100) + "\nh\n",
		"display(1); print(2); display('x' * 20000); print(3)":                   "<display>2\n<display>3\n",
	}
	// Alternates between events and raw writes, faster than the agent collects them.
	var want strings.Builder
	for i := range 400 {
		fmt.Fprintf(&want, "%d\n", i)
	}
	cells["for i in range(0, 400, 2): print(i); n = os.write(1, b'%d\\n' % (i + 1))"] = want.String()
	cells["for i in range(0, 400, 2): n = os.write(2, b'%d\\n' % i); print(i + 1); time.sleep(i % 20 / 1e4)"] = want.String()
	cells["for i in range(0, 400, 2): print(i, file=sys.stderr); os.system(f'echo {i + 1}') if i % 40 == 0 else os.write(1, b'%d\\n' % (i + 1))\nNone"] = want.String()
	for _, mayBlock := range []bool{true, false} {
		for range 2 { // output left of one run must not appear in the next
			for code, want := range cells {
				rec := &recorder{}
				res, err := k.Run(t.Context(), Request{Code: []byte("import os, sys, time\n" + code), MayBlock: mayBlock, WakeFD: -1}, rec)
				if err != nil || !res.OK || rec.all.String() != want {
					t.Errorf("%.60s: got %+v, %v, %.200q, want %.200q", code, res, err, rec.all.String(), want)
				}
			}
		}
	}
}

// TestEventBuffer_HostileWrites writes invalid data to the event buffer.
func TestEventBuffer_HostileWrites(t *testing.T) {
	const find = "import gc\n" +
		"found = [o for o in gc.get_referents(*[o for o in gc.get_objects() if type(o) is dict and 'buffer_end' in o]) if type(o) is memoryview]\n" +
		"end = [m for m in found if m.format == 'I'][0]; buffer = [m for m in found if m.format == 'B'][0]\n"
	for name, c := range map[string]struct{ code, lost, out string }{
		"garbage":       {"buffer[:100] = b'\\xff' * 100; end[0] = 100", "crashed", ""},
		"too long":      {"buffer[:] = bytes(len(buffer)); end[0] = 0xffffffff", "crashed", ""},
		"half an event": {"print(1); buffer[7:16] = b'\\0\\0\\0\\x09oabcd'; end[0] = 16", "crashed", "1\nabcd"},
		"back":          {"print('x'); end[0] = 0", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := start(t, Python, pythons(t)[0])
			if k.eventBuf.mem == nil {
				t.Skip("no event buffer on this platform")
			}
			res, rec := runWith(t, k, Request{Code: []byte(find + c.code), Timeout: 20 * time.Second})
			if res.Lost != c.lost || rec.out.String() != c.out {
				t.Errorf("got %+v, %q, want lost %q, %q", res, rec.out.String(), c.lost, c.out)
			}
		})
	}
}

// TestRun_BlockingWaitStopsForInput checks that a blocking wait for a run stops when there is
// input, without affecting the run.
func TestRun_BlockingWaitStopsForInput(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	for _, input := range []string{"", "x"} {
		if _, err := unix.Write(p[1], []byte(input)); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			rec := &recorder{}
			res, err := k.Run(t.Context(), Request{Code: fmt.Appendf(nil, "print(%d)", i), MayBlock: true, WakeFD: p[0]}, rec)
			if err != nil || !res.OK || rec.out.String() != fmt.Sprintf("%d\n", i) {
				t.Fatalf("input %q: got %+v, %v, %q", input, res, err, rec.out.String())
			}
		}
	}
}

// TestRun_TimeoutBeforeStart checks that code whose timeout passes before it is sent is
// sent and then stopped.
func TestRun_TimeoutBeforeStart(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	for range 5 {
		res, _ := runWith(t, k, Request{Code: []byte("import time; time.sleep(100)"), Timeout: time.Nanosecond, Grace: 6 * time.Second})
		if res.Stopped != "timeout" || res.Lost != "" {
			t.Errorf("got %+v, want it stopped and the kernel kept", res)
		}
	}
	if res, rec := runWith(t, k, Request{Code: []byte("print(1)")}); !res.OK || rec.out.String() != "1\n" {
		t.Errorf("got %+v, %q", res, rec.out.String())
	}
}
