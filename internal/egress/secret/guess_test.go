package secret

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestServe_GuessesTellNothing: a program that a host repeats learns from no answer whether its text
// begins the value of a secret.
func TestServe_GuessesTellNothing(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		guess := r.Header.Get("X-Request-Id")
		rw.Header().Set("X-Request-Id", guess)
		fmt.Fprint(rw, guess)
	}))
	c := w.client(box, apiHost, true)
	escaped := ""
	for _, b := range []byte(apiValue) {
		escaped += fmt.Sprintf(`\u%04x`, b)
	}
	for _, value := range []string{apiValue, escaped} {
		for _, n := range []int{1, len(value) / 10, len(value) / 4, len(value) / 2, len(value)} {
			req, err := http.NewRequest("GET", "https://"+apiHost+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Request-Id", value[:n])
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if masked := n == len(value); (res.Header.Get("X-Request-Id") != value[:n]) != masked || (string(body) != value[:n]) != masked {
				t.Errorf("%d of %d bytes: the header is %q, the body %q", n, len(value), res.Header.Get("X-Request-Id"), body)
			}
		}
	}
}

// TestServe_UnreadAnswersStayAtTheHost: a program that does not read the answers to its requests
// does not fill the memory of the server with them.
func TestServe_UnreadAnswersStayAtTheHost(t *testing.T) {
	const streams, most = 8, 1 << 20
	var sent atomic.Int64
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Proto, "HTTP/2") {
			t.Errorf("the host got %s", r.Proto)
		}
		part := make([]byte, 32<<10)
		for range 160 { // 5 MiB
			n, err := rw.Write(part)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	c := w.client(box, apiHost, true)
	c.Timeout = 0
	c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10, MaxReceiveBufferPerConnection: 64 << 10}
	for range streams {
		req, err := http.NewRequest("GET", "https://"+apiHost+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	for before := int64(-1); sent.Load() != before; time.Sleep(300 * time.Millisecond) {
		before = sent.Load()
	}
	if n := sent.Load(); n > streams*most {
		t.Errorf("the server took %d bytes of %d answers that the program does not read; want at most %d of each", n, streams, most)
	}
}

// TestServe_UnreadAnswersLeaveRoom: answers that a program does not read yet do not keep others of
// the same connection from it.
func TestServe_UnreadAnswersLeaveRoom(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/short" {
			_, _ = io.WriteString(rw, "short")
			return
		}
		_, _ = rw.Write(make([]byte, 1<<20))
	}))
	c := w.client(box, apiHost, true)
	c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 16 << 20}
	for range maxStreams - 2 {
		res, err := c.Get("https://" + apiHost + "/long")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	res, err := c.Get("https://" + apiHost + "/short")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); string(body) != "short" || err != nil {
		t.Errorf("got %q, %v", body, err)
	}
}
