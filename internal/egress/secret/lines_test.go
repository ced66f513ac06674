package secret

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress"
)

// TestServe_EventsAreBounded: a program cannot fill a log with requests on one connection,
// and hides no use of another secret.
func TestServe_EventsAreBounded(t *testing.T) {
	bothVersions(t, http.HandlerFunc(whoami), func(t *testing.T, w *world, c *http.Client) {
		w.i.lines.burst = lineBurst
		for range 4 * lineBurst {
			get(t, c, "https://"+apiHost+"/", "Bearer "+w.placeholder(box, "API_TOKEN"))
		}
		if n := len(w.events(Swapped)); n == 0 || n > lineBurst+1 {
			t.Errorf("%d events of %d requests, want few", n, 4*lineBurst)
		}
		get(t, w.client(box, gitHost, false), "https://"+gitHost+"/", "Bearer "+w.placeholder(box, "GIT_TOKEN"))
		events := w.events(Swapped)
		if last := events[len(events)-1]; last.Secrets[0] != "git" || last.Omitted != 0 {
			t.Errorf("the last event is %+v, want that of the other secret", last)
		}
	})
}

func TestLines_Omitted(t *testing.T) {
	l := lines{burst: lineBurst}
	e := Event{Box: egress.Box{Owner: "token alice"}, Kind: Masked, Secrets: []string{"a", "b"}}
	for range lineBurst {
		l.admit(&e)
	}
	for range 3 {
		if l.admit(&e) {
			t.Fatal("more events than the burst")
		}
	}
	other := Event{Box: e.Box, Kind: Masked, Secrets: []string{"b", "c"}}
	if !l.admit(&other) || other.Omitted != 3 {
		t.Errorf("the next event says %d omitted, want 3", other.Omitted)
	}
	for i := range 3 * maxLines {
		l.admit(&Event{Box: egress.Box{Owner: fmt.Sprint(i)}, Kind: Masked, Secrets: []string{"a"}})
	}
	if len(l.byUser) > maxLines {
		t.Errorf("%d lines are remembered, more than %d", len(l.byUser), maxLines)
	}
}
