package cli

import (
	"fmt"
	"testing"
	"testing/fstest"
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

// Only the answer of the parent counts: the variable may be in a configuration.
func TestOnlyUser(t *testing.T) {
	for answer, want := range map[string]string{"": "looks", "0": "no", "1": "looks", "1:6": "looks", "1:7": "yes"} {
		looked := false
		only := onlyUser(answer, 7, func() bool { looked = true; return false })
		got := map[bool]string{true: "yes", false: "no"}[only]
		if looked {
			got = "looks"
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", answer, got, want)
		}
	}
}
