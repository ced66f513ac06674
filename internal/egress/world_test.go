package egress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// A world is a gate with the network of one box.
type world struct {
	t testing.TB
	g *Gate
	n *Network

	mu      sync.Mutex
	set     policy.Set // guarded by mu
	records []Record   // guarded by mu
}

// newWorld returns a gate that allows the entries. Pins lead to servers on loopback.
func newWorld(t testing.TB, o Options, allow []string, pins ...string) *world {
	t.Helper()
	w := &world{t: t}
	w.allow(allow...)
	o.Policies = func(string) policy.Set {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.set
	}
	o.Record = func(r Record) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.records = append(w.records, r)
	}
	for _, s := range pins {
		p, err := resolve.ParsePin(s)
		if err != nil {
			t.Fatal(err)
		}
		o.Pins = append(o.Pins, p)
	}
	w.g = New(o)
	w.n = w.g.Open(Box{Owner: "alice", ID: "box-1"})
	t.Cleanup(func() { w.g.Close() })
	return w
}

func (w *world) allow(entries ...string) {
	w.t.Helper()
	p, err := policy.Parse(entries, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set = policy.Set{Owner: p}
}

func (w *world) recorded() []Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Record(nil), w.records...)
}

// wantOutcomes checks the hosts, or their sites, and the outcomes of all records. It waits for
// them: a program may see the end of its connection before there is a record.
func (w *world) wantOutcomes(t testing.TB, want ...string) {
	t.Helper()
	until(t, fmt.Sprint("records of ", want), func() bool { return len(w.recorded()) >= len(want) })
	var got []string
	for _, r := range w.recorded() {
		got = append(got, fmt.Sprint(r.Host+r.Site, " ", r.Outcome))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("records: %q, want %q", got, want)
	}
}

// piped connects a program to a server through the network of the box, by pipes: a bubble of
// synctest does not know when sockets wait. spliced is closed when the connection has ended.
func (w *world) piped(t testing.TB) (program, server net.Conn, spliced <-chan struct{}) {
	t.Helper()
	to := target{protocol.DoorTCP, "a.example.org", 7}
	verdict := w.n.policies().Decide(to.host, to.port)
	if !verdict.OK || verdict.Kind != policy.Raw {
		t.Fatalf("the policy says %+v", verdict)
	}
	program, guest := net.Pipe()
	server, far := net.Pipe()
	t.Cleanup(func() {
		program.Close()
		server.Close()
	})
	f, refused := w.n.newFlow(t.Context(), far, to, verdict, netip.MustParseAddr("203.0.113.7"), time.Now())
	if refused != nil {
		t.Fatalf("refused: %+v", refused)
	}
	f.carryRaw()
	done := make(chan struct{})
	go func() {
		defer close(done)
		splice(guest, f)
	}()
	return program, server, done
}

// door listens on loopback in place of the agent, and returns its address.
func (w *world) door(d protocol.Dial) string {
	w.t.Helper()
	return w.doorOf(w.n, d)
}

func (w *world) doorOf(n *Network, d protocol.Dial) string {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = n.Serve(w.t.Context(), d, c) }) // it fails once the network is closed
		}
	})
	w.t.Cleanup(func() {
		l.Close()
		n.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func (w *world) httpDoor() string { return w.door(protocol.Dial{Door: protocol.DoorHTTP}) }

func (w *world) tcpDoor(name string, port int) string {
	return w.door(protocol.Dial{Door: protocol.DoorTCP, Name: name, Port: port})
}

// connect connects to a door; it fails after 10 s.
func connect(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// pair returns both ends of a connection on loopback.
func pair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near = connect(t, l.Addr().String()).(*net.TCPConn)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return near, c.(*net.TCPConn)
}

// say sends text to a door and returns everything that comes back.
func say(t testing.TB, addr, text string) string {
	t.Helper()
	c := connect(t, addr)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Fatalf("%q: read %q: %v", text, b, err)
	}
	return string(b)
}

// listen serves connections on loopback until the test ends.
func listen(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// web serves HTTP on loopback.
func web(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // until Close
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return l.Addr().String()
}

// until waits for a condition that another goroutine makes true.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
