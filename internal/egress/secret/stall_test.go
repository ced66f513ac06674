package secret

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
)

// TestServe_StalledProgramEnds: a program that neither sends the body that it began nor
// reads the answer loses the request, although its connection lives.
func TestServe_StalledProgramEnds(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			ended := make(chan struct{})
			w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(ended)
				if r.Method == http.MethodPost {
					_, _ = io.Copy(io.Discard, r.Body)
					return
				}
				for {
					if _, err := w.Write(make([]byte, 32<<10)); err != nil {
						return
					}
				}
			}))
			w.i.bounds = webserve.Bounds{Stall: 200 * time.Millisecond, Drain: 200 * time.Millisecond}
			c := w.client(box, apiHost, http2)
			c.Timeout = 0
			c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 32 << 10, MaxReceiveBufferPerConnection: 64 << 10}
			body, unsent := io.Pipe()
			req, err := http.NewRequest(method, "https://"+apiHost+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			if method == http.MethodPost {
				req.Body, req.ContentLength = body, 1000
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				res, err := c.Do(req)
				if err == nil {
					defer res.Body.Close()
					<-t.Context().Done() // the answer stays unread
				}
			}()
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Errorf("%s, HTTP/2: %v: the request is still open", method, http2)
			}
			unsent.Close()
			t.Cleanup(func() { <-done })
		}
	}
}
