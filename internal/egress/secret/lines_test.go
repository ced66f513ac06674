package secret

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
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
