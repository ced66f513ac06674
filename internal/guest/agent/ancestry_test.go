package agent

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/bridgecall"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func TestDescends(t *testing.T) {
	start := func() processID {
		t.Helper()
		cmd := exec.Command("sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		p, err := identify(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	self, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	before := start()
	earlier, err := existingProcesses()
	if err != nil {
		t.Fatal(err)
	}
	after := start()
	reused := processTable{after.pid: earlier[before.pid] - 1} // another process had the id
	gone := processID{1 << 30, 7}
	for name, tc := range map[string]struct {
		p, leader processID
		earlier   processTable
		want      error
	}{
		"the leader":                       {before, before, earlier, nil},
		"a child that existed":             {before, self, earlier, errStartedEarly},
		"a child started later":            {after, self, earlier, nil},
		"a sibling":                        {after, before, nil, errNoDescendant},
		"a parent":                         {self, after, nil, errNoDescendant},
		"the first process":                {processID{pid: 1}, after, nil, errNoDescendant},
		"no process":                       {processID{}, after, nil, errNoDescendant},
		"a process of a used id":           {after, self, reused, nil},
		"a process that is gone":           {gone, after, nil, errNoDescendant},
		"a process that has a peer's id":   {processID{after.pid, after.started - 1}, self, nil, errReplaced},
		"a process that has a leader's id": {after, processID{after.pid, after.started - 1}, nil, errNoDescendant},
	} {
		// The test's process is an ancestor of all: it is not the agent here.
		if err := descendsFrom(tc.p, tc.leader, tc.earlier, 1); err != tc.want {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("1 (a) b) c) S 2 3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The name of a process is the user's; the rest is the system's.
		hostile := append([]byte("7 ("), append(bytes.ReplaceAll(b, []byte("\n"), nil), []byte(") S 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 99 0")...)...)
		if parent, started, err := parseStat(hostile); parent != 5 || started != 99 || err != nil {
			t.Errorf("name %q: got parent %d, start %d, %v", b, parent, started, err)
		}
		parseStat(b)
	})
}

// FuzzCallHeader feeds the agent the first line of a call.
func FuzzCallHeader(f *testing.F) {
	f.Add([]byte(`{"token":"x","method":"tool","length":5}` + "\n"))
	f.Add([]byte(`{"length":-1}` + "\n"))
	f.Add([]byte(strings.Repeat("x", 2000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := bridgecall.ReadHeader(bufio.NewReaderSize(bytes.NewReader(b), bridgecall.MaxHeader))
		if err == nil && (h.Length < 0 || h.Length > protocol.MaxCallArgs || len(h.Method) > protocol.MaxMethod) {
			t.Errorf("accepted %+v", h)
		}
	})
}
