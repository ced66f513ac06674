//go:build linux

package tools

import (
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/server/tools/toolstest"
)

// TestUpload_FailsWithoutSession: a failed upload leaves no session of which the client does not
// know the id, and keeps one that the client named.
func TestUpload_FailsWithoutSession(t *testing.T) {
	m := toolstest.Manager(t, nil)
	for args, want := range map[string]int{
		`{"path":"/proc/x","content":"x"}`:                      0,
		`{"path":"/proc/x","content":"x","session_id":"none"}`:  0,
		`{"path":"/proc/x","content":"x","session_id":"named"}`: 1,
	} {
		if res, err := call(t, m, "upload_file", args); err != nil || !res.IsError {
			t.Fatalf("%s: got %+v, %v; want an error", args, res, err)
		}
		boxes, err := m.List("", box.KindSession)
		if err != nil || len(boxes) != want {
			t.Errorf("%s: got %d sessions, %v; want %d", args, len(boxes), err, want)
		}
		for _, b := range boxes {
			if _, err := m.Stop(t.Context(), "", box.KindSession, b.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
}
