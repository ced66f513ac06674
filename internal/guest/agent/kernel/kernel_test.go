package kernel

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// recorder records the output of a run.
type recorder struct {
	out, err strings.Builder
	all      strings.Builder // both, and <display> where one came
	displays []protocol.Display
	times    []time.Time
}

func (r *recorder) Output(ch protocol.Channel, p []byte) {
	r.times = append(r.times, time.Now())
	r.all.Write(p)
	if ch == protocol.Stdout {
		r.out.Write(p)
	} else {
		r.err.Write(p)
	}
}

func (r *recorder) Display(d []byte) {
	var v protocol.Display
	if err := json.Unmarshal(d, &v); err != nil {
		panic(fmt.Sprintf("display %q: %v", d, err))
	}
	r.displays = append(r.displays, v)
	r.all.WriteString("<display>")
}

// value is the plain text of the result, "" without one.
func (r *recorder) value() string {
	for _, d := range r.displays {
		if d.Result {
			return d.Data["text/plain"]
		}
	}
	return ""
}

// pythons returns the Python interpreters of this machine.
func pythons(tb testing.TB) []string {
	tb.Helper()
	return interpreters(tb, append([]string{"python3", "/usr/bin/python3"}, strings.Fields(os.Getenv("GLOVEBOX_TEST_PYTHONS"))...)...)
}

func interpreters(tb testing.TB, names ...string) []string {
	tb.Helper()
	var found []string
	seen := map[string]bool{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		query := []string{path, "-c", "import sys; print(sys.executable)"}
		if strings.Contains(name, "node") {
			query = []string{path, "-p", "process.execPath"}
		}
		real, err := exec.Command(query[0], query[1:]...).Output()
		if err != nil {
			continue
		}
		if p := strings.TrimSpace(string(real)); !seen[p] {
			seen[p] = true
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		tb.Skipf("no interpreter of %q on this machine", names)
	}
	return found
}

func start(tb testing.TB, language, interpreter string) *Kernel {
	tb.Helper()
	home := tb.TempDir()
	k, err := Start(tb.Context(), Config{
		Language: language, Interpreter: interpreter, Home: home,
		Env: []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "MPLCONFIGDIR=" + os.TempDir() + "/mplconfig"},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := k.Close(); err != nil {
			tb.Error(err)
		}
	})
	return k
}

func run(tb testing.TB, k *Kernel, code string) (Result, *recorder) {
	tb.Helper()
	return runWith(tb, k, Request{Code: []byte(code), Timeout: 60 * time.Second})
}

func runWith(tb testing.TB, k *Kernel, req Request) (Result, *recorder) {
	tb.Helper()
	rec := &recorder{}
	req.MayBlock, req.WakeFD = true, -1 // as nearly all runs are
	res, err := k.Run(tb.Context(), req, rec)
	if err != nil {
		tb.Fatalf("run %.200q: %v", req.Code, err)
	}
	return res, rec
}

// nodes returns the versions of Node.js on this machine.
func nodes(tb testing.TB) []string {
	tb.Helper()
	return interpreters(tb, append([]string{"node"}, strings.Fields(os.Getenv("GLOVEBOX_TEST_NODES"))...)...)
}

func BenchmarkPrint(b *testing.B) {
	for _, py := range pythons(b) {
		b.Run("python "+py, func(b *testing.B) { benchmarkPrint(b, start(b, Python, py), "print(1)") })
	}
	for _, node := range nodes(b) {
		b.Run("javascript "+node, func(b *testing.B) { benchmarkPrint(b, start(b, JavaScript, node), "console.log(1)") })
	}
}

func benchmarkPrint(b *testing.B, k *Kernel, code string) {
	for b.Loop() {
		res, rec := run(b, k, code)
		if !res.OK || rec.out.String() != "1\n" {
			b.Fatalf("got %+v %q", res, rec.out.String())
		}
	}
}
