package cli

import (
	"fmt"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/config"
)

func TestOthersRun(t *testing.T) {
	const (
		sentryOf = "65534\t65534\t65534\t65534\nPPid:\t1"
		stubOf   = "65534\t65534\t65534\t65534\nPPid:\t2" // a process of a guest: a child of the sentry
	)
	status := func(users string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("Name:\tx\nUid:\t" + users + "\nGid:\t0\t0\t0\t0\n")}
	}
	for name, c := range map[string]struct {
		users []string // of processes
		want  bool
	}{
		"own and root":        {[]string{"1000\t1000\t1000\t1000", "0\t0\t0\t0"}, false},
		"another":             {[]string{"1000\t1000\t1000\t1000", "1001\t1001\t1001\t1001"}, true},
		"another, as root":    {[]string{"1001\t0\t0\t0"}, true},
		"sentry":              {[]string{"0\t0\t0\t0", "1879048192\t1879048192\t1879048192\t1879048192"}, false},
		"sentries as nobody":  {[]string{"1000\t1000\t1000\t1000", sentryOf, stubOf}, false},
		"ended":               {[]string{"1000\t1000\t1000\t1000", "1001\t1001\t1001\t1001\nState:\tZ (zombie)"}, false},
		"unmapped user":       {[]string{"1000\t1000\t1000\t1000", "65534\t65534\t65534\t65534"}, true},
		"invalid":             {[]string{"x"}, true},
		"no processes at all": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			proc := fstest.MapFS{"cpuinfo": &fstest.MapFile{}, "self/status": status("7\t7\t7\t7")}
			for i, users := range c.users {
				proc[fmt.Sprintf("%d/status", i+1)] = status(users)
				line := map[string]string{sentryOf: "runsc-sandbox\x00--x", stubOf: ""}[users]
				proc[fmt.Sprintf("%d/cmdline", i+1)] = &fstest.MapFile{Data: []byte(line)}
			}
			if got := othersRun(proc, 1000); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Only the answer of a parent in another user namespace counts: the variable may be in a
// configuration, and a process that sees the other users looks itself.
func TestOnlyUser(t *testing.T) {
	for answer, want := range map[string]string{"": "looks", "0": "no", "1": "looks", "1:6:user:[1]": "looks", "1:7:user:[1]": "yes", "1:7:user:[2]": "looks", "1:70:user:[1]": "looks"} {
		looked := false
		only, seen := onlyUser(answer, onlyUserAnswer(7, ""), "user:[2]", func() bool { looked = true; return false })
		got := map[bool]string{true: "yes", false: "no"}[only]
		if looked {
			got = "looks"
		}
		if wantSeen := map[bool]string{true: "user:[1]", false: "user:[2]"}[only]; seen != wantSeen {
			t.Errorf("%q: seen in %s, want %s", answer, seen, wantSeen)
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", answer, got, want)
		}
	}
}

// The answer of the parent holds for the life of the process, which replaces it for those
// that it starts.
func TestAnswerOf_HoldsForLife(t *testing.T) {
	t.Setenv(config.OnlyUserEnv, onlyUserAnswer(os.Getppid(), "elsewhere"))
	look := answerOf(os.Getenv(config.OnlyUserEnv), os.Getppid())
	for i := range 3 {
		if !look() {
			t.Fatalf("look %d: not the answer of the parent", i+1)
		}
		if got, want := os.Getenv(config.OnlyUserEnv), onlyUserAnswer(os.Getpid(), "elsewhere"); got != want {
			t.Errorf("look %d: leaves %q, want %q", i+1, got, want)
		}
	}
}

// A user who arrives later counts within a second.
func TestOnlyUserAnswers_LookAgain(t *testing.T) {
	now, others, looks := time.Now(), false, 0
	a := &onlyUserAnswers{look: func() bool { looks++; return !others }, now: func() time.Time { return now }}
	for i, want := range []bool{true, true, false, false, true} {
		if i == 1 || i == 3 {
			others = !others
		} else {
			now = now.Add(onlyUserFor)
		}
		if got := a.current(); got != want {
			t.Errorf("answer %d: got %v, want %v", i, got, want)
		}
	}
	if looks != 3 {
		t.Errorf("looked %d times for 5 answers in 3 seconds", looks)
	}
}
