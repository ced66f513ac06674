//go:build linux

package attack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// weakEgress is what the attacks on the network of boxes meet in tests of the judge.
type weakEgress struct {
	network   func(*netRig) network                               // instead of that of the gate
	allow     []string                                            // in addition to the attack's
	intercept func(*vault, egress.Interceptor) egress.Interceptor // instead of that of package secret
}

// network is the network of a box as its agent sees it.
type network interface {
	Lookup(ctx context.Context, name string) protocol.LookupResult
	Serve(ctx context.Context, d protocol.Dial, conn net.Conn) error
}

// netRig is a gate, as in a server, with servers around it that judge what arrives.
type netRig struct {
	t       *trial
	gate    *egress.Gate
	network network // of the attacker's box
	names   *nameServer
	lookup  resolve.Lookuper // names, unless the attack has a name server of its own
	good    *webServer       // of good.example.org, which is allowed
	decoy   *webServer       // on loopback, which nothing may reach
	done    []func()

	mu      sync.Mutex
	records []egress.Record // guarded by mu
}

const goodHost = "good.example.org"

// askTimeout bounds a conversation with the gate: long enough for a refusal, and short
// enough for a connection to an address that does not answer.
const askTimeout = 2 * time.Second

// net returns a rig with a policy that allows goodHost and the entries. The caller calls
// close.
func (t *trial) net(o egress.Options, allow ...string) (*netRig, error) {
	r := &netRig{t: t, names: &nameServer{answers: map[string][][]string{}}}
	for _, s := range []**webServer{&r.good, &r.decoy} {
		w, err := newWebServer()
		if err != nil {
			r.close()
			return nil, err
		}
		*s = w
		r.done = append(r.done, w.close)
	}
	for i := range allow {
		allow[i] = strings.ReplaceAll(allow[i], "DECOY", fmt.Sprint(r.decoy.port()))
	}
	p, err := policy.Parse(append(append([]string{goodHost}, allow...), t.cfg.egress.allow...), nil)
	if err != nil {
		r.close()
		return nil, err
	}
	pin, err := resolve.ParsePin(fmt.Sprintf("%s:80=127.0.0.1:%d", goodHost, r.good.port()))
	if err != nil {
		r.close()
		return nil, err
	}
	o.Policies = func(string) policy.Set { return policy.Set{Owner: p} }
	o.Pins = append(o.Pins, pin)
	if o.Resolver == nil {
		o.Resolver = r.names
	}
	r.lookup = o.Resolver
	o.Record = func(rec egress.Record) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.records = append(r.records, rec)
	}
	r.gate = egress.New(o)
	r.done = append(r.done, func() { _ = r.gate.Close() }) // it returns no error
	r.network = r.gate.Open(egress.Box{Owner: "mallory", ID: t.nonce})
	if t.cfg.egress.network != nil {
		r.network = t.cfg.egress.network(r)
	}
	return r, nil
}

func (r *netRig) close() {
	for _, f := range r.done {
		defer f()
	}
}

// dial opens a connection of a program in the box.
func (r *netRig) dial(ctx context.Context, n network, d protocol.Dial) net.Conn {
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	var served sync.WaitGroup
	served.Go(func() { _ = n.Serve(ctx, d, far) }) // an invalid dial is refused, too
	r.done = append(r.done, func() {
		cancel()
		near.Close()
		served.Wait()
	})
	return near
}

// say sends text to a door and returns what comes back until the end or askTimeout.
func (r *netRig) say(ctx context.Context, d protocol.Dial, text string) string {
	c := r.dial(ctx, r.network, d)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(askTimeout))  // cannot fail on an open pipe
	go func() { _, _ = io.WriteString(c, text) }() // the gate may end the connection before
	var b strings.Builder
	_, _ = io.Copy(&b, io.LimitReader(c, 64<<10)) // likewise
	return b.String()
}

func (r *netRig) proxy(ctx context.Context, text string) string {
	return r.say(ctx, protocol.Dial{Door: protocol.DoorHTTP}, text)
}

func (r *netRig) origin(ctx context.Context, host string, port int, text string) string {
	return r.say(ctx, protocol.Dial{Door: protocol.DoorTCP, Name: host, Port: port}, text)
}

// socks asks the SOCKS proxy for a host, as a name of at most 255 bytes.
func (r *netRig) socks(ctx context.Context, host string, port int, text string) string {
	host = host[:min(len(host), 255)]
	return r.say(ctx, protocol.Dial{Door: protocol.DoorSOCKS}, "\x05\x01\x00\x05\x01\x00\x03"+string([]byte{byte(len(host))})+host+string([]byte{byte(port >> 8), byte(port)})+text)
}

// tryAll asks each door for a host at the port of the decoy, and judges that nothing
// arrives there.
func (r *netRig) tryAll(ctx context.Context, host string) {
	port := r.decoy.port()
	at := fmt.Sprintf("%s:%d", host, port)
	get := "GET /stolen HTTP/1.1\r\nHost: " + at + "\r\nConnection: close\r\n\r\n"
	r.network.Lookup(ctx, host)
	r.proxy(ctx, "GET http://"+at+"/stolen HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	r.proxy(ctx, "CONNECT "+at+" HTTP/1.1\r\nHost: x\r\n\r\n"+get)
	r.socks(ctx, host, port, get)
	r.origin(ctx, host, port, get)
	r.checkDecoy("by %q", host)
}

func (r *netRig) checkDecoy(format string, args ...any) {
	how := fmt.Sprintf(format, args...)
	r.t.check(len(r.decoy.take()) == 0, "a server on loopback was reached %s", how)
}

// nameServer answers lookups as an attacker's name server does: differently each time.
type nameServer struct {
	mu      sync.Mutex
	answers map[string][][]string // guarded by mu; of each name, one answer after the other, and then the last
	asked   []string              // guarded by mu
}

func (s *nameServer) set(name string, answers ...[]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[name] = answers
}

// LookupNetIP implements resolve.Lookuper. A name that was not set is on loopback.
func (s *nameServer) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	s.asked = append(s.asked, host)
	answers := s.answers[host]
	if len(answers) == 0 {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	if len(answers) > 1 {
		s.answers[host] = answers[1:]
	}
	var addrs []netip.Addr
	for _, a := range answers[0] {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs, nil
}

// webServer serves HTTP on loopback and notes each request.
type webServer struct {
	listener net.Listener
	server   *http.Server
	serve    http.HandlerFunc // nil: an empty answer

	mu       sync.Mutex
	requests []string // guarded by mu: method, host and URL
	conns    int      // guarded by mu
}

func newWebServer() (*webServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for boxes: %w", err)
	}
	w := &webServer{listener: l}
	w.server = &http.Server{Handler: http.HandlerFunc(w.handle), ReadTimeout: 2 * askTimeout, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.conns++
		}
	}}
	go func() { _ = w.server.Serve(l) }() // until close
	return w, nil
}

func (w *webServer) handle(rw http.ResponseWriter, req *http.Request) {
	w.mu.Lock()
	w.requests = append(w.requests, fmt.Sprintf("%s %s %s", req.Method, req.Host, req.RequestURI))
	w.mu.Unlock()
	if w.serve != nil {
		w.serve(rw, req)
	}
}

func (w *webServer) port() int { return w.listener.Addr().(*net.TCPAddr).Port }
func (w *webServer) close()    { w.server.Close() } // on loopback; the attack is over

// take returns the requests since the last call, and a text for connections without one.
func (w *webServer) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.requests
	if len(list) == 0 && w.conns > 0 {
		list = []string{"a connection"}
	}
	w.requests, w.conns = nil, 0
	return list
}

// readStatus reads the head of an answer, and returns its status; 0 if there is none.
func readStatus(c net.Conn) int {
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	return res.StatusCode
}

var errNoAnswer = errors.New("an allowed host cannot be reached: the attack shows nothing")

// works returns an error unless the allowed host answers.
func (r *netRig) works(ctx context.Context) error {
	if got := r.proxy(ctx, "GET http://"+goodHost+"/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.Contains(got, " 200 ") {
		return errNoAnswer
	}
	r.good.take()
	return nil
}
