package server

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestBody_AtTheLimit: a body of exactly the most bytes is served, and one with a byte more gets
// 413, with a length and without.
func TestBody_AtTheLimit(t *testing.T) {
	const limit = 64 << 10
	_, url := serve(t, func(o *Options) { o.Limits.Body = limit })
	for size, want := range map[int]int{limit: 200, limit + 1: 413} {
		for _, known := range []bool{true, false} {
			var body io.Reader = strings.NewReader(ping + strings.Repeat(" ", size-len(ping)))
			if !known {
				body = io.MultiReader(body) // hides the length
			}
			req, err := http.NewRequestWithContext(t.Context(), "POST", url, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", mcpAccept)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != want || (req.ContentLength > 0) != known {
				t.Errorf("%d bytes, length known: %t: got %s, want %d", size, known, res.Status, want)
			}
		}
	}
}
