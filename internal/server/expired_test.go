package server

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/codemode/approval"
	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// TestApprovals_repeatAfterExpiry: a request whose program expired is refused once if it is repeated,
// with what the program had done. Then it runs again, and a client that came back in time for the
// result is not refused.
func TestApprovals_repeatAfterExpiry(t *testing.T) {
	var log polltest.Buffer
	d, _, change := withApprovals(t, approval.Options{Expiry: 3 * time.Second, Audit: slog.New(slog.NewTextHandler(&log, nil))})
	_, url := serve(t, change)
	c := newRawClient(t, url)
	const code = "attempt('read')\nattempt('write')\nattempt('delete')"
	expire := func() (state string) {
		t.Helper()
		before := strings.Count(log.String(), "decision=expired")
		state, _ = c.asked(code)
		res, err := c.run(code, state, "once") // write
		if err != nil || res.RequestState == "" {
			t.Fatalf("got %+v, %v, want the question about delete", res, err)
		}
		eventually(t, "the question expires", func() bool { return strings.Count(log.String(), "decision=expired") > before })
		return res.RequestState
	}
	expire()
	first := d.called()
	res, err := c.run(code, "", "")
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, res)
	for _, want := range []string{"nobody gave until 20", "It made 2 tool calls, and may have changed something with diary.write. This call did not run", "Repeat the request to run the program again"} {
		if !res.IsError || !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if more := d.called(); len(first) != 2 || len(more) > 0 {
		t.Errorf("calls of the first request: %q, of its repetition: %q", first, more)
	}
	state := expire() // it runs again
	if res, err := c.run(code, state, "once"); err != nil || res.IsError {
		t.Errorf("the late client: got %+v, %v", res, err)
	}
	c.asked(code)
}
