package server

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestInFlight_SlowBodiesBehindProxy: one owner whose requests never end their bodies
// gets half of a proxy's connections, and other owners are served.
func TestInFlight_SlowBodiesBehindProxy(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) { o.BehindProxy, o.Limits.Connections = true, 8 }))
	var slow []wire
	for i := range 8 {
		w := dialWire(t, url)
		fmt.Fprintf(w, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.%d\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", i, p.tokens["alice"])
		slow = append(slow, w)
	}
	refused := make(chan *http.Response, len(slow))
	for _, w := range slow {
		go func() {
			res, err := http.ReadResponse(w.in, nil)
			if err == nil {
				refused <- res
			}
		}()
	}
	for range 4 {
		select {
		case res := <-refused:
			if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" || !res.Close {
				t.Errorf("above the share: %s %v", res.Status, res.Header)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no refusal; %d requests are in flight", s.inFlight.value())
		}
	}
	if n := s.inFlight.value(); n != 4 {
		t.Errorf("%d requests of one owner are in flight, want half of the connections", n)
	}
	for range 4 {
		w := dialWire(t, url)
		w.post(t, p.as("bob"), ping)
		if res := w.head(t); res.StatusCode != 200 {
			t.Errorf("another owner: %s", res.Status)
		}
	}
	for _, w := range slow {
		w.Close()
	}
	eventually(t, "nothing is held", func() bool { return s.inFlight.value() == 0 })
	if res, body := do(t, "POST", url, p.as("alice"), ping); res.StatusCode != 200 {
		t.Errorf("the same owner afterwards: %s %s", res.Status, body)
	}
}

// TestInFlight_StreamsCount: the open streams of an owner, of a session and of the modern revision,
// count together with its unfinished bodies.
func TestInFlight_StreamsCount(t *testing.T) {
	p := newPeople(t)
	s, url := serve(t, p.options(func(o *Options) {
		announcesTools(o)
		o.BehindProxy, o.Limits.Connections = true, 8
	}))
	var sessions []header
	for range 3 {
		begun, _ := do(t, "POST", url, p.as("alice"), initBody)
		sessions = append(sessions, p.as("alice", headerSession, begun.Header.Get(headerSession)))
	}
	// The requests above leave soon after their answers: before the streams, which take all places.
	eventually(t, "nothing is in flight", func() bool { return s.inFlight.value() == 0 })
	var streams []*http.Response
	for _, h := range sessions[:2] {
		streams = append(streams, listenTo(t, t.Context(), url, h))
	}
	streams = append(streams, p.modernListen(t, t.Context(), url, "alice"))
	for i, res := range streams {
		if res.StatusCode != 200 {
			t.Fatalf("stream %d: %s", i, res.Status)
		}
	}
	if n := s.inFlight.value(); n != 3 {
		t.Fatalf("%d requests are in flight beside three open streams", n)
	}
	slow := dialWire(t, url)
	fmt.Fprintf(slow, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", p.tokens["alice"])
	eventually(t, "the body is being read", func() bool { return s.inFlight.value() >= 4 })
	for name, res := range map[string]*http.Response{
		"a call":                          send(t, "POST", url, p.as("alice"), ping),
		"a stream of a session":           listenTo(t, t.Context(), url, sessions[2]),
		"a stream of the modern revision": p.askModernListen(t, t.Context(), url, "alice"),
	} {
		if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s beside three streams and a body: %s %v", name, res.Status, res.Header)
		} else if body, err := io.ReadAll(res.Body); !strings.Contains(string(body), "in flight") {
			t.Errorf("%s is refused at another limit: %s %v", name, body, err)
		}
		res.Body.Close()
	}
	if res, body := do(t, "POST", url, p.as("bob"), ping); res.StatusCode != 200 {
		t.Errorf("another owner: %s %s", res.Status, body)
	}
	streams[0].Body.Close()
	eventually(t, "the stream ends", func() bool { return s.inFlight.value() == 3 })
	if res, body := do(t, "POST", url, p.as("alice"), ping); res.StatusCode != 200 {
		t.Errorf("the same owner in the place of a stream that ended: %s %s", res.Status, body)
	}
}

// TestInFlight_StreamsOfHTTP2: the requests of one owner are bounded although one connection
// carries many whose bodies never end.
func TestInFlight_StreamsOfHTTP2(t *testing.T) {
	p := newPeople(t)
	s, address := serveTLS(t, selfSigned(t), p.options(func(o *Options) {
		o.Limits.Connections, o.Limits.Calls, o.Limits.Streams = 4, 4, 4
	}))
	const share = (4 + 4 + 4 + 4) / 2
	client := func() *http.Client {
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	post := func(c *http.Client, who string, body io.Reader) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+address+"/mcp", body)
		if err != nil {
			return nil, err
		}
		for k, v := range p.as(who, "Content-Type", "application/json") {
			r.Header.Set(k, v)
		}
		res, err := c.Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		return res, err
	}
	alice := client()
	if res, err := post(alice, "alice", strings.NewReader(ping)); err != nil || res.ProtoMajor != 2 || res.StatusCode != 200 {
		t.Fatalf("the first request: %v %v", res, err)
	}
	const many = 40
	statuses := make(chan int, many)
	var bodies []*io.PipeWriter
	for range many {
		body, w := io.Pipe()
		bodies = append(bodies, w)
		go func() {
			status := 0
			if res, err := post(alice, "alice", body); err == nil {
				status = res.StatusCode
			}
			statuses <- status
		}()
	}
	for range many - share {
		select {
		case status := <-statuses:
			if status != 429 {
				t.Errorf("above the share: status %d", status)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no refusal; %d requests are in flight", s.inFlight.value())
		}
	}
	if n := s.inFlight.value(); n != share {
		t.Errorf("%d requests of one owner are in flight, want %d", n, share)
	}
	if res, err := post(client(), "bob", strings.NewReader(ping)); err != nil || res.StatusCode != 200 {
		t.Errorf("another owner: %v %v", res, err)
	}
	for _, w := range bodies {
		w.Close()
	}
	eventually(t, "nothing is held", func() bool { return s.inFlight.value() == 0 })
}
