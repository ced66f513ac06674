//go:build linux

package microsandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/engine"
)

// recorded returns output of msb 0.7.2.
func recorded(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseVersion_OfMsbOnly(t *testing.T) {
	for out, want := range map[string]string{
		"msb 0.7.2\n": "0.7.2", "msb 0.8.0-rc.1\n": "0.8.0-rc.1",
		"": "", "0.7.2": "", "msb": "", "msb 0.7\n": "", "msb 0.7.2\nmsb 0.7.3": "",
		"msb 0.7.2" + strings.Repeat("1", 300): "", "microsandbox 0.2.6": "",
	} {
		got, err := parseVersion([]byte(out))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", out, got, err, want)
		}
	}
}

func TestParseList_KeepsTheNamesOfEnginesOnly(t *testing.T) {
	list, err := parseList(recorded(t, "list.json"))
	if err != nil || len(list) != 1 || list[0].Name != "gb-0123456789abcdef" || list[0].Status != "Stopped" {
		t.Errorf("got %+v, %v", list, err)
	}
	if list, err := parseList([]byte("[]\n")); err != nil || len(list) != 0 {
		t.Errorf("of nothing: got %+v, %v", list, err)
	}
	for _, bad := range []string{"", "null x", "{}", `[{"name": 1}]`} {
		if _, err := parseList([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestParseStatus_OfThatSandboxOnly(t *testing.T) {
	out := recorded(t, "status.json")
	const name = "gb-0123456789abcdef"
	if s, err := parseStatus(out, name); err != nil || s.lives() || s.Status != "Stopped" {
		t.Errorf("got %+v, %v", s, err)
	}
	if _, err := parseStatus(out, "gb-0123456789abcdff"); err == nil {
		t.Error("the status of another sandbox was accepted")
	}
	if _, err := parseStatus([]byte(`{"name": "`+name+`"}`), name); err == nil {
		t.Error("no status was accepted")
	}
	if s, err := parseStatus([]byte(`{"name": "`+name+`", "status": "Paused"}`), name); err != nil || !s.lives() {
		t.Errorf("a paused sandbox: got %+v, %v", s, err)
	}
}

func TestParseMetrics_OfThatSandboxOnly(t *testing.T) {
	const name = "gb-0123456789abcdef"
	want := engine.Stats{MemoryBytes: 61476864, CPU: 142200244617, Processes: 1}
	if s, err := parseMetrics(recorded(t, "metrics.json"), name); err != nil || s != want {
		t.Errorf("got %+v, %v; want %+v", s, err, want)
	}
	if _, err := parseMetrics(recorded(t, "metrics.json"), name+"x"); err == nil {
		t.Error("the metrics of another sandbox were accepted")
	}
	if _, err := parseMetrics([]byte(`{"name": "`+name+`", "vcpu_time_ns": -1}`), name); err == nil {
		t.Error("a negative time was accepted")
	}
}

func TestIsName_OfEnginesOnly(t *testing.T) {
	if name := newName(); !isName(name) {
		t.Errorf("%q was refused", name)
	}
	for _, bad := range []string{"", "gb-", "s1", "gb-../../etc/passwd", newName() + "x", newName() + "\n"} {
		if isName(bad) {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestMessage_IsOnePrintableLine(t *testing.T) {
	for errs, want := range map[string]string{
		"error: sandbox not found: nope\n": "sandbox not found: nope",
		"error: failed to start \"s1\"\n  → other: sandbox process exited (exit status: 1)\n  → run `msb logs`\n": "failed to start \"s1\"; other: sandbox process exited (exit status: 1); run `msb logs`",
		"thread 'main' panicked\x1b[31m": `thread 'main' panicked\x1b[31m`,
		"":                               "",
	} {
		if got := message([]byte(errs)); got != want {
			t.Errorf("%q: got %q, want %q", errs, got, want)
		}
	}
	if got := message([]byte("error: " + strings.Repeat("x", 10*maxDetail))); len(got) > maxDetail+8 {
		t.Errorf("the message has %d bytes", len(got))
	}
}

func TestSays_OnlyOfFailedCommands(t *testing.T) {
	failed := &commandError{command: "status", message: "sandbox not found: x", err: errors.New("exit status 1")}
	if !says(unavailable(failed), notFound) || says(failed, imageNotFound) || says(errors.New(notFound), notFound) {
		t.Error("says is wrong")
	}
	if !errors.Is(unavailable(failed), engine.ErrUnavailable) || unavailable(nil) != nil {
		t.Error("unavailable is wrong")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`[{"name":"gb-0123456789abcdef","status":"Running"}]`))
	f.Add([]byte("msb 0.7.2"))
	f.Add([]byte(`{"exited":137}`))
	f.Add([]byte(`{"sandbox":"gb-0123456789abcdef"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseVersion(b)
		if list, err := parseList(b); err == nil {
			for _, s := range list {
				if !namePattern().MatchString(s.Name) {
					t.Errorf("name %q", s.Name)
				}
			}
		}
		parseStatus(b, "gb-0123456789abcdef")
		parseMetrics(b, "gb-0123456789abcdef")
		if name, err := decode(engine.GuestState{Version: stateVersion, Data: b}); err == nil && !isName(name) {
			t.Errorf("state of sandbox %q", name)
		}
		if exit := exitOf(b); exit.Code < 0 || exit.Code > 255 || len(exit.Detail) > 2*maxDetail || strings.ContainsAny(exit.Detail, "\n\x1b") {
			t.Errorf("exit %+v", exit)
		}
		if m := message(b); strings.ContainsAny(m, "\n\x1b") {
			t.Errorf("message %q", m)
		}
	})
}
