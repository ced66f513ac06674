package secret

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestServe_AsksForWholeText: a program cannot have the host answer in a form in which the value
// is not found, and such an answer does not reach the program.
func TestServe_AsksForWholeText(t *testing.T) {
	var asked http.Header
	var answer http.Header
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header
		for name, values := range answer {
			w.Header()[name] = values
		}
		fmt.Fprint(w, "an answer")
	}))
	for _, h2 := range []bool{false, true} {
		c := w.client(box, apiHost, h2)
		do := func(h http.Header) (int, string) {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+apiHost+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = h
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return res.StatusCode, string(body)
		}
		answer = nil
		do(http.Header{
			"Request-Range": {"bytes=0-0"}, "X-Ms-Range": {"bytes=0-0"}, "Accept-Charset": {"utf-16"},
			"Accept":               {"text/plain;charset=utf-16le, text/html;q=0.5; Charset=\"UTF-16\"", "a/b"},
			"Grpc-Accept-Encoding": {"gzip"}, "Connect-Accept-Encoding": {"gzip"},
		})
		for name, want := range map[string]string{
			"Request-Range": "", "X-Ms-Range": "", "Accept-Charset": "", "Accept": "text/plain, text/html;q=0.5 a/b",
			"Grpc-Accept-Encoding": "identity", "Connect-Accept-Encoding": "identity", "Accept-Encoding": "identity",
		} {
			if got := strings.Join(asked.Values(name), " "); got != want {
				t.Errorf("HTTP/2 %v: the host got %s %q, want %q", h2, name, got, want)
			}
		}
		for name, c := range map[string]struct {
			answer http.Header
			want   string // in the refusal; empty: it passes
		}{
			"plain":             {http.Header{"Content-Type": {"text/plain"}}, ""},
			"utf-8":             {http.Header{"Content-Type": {"text/html; charset=UTF-8"}}, ""},
			"latin":             {http.Header{"Content-Type": {"text/html; charset=\"iso-8859-15\""}}, ""},
			"items":             {http.Header{"Content-Range": {"id 1..2; max=3"}}, ""},
			"utf-16":            {http.Header{"Content-Type": {"text/plain; charset=utf-16le"}}, "a charset that is unknown or no superset of ASCII"},
			"quoted":            {http.Header{"Content-Type": {`text/plain; charset="UTF-32"`}}, "a charset"},
			"malformed":         {http.Header{"Content-Type": {"text/plain;; charset=utf-16;"}}, "a charset"},
			"EBCDIC":            {http.Header{"Content-Type": {"text/plain; charset=IBM037"}}, "a charset"},
			"a part":            {http.Header{"Content-Range": {"bytes 0-1/9"}}, "a part of a resource"},
			"parts":             {http.Header{"Content-Type": {"multipart/byteranges; boundary=x"}}, "a part of a resource"},
			"coded messages":    {http.Header{"Grpc-Encoding": {"gzip"}}, "messages in a coding"},
			"messages as asked": {http.Header{"Grpc-Encoding": {"identity"}}, ""},
		} {
			answer = c.answer
			status, body := do(http.Header{})
			switch {
			case c.want == "" && (status != http.StatusOK || body != "an answer"):
				t.Errorf("HTTP/2 %v, %s: got %d %q, want the answer", h2, name, status, body)
			case c.want != "" && (status != http.StatusBadGateway || !strings.Contains(body, c.want)):
				t.Errorf("HTTP/2 %v, %s: got %d %q, want a refusal with %q", h2, name, status, body, c.want)
			}
		}
	}
}

// TestReplace_AbortsStreams: a rotation in the middle of an answer is an error of the answer, and
// not its end, and gives a note.
func TestReplace_AbortsStreams(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := io.WriteString(w, strings.Repeat("part ", 1000)); err != nil {
					return
				}
				w.(http.Flusher).Flush()
			}
		}))
		c := w.client(box, apiHost, h2)
		res, err := c.Get("https://" + apiHost + "/")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, res.Body, 100_000); err != nil {
			t.Fatal(err)
		}
		w.rotate(rotatedValue)
		_, err = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if err == nil || h2 && !strings.Contains(err.Error(), "stream error") {
			t.Errorf("HTTP/2 %v: the answer ends with %v, want an error of the stream", h2, err)
		}
		if got, want := w.noted(), "Glovebox ended a connection to "+apiHost+": the operator has changed a secret of this host."; !strings.HasPrefix(got, want) {
			t.Errorf("HTTP/2 %v: the note is %q, want %q", h2, got, want)
		}
	}
}

// TestServe_RangeGetsTheWhole: no answer invites a client to resume, and one that asks for a part
// learns once that it got the whole.
func TestServe_RangeGetsTheWhole(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader("the whole"))
	})
	bothVersions(t, h, func(t *testing.T, w *world, c *http.Client) {
		for _, ranges := range []string{"", "bytes=0-", "bytes=4-", "bytes=5-"} {
			header := http.Header{}
			if ranges != "" {
				header.Set("Range", ranges)
			}
			for _, method := range []string{"HEAD", "GET"} {
				res, body := do(t, c, method, "https://"+apiHost+"/", header, nil)
				if res.StatusCode != 200 || method == "GET" && body != "the whole" || res.Header.Get("Accept-Ranges") != "" {
					t.Errorf("%s with range %q: got %d %q, Accept-Ranges %q", method, ranges, res.StatusCode, body, res.Header.Get("Accept-Ranges"))
				}
				if got, want := w.noted() != "", ranges > "bytes=4" && (ranges != "bytes=4-" || method == "GET"); got != want {
					t.Errorf("%s with range %q: noted %q", method, ranges, w.noted())
				}
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.notes) != 1 || !strings.Contains(w.notes[0], apiHost+": hosts with a secret give no parts, so the whole answer came") {
			t.Errorf("noted %q, want the whole answer once", w.notes)
		}
	})
}
