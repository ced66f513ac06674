package secret

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/loglimit"
)

// TestServe_EventsAreBounded: a program cannot fill a log with requests on one connection,
// and hides no use of another secret.
func TestServe_EventsAreBounded(t *testing.T) {
	bothVersions(t, http.HandlerFunc(whoami), func(t *testing.T, w *world, c *http.Client) {
		w.i.lines = newLines(lineBurst)
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

// TestReport_LinesAreByOwnerSecretAndKind: events of one owner, secret and kind get five lines at once,
// and hide no others. The next line of theirs counts those without one.
func TestReport_LinesAreByOwnerSecretAndKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Event
		i := New(Options{Report: func(e Event) { got = append(got, e) }}, new(Secrets))
		flood := Event{Kind: Swapped, Box: box, Secrets: []string{"api"}}
		for n := range 50 {
			flood.Box.ID = fmt.Sprint("box", n%10) // of one owner
			i.report(flood)
		}
		if len(got) != 5 {
			t.Errorf("50 events at once have %d lines, want 5", len(got))
		}
		bob := egress.Box{Owner: "token bob", ID: "box2"}
		for name, e := range map[string]Event{
			"owner":  {Kind: Swapped, Box: bob, Secrets: []string{"api"}},
			"secret": {Kind: Swapped, Box: box, Secrets: []string{"git"}},
			"kind":   {Kind: Masked, Box: box, Secrets: []string{"api"}},
		} {
			got = nil
			i.report(e)
			if len(got) != 1 || got[0].Omitted != 0 {
				t.Errorf("an event of another %s has the lines %+v, want one", name, got)
			}
		}
		time.Sleep(loglimit.Interval)
		got = nil
		i.report(flood)
		if len(got) != 1 || got[0].Omitted != 45 {
			t.Errorf("after a pause of %v, an event has the lines %+v, want one that counts 45 omitted", loglimit.Interval, got)
		}
		got = nil
		i.report(flood)
		i.report(flood)
		i.report(Event{Kind: Swapped, Box: box, Secrets: []string{"api", "new"}})
		if len(got) != 1 || got[0].Omitted != 2 {
			t.Errorf("an event of two secrets, one of which has no line left, has the lines %+v, want one that counts 2 omitted", got)
		}
	})
}

// TestServe_RefusalEndsConnection: a program cannot keep the server busy with refused
// requests, which transfer nothing that is limited.
func TestServe_RefusalEndsConnection(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(whoami))
	c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost))
	defer c.Close()
	fmt.Fprint(c, strings.Repeat("TRACE / HTTP/1.1\r\nHost: "+apiHost+"\r\n\r\n", 100))
	got, _ := io.ReadAll(c) // the rest of the requests may cause a reset
	if n := strings.Count(string(got), "HTTP/1.1 405"); n > 1 {
		t.Errorf("%d refusals on one connection", n)
	}
}

// TestServe_SwapsFewValues: a request with a placeholder in thousands of headers does not
// become a hundred times as long.
func TestServe_SwapsFewValues(t *testing.T) {
	bothVersions(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 0
		for _, v := range r.Header["X-Api-Key"] {
			if v == apiValue {
				n++
			}
		}
		fmt.Fprintf(w, "%d of %d", n, len(r.Header["X-Api-Key"]))
	}), func(t *testing.T, w *world, c *http.Client) {
		h := http.Header{}
		for range 500 {
			h.Add("X-Api-Key", w.placeholder(box, "API_TOKEN"))
		}
		if _, got := do(t, c, "GET", "https://"+apiHost+"/", h, nil); got != fmt.Sprintf("%d of 500", maxSwapped) {
			t.Errorf("the host got the secret in %s", got)
		}
	})
}
