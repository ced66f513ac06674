package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestProxy_DialsOfOneConnectionCount: requests on one connection to the proxy cannot cause
// more connections to servers than the same number of connections could.
func TestProxy_DialsOfOneConnectionCount(t *testing.T) {
	server := web(t, greet)
	var allow, pins []string
	for i := range 4 {
		name := fmt.Sprintf("h%d.example.org", i)
		allow, pins = append(allow, name), append(pins, name+"="+server)
	}
	w := newWorld(t, Options{}, allow, pins...)
	c := connect(t, w.httpDoor())
	r := bufio.NewReader(c)
	ask := func(host string) int {
		t.Helper()
		fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", host)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode
	}
	if got := ask("h0.example.org"); got != 200 {
		t.Fatalf("the first request: status %d", got)
	}
	w.n.fresh.AllowN(time.Now(), int(w.n.fresh.Tokens())-1) // one is left
	if got := ask("h0.example.org"); got != 200 {
		t.Errorf("a request on the same connection to the server: status %d", got)
	}
	if got := ask("h1.example.org"); got != 200 {
		t.Errorf("the last connection: status %d", got)
	}
	w.n.fresh.SetLimit(0)
	if got := ask("h2.example.org"); got != http.StatusTooManyRequests {
		t.Errorf("beyond the limit: status %d, want 429", got)
	}
}

// TestOwner_LimitsOutliveBoxes: an owner gets no new limits with a new box, and those who
// have rested are forgotten.
func TestOwner_LimitsOutliveBoxes(t *testing.T) {
	w := newWorld(t, Options{MaxBytesPerMinute: 1 << 20}, nil)
	o := w.n.owner
	o.fresh.AllowN(time.Now(), o.fresh.Burst())
	o.bytes.AllowN(time.Now(), o.bytes.Burst())
	o.fresh.SetLimit(0)
	w.n.Close()
	next := w.g.Open(Box{Owner: "alice", ID: "box-2"})
	if _, text := next.admit(); !strings.Contains(text, "the boxes of this owner opened connections too fast") {
		t.Errorf("a new box after the owner's limit was reached: %q", text)
	}
	if next.owner.bytes.Tokens() > 1<<19 {
		t.Error("the owner's bytes begin anew")
	}
	next.Close()
	for i := range 2 * maxResting {
		w.g.Open(Box{Owner: fmt.Sprint("rested ", i), ID: "box"}).Close()
	}
	w.g.mu.Lock()
	owners, resting, alice := len(w.g.owners), w.g.resting, w.g.owners["alice"]
	w.g.mu.Unlock()
	if owners > maxResting+1 || resting != owners {
		t.Errorf("%d owners are remembered, and %d counted, want at most %d", owners, resting, maxResting)
	}
	if alice != o {
		t.Error("the owner whose limit is reached was forgotten before others")
	}
	for i := range 2 * maxResting {
		n := w.g.Open(Box{Owner: fmt.Sprint("busy ", i), ID: "box"})
		n.owner.fresh.Allow()
		n.owner.fresh.SetLimit(0)
		n.Close()
	}
	w.g.mu.Lock()
	defer w.g.mu.Unlock()
	if len(w.g.owners) > maxResting || w.g.owners["alice"] != nil {
		t.Errorf("%d owners that do not rest are remembered", len(w.g.owners))
	}
}

// TestProxy_UnsentBodyEnds: a program that announces a body and does not send it, or sends
// it byte by byte, does not keep its place.
func TestProxy_UnsentBodyEnds(t *testing.T) {
	reads := web(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	early := web(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	w := newWorld(t, Options{}, []string{"reads.example.org", "early.example.org"}, "reads.example.org="+reads, "early.example.org="+early)
	w.g.bounds = webserve.Bounds{Stall: 100 * time.Millisecond, Drain: 100 * time.Millisecond}
	proxy := w.httpDoor()
	for _, tt := range []struct{ name, door, url, headers string }{
		{"silent", proxy, "http://reads.example.org/", "Content-Length: 1000000\r\n"},
		{"chunks", proxy, "http://reads.example.org/", "Transfer-Encoding: chunked\r\n"},
		{"origin", w.tcpDoor("reads.example.org", 80), "/", "Content-Length: 1000000\r\n"},
		{"answered", proxy, "http://early.example.org/", "Content-Length: 1000\r\n"},
		{"refused", proxy, "http://evil.example.org/", "Content-Length: 1000\r\n"},
		{"continue", proxy, "http://evil.example.org/", "Expect: 100-continue\r\nContent-Length: 1000\r\n"},
	} {
		for _, trickle := range []bool{false, true} {
			c := connect(t, tt.door)
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: reads.example.org\r\n%s\r\n", tt.url, tt.headers)
			ended := make(chan struct{})
			if trickle {
				go func() {
					for {
						if _, err := io.WriteString(c, "1\r\na\r\n"); err != nil {
							return
						}
						select {
						case <-ended:
							return
						case <-time.After(5 * time.Millisecond):
						}
					}
				}()
			}
			_, err := io.Copy(io.Discard, c)
			close(ended)
			if e, ok := err.(net.Error); ok && e.Timeout() {
				t.Errorf("%s, byte by byte: %v: the connection is still open", tt.name, trickle)
			}
			c.Close()
		}
	}
	until(t, "all places are free", func() bool { return w.g.Stats().Open == 0 })
}

// TestProxy_SlowBodyArrives: a body that makes progress may take longer than the bound.
func TestProxy_SlowBodyArrives(t *testing.T) {
	const size = 64 * 4096
	server := web(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %v", n, err)
	})
	w := newWorld(t, Options{}, []string{"a.example.org"}, "a.example.org="+server)
	w.g.bounds = webserve.Bounds{Stall: 4 * time.Second, Drain: 4 * time.Second}
	c := connect(t, w.door(protocol.Dial{Door: protocol.DoorHTTP}))
	fmt.Fprintf(c, "POST http://a.example.org/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", size)
	for range 64 {
		if _, err := c.Write(make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(80 * time.Millisecond)
	}
	if b, err := io.ReadAll(c); err != nil || !strings.Contains(string(b), fmt.Sprint(size, " <nil>")) {
		t.Errorf("got %q, %v", b, err)
	}
}

// TestLimits_NameTheBurst: the text has the number of connections at once, which programs reach
// first.
func TestLimits_NameTheBurst(t *testing.T) {
	w := newWorld(t, Options{}, []string{"a.test"})
	text, n := "", 0
	for ; text == "" && n <= boxPerMinute; n++ {
		text = w.n.begin()
	}
	if n != boxPerMinute/2+1 {
		t.Errorf("connection %d is refused, want that after half of a minute's", n)
	}
	if want := "this box opened connections too fast; at most 300 at once, and then 600 a minute; open fewer"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

// TestLimits_OwnersLeaveConnections: some owners with as many connections as they may have leave
// others some.
func TestLimits_OwnersLeaveConnections(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	took := 0
	for i := range 6 {
		var text string
		before := took
		for b := 0; text == "" && b < 8; b++ {
			n := w.g.Open(Box{Owner: fmt.Sprint("greedy ", i), ID: fmt.Sprint("box ", b)})
			defer n.Close()
			for text == "" {
				if _, text = n.admit(); text == "" {
					took++
				}
			}
			if strings.HasPrefix(text, "this box") {
				text = ""
			}
		}
		if took == before {
			t.Fatalf("owner %d got no connection: %s", i, text)
		}
		if i == 5 && !strings.Contains(text, "the server has few connections left, and the boxes of this owner have ") {
			t.Errorf("owner %d: %q", i, text)
		}
	}
}

// TestLimits_AreThoseOfTheDocument: the rates and numbers that docs/security.md promises are those of
// a box, an owner and the server.
func TestLimits_AreThoseOfTheDocument(t *testing.T) {
	w := newWorld(t, Options{MaxBytesPerMinute: 60 << 20}, nil)
	for what, c := range map[string]struct{ got, want rate.Limit }{
		"bytes a second of a box":          {w.n.bytes.Limit(), 1 << 20},
		"bytes a second of an owner":       {w.n.owner.bytes.Limit(), 4 << 20},
		"connections a second of a box":    {w.n.fresh.Limit(), 10},
		"connections a second of an owner": {w.n.owner.fresh.Limit(), 40},
		"lookups a second of a box":        {w.n.lookups.Limit(), 20},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", what, c.got, c.want)
		}
	}
	if got := w.n.lookups.Burst(); got != 100 {
		t.Errorf("lookups at once of a box: got %d, want 100", got)
	}
	for i := range maxBoxConnections {
		if _, text := w.n.admit(); text != "" {
			t.Fatalf("connection %d of a box: %s", i, text)
		}
	}
	if _, text := w.n.admit(); !strings.HasPrefix(text, "this box already has 64 ") {
		t.Errorf("one more than 64 of a box: got %q", text)
	}
	second := w.g.Open(Box{Owner: "alice", ID: "box-2"})
	defer second.Close()
	if _, text := second.admit(); text != "" {
		t.Errorf("the first of another box of the owner: got %q", text)
	}

	few := newWorld(t, Options{MaxConnections: 4}, nil)
	for i := range 5 {
		n := few.g.Open(Box{Owner: fmt.Sprint(i), ID: "box"})
		defer n.Close()
		if _, text := n.admit(); (text == "") != (i < 4) || i == 4 && !strings.HasPrefix(text, "the server has too many connections") {
			t.Errorf("the first connection of owner %d, of 4 in all: got %q", i, text)
		}
	}
}
