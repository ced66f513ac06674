package secret

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestServe_ProgramCannotCutTheValue: a program that stops reading in the middle of a value, and ends
// its side of the connection or breaks off its request, does not get the bytes that wait for the rest.
func TestServe_ProgramCannotCutTheValue(t *testing.T) {
	const filler, copies = 1 << 20, 100_000
	for _, request := range []string{"GET", "POST", "upgrade"} {
		for try := range 4 { // the values begin at other offsets
			w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				var out io.Writer = rw
				_ = http.NewResponseController(rw).EnableFullDuplex() // fails over HTTP/2, which always is
				if request == "upgrade" {
					c, _, err := rw.(http.Hijacker).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					_, _ = fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
					// Of a message that ends never: each frame ends within a value.
					_, _ = c.Write(append(wsHeader(1, false, filler), strings.Repeat(".", filler)...))
					value := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
					text := strings.Repeat(value+strings.Repeat(".", try+1), copies)
					for len(text) > 4096 {
						if _, err := c.Write(append(wsHeader(0, false, 4096), text[:4096]...)); err != nil {
							return
						}
						text = text[4096:]
					}
					return
				}
				value := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
				_, _ = io.WriteString(out, strings.Repeat(".", filler)+strings.Repeat(value+strings.Repeat(".", try+1), copies))
			}))
			conn := w.connect(box, apiHost, 443)
			_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10) // only a hint
			c := tls.Client(conn, w.tlsConfig(box, apiHost, "http/1.1"))
			head, body := "GET / HTTP/1.1\r\n", ""
			switch request {
			case "upgrade":
				head += "Connection: Upgrade\r\nUpgrade: websocket\r\n"
			case "POST":
				head, body = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", "1\r\nx\r\n"
			}
			if _, err := fmt.Fprintf(c, "%sHost: %s\r\nAuthorization: Bearer %s\r\n\r\n%s", head, apiHost, w.placeholder(box, "API_TOKEN"), body); err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, c, filler+100_000); err != nil {
				t.Fatal(err)
			}
			if request == "POST" {
				_, err := io.WriteString(c, "no length\r\n")
				if err != nil {
					t.Fatal(err)
				}
			} else if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			rest, _ := io.ReadAll(c) // ends with an error, since the answer is cut off
			checkNoBeginning(t, request, string(rest))
			c.Close()
		}
	}
}

// checkNoBeginning fails if text contains four bytes of the beginning of the value.
func checkNoBeginning(t *testing.T, what, text string) {
	t.Helper()
	if at := strings.Index(text, apiValue[:4]); at >= 0 {
		t.Errorf("%s: of %d bytes, those at %d are %.60q", what, len(text), at, text[at:])
	}
}

// TestServe_ProgramCannotMakeTheHostPause: a host that writes a part of its answer, and the rest when the
// program has sent its body, does not give the program the beginning of a value.
func TestServe_ProgramCannotMakeTheHostPause(t *testing.T) {
	waits := make(chan struct{})
	bothVersions(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctl := http.NewResponseController(rw)
		_ = ctl.EnableFullDuplex() // fails over HTTP/2, which always is
		value := r.Header.Get("Authorization")
		cut := len("Bearer ") + len(r.Header.Get("X-Pad"))
		_, _ = io.WriteString(rw, "event\n\n"+value[:cut])
		_ = ctl.Flush()
		waits <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(rw, value[cut:])
	}), func(t *testing.T, w *world, c *http.Client) {
		for cut := 4; cut < len(apiValue); cut += 7 {
			body, unsent := io.Pipe()
			req, err := http.NewRequest(http.MethodPost, "https://"+apiHost+"/", body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+w.placeholder(box, "API_TOKEN"))
			req.Header.Set("X-Pad", strings.Repeat("p", cut))
			go func() {
				<-waits
				time.AfterFunc(100*time.Millisecond, func() { unsent.Close() }) // what the server passes on by then is read below
			}()
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			begun := make([]byte, len("event\n\n"))
			if _, err := io.ReadFull(res.Body, begun); err != nil || string(begun) != "event\n\n" {
				t.Errorf("the message before: got %q, %v", begun, err)
			}
			rest, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || len(rest) != len("Bearer ")+len(apiValue) {
				t.Errorf("got %q, %v", rest, err)
			}
			checkNoBeginning(t, "the answer", string(rest))
		}
	})
}

// TestServe_RotationAbortsAnswers: an answer whose last bytes wait for the program when the value
// changes does not end as a complete one, and has no trailers.
func TestServe_RotationAbortsAnswers(t *testing.T) {
	const size = 20 << 10
	for _, protocol := range []string{"h2", "http/1.1"} { // of the host
		w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Trailer", "X-Echo")
			_, _ = io.WriteString(rw, strings.Repeat(".", size))
			rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
		}))
		w.host.TLS.NextProtos = []string{protocol}
		c := w.client(box, apiHost, true)
		c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10, MaxReceiveBufferPerConnection: 64 << 10}
		req, err := http.NewRequest(http.MethodGet, "https://"+apiHost+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.placeholder(box, "API_TOKEN"))
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		w.rotate(rotatedValue)
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil {
			t.Errorf("%s: %d of %d bytes look like a complete answer", protocol, len(b), size)
		}
		checkNoBeginning(t, "the trailer", fmt.Sprint(res.Trailer))
	}
}

// withoutLength answers at once with a text that ends with the connection.
func withoutLength(t *testing.T, text string) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		c, _, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+text)
	})
}

// TestServe_AnswerWithoutLength: the end of an answer that ends with its connection counts as complete if
// it is small, or ends with a line: the program could have made the host cut it off elsewhere.
func TestServe_AnswerWithoutLength(t *testing.T) {
	for text, whole := range map[string]bool{
		strings.Repeat("x", 100):                       true,
		strings.Repeat("x", surelySent):                true,
		strings.Repeat("x", surelySent+1):              false,
		strings.Repeat("x\n", surelySent):              true,
		strings.Repeat("x\n", surelySent) + "ghp_0123": false,
	} {
		w := newWorld(t, withoutLength(t, text))
		w.host.TLS.NextProtos = []string{"http/1.1"}
		res, err := w.client(box, apiHost, false).Get("https://" + apiHost + "/")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if (err == nil) != whole || whole != (len(b) == len(text)) || whole != (w.noted() == "") {
			t.Errorf("%d bytes ending in %q: got %d bytes and %v, note %q", len(text), text[len(text)-1:], len(b), err, w.noted())
		}
	}
}

// TestServe_AnswerWithoutLengthBeforeTheUpload: an answer without a length that ends before the host has
// the body of the request does not count as complete, unless it ends with a line.
func TestServe_AnswerWithoutLengthBeforeTheUpload(t *testing.T) {
	for text, whole := range map[string]bool{"no": false, "no\n": true} {
		w := newWorld(t, withoutLength(t, text))
		w.host.TLS.NextProtos = []string{"http/1.1"}
		body, unsent := io.Pipe()
		res, err := w.client(box, apiHost, false).Post("https://"+apiHost+"/", "text/plain", body)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		unsent.Close()
		if (err == nil) != whole {
			t.Errorf("%q: got %q and %v", text, b, err)
		}
	}
}
