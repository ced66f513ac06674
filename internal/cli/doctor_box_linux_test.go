package cli

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/posture"
)

// TestDoctorBox_DifferenceIsAFailure: a process of a box that is confined in no way is
// reported with its differences, and the exit code is 1.
func TestDoctorBox_DifferenceIsAFailure(t *testing.T) {
	server, sentry := posture.Facts{Role: posture.Server, NoNewPrivs: true}, exec.Command("sleep", "60")
	if err := sentry.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sentry.Process.Kill(); sentry.Wait() })
	f, err := posture.Read(posture.Process{PID: sentry.Process.Pid, Role: posture.Sentry})
	if err != nil {
		t.Fatal(err)
	}
	for asJSON, wants := range map[bool][]string{
		false: {"sentry of a new box, process", "FAIL", "has no filter of system calls", "report this"},
		true:  {`"ok": false`, `"differences": [`, "has no filter of system calls"},
	} {
		var out bytes.Buffer
		a := &app{Streams: Streams{Out: &out}}
		r := newBoxReport(server, false)
		if err := a.reportPosture(r, asJSON); err != nil {
			t.Errorf("a server as promised: %v\n%s", err, out.String())
		}
		out.Reset()
		r.add(newBox, f)
		var status *exitStatus
		if err := a.reportPosture(r, asJSON); !errors.As(err, &status) || status.code != ExitFailure {
			t.Errorf("got %v, want exit code %d", err, ExitFailure)
		}
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in:\n%s", want, out.String())
			}
		}
	}
}
