package resolve_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
	"github.com/glovebox-dev/glovebox/internal/egress/floor"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
)

func newResolver(t *testing.T, lookup resolve.Lookuper, pins ...string) *resolve.Resolver {
	t.Helper()
	var f floor.Floor
	o := resolve.Options{Lookup: lookup, Refuses: func(a netip.Addr) string { return string(f.Refuses(a)) }}
	for _, p := range pins {
		pin, err := resolve.ParsePin(p)
		if err != nil {
			t.Fatal(err)
		}
		o.Pins = append(o.Pins, pin)
	}
	r := resolve.New(o)
	t.Cleanup(r.Close)
	return r
}

func TestResolve_Answers(t *testing.T) {
	dns := egresstest.NewDNS(t)
	dns.Set("two.example.org", "8.8.8.8", "2a00:1450::1")
	dns.Set("mixed.example.org", "8.8.8.8", "127.0.0.1")
	dns.Set("mixed6.example.org", "8.8.8.8", "fe80::1")
	dns.Set("mapped.example.org", "::ffff:10.0.0.1")
	dns.Set("nat64.example.org", "64:ff9b::a9fe:a9fe")
	dns.Set("metadata.example.org", "169.254.169.254")
	dns.Set("alias.example.org", "CNAME two.example.org")
	dns.Set("inside.example.org", "CNAME router.example.net")
	dns.Set("router.example.net", "192.168.0.1")
	dns.Set("none.example.org")
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("8.8.4.%d", i))
	}
	dns.Set("many.example.org", many...)
	r := newResolver(t, dns.Resolver(), "pinned.example.org=127.0.0.1:81", "pinned.example.org:82=10.0.0.1")
	for host, want := range map[string]string{
		"two.example.org": "8.8.8.8:80 [2a00:1450::1]:80", "alias.example.org": "8.8.8.8:80 [2a00:1450::1]:80", "pinned.example.org": "127.0.0.1:81",
		"8.8.8.8": "8.8.8.8:80", "2a00:1450::1": "[2a00:1450::1]:80",
	} {
		addrs, pinned, err := r.Resolve(t.Context(), host, 80)
		var got []string
		for _, a := range addrs {
			got = append(got, a.String())
		}
		slices.Sort(got)
		if err != nil || strings.Join(got, " ") != want || pinned != strings.HasPrefix(host, "pinned") {
			t.Errorf("%s: got %q, %v, %v, want %q", host, got, pinned, err, want)
		}
	}
	for _, host := range []string{
		"mixed.example.org", "mixed6.example.org", "mapped.example.org", "nat64.example.org", "metadata.example.org", "inside.example.org",
		"127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "64:ff9b::10.0.0.1",
	} {
		addrs, _, err := r.Resolve(t.Context(), host, 80)
		var refused *resolve.Refused
		if !errors.As(err, &refused) || addrs != nil {
			t.Errorf("%s: got %v, %v, want a refusal", host, addrs, err)
		} else if strings.Contains(err.Error(), refused.Addr.String()) && host != refused.Addr.String() {
			t.Errorf("%s: the text shows the address: %v", host, err)
		}
	}
	for _, host := range []string{"none.example.org", "missing.example.org"} {
		if _, _, err := r.Resolve(t.Context(), host, 80); !errors.Is(err, resolve.ErrNotFound) {
			t.Errorf("%s: got %v, want %v", host, err, resolve.ErrNotFound)
		}
	}
	if addrs, _, err := r.Resolve(t.Context(), "many.example.org", 80); err != nil || len(addrs) != 32 {
		t.Errorf("many addresses: got %d, %v", len(addrs), err)
	}
}

// TestResolve_NoSearchList: only the name itself is asked for, as an absolute name.
func TestResolve_NoSearchList(t *testing.T) {
	dns := egresstest.NewDNS(t)
	r := newResolver(t, dns.Resolver())
	_, _, err := r.Resolve(t.Context(), "missing.example.org", 80)
	if asked := dns.Asked(); !errors.Is(err, resolve.ErrNotFound) || !slices.Equal(asked, []string{"missing.example.org"}) {
		t.Errorf("asked for %q, %v", asked, err)
	}
}

// changing answers every name with an address, which a test changes.
type changing struct {
	mu    sync.Mutex
	addr  string // guarded by mu
	asked int    // guarded by mu
}

func (c *changing) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return []netip.Addr{netip.MustParseAddr(c.addr)}, nil
}

func (c *changing) set(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addr = addr
}

// TestResolve_AnswerChanges: for thirty seconds after a lookup, connections use its
// addresses; then the same resolver looks the name up and checks it again.
func TestResolve_AnswerChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &changing{addr: "8.8.8.8"}
		r := newResolver(t, c)
		for _, after := range []time.Duration{0, 0, 29 * time.Second} {
			time.Sleep(after)
			addrs, _, err := r.Resolve(t.Context(), "example.org", 443)
			if err != nil || len(addrs) != 1 || addrs[0].String() != "8.8.8.8:443" {
				t.Fatalf("%v later: got %v, %v", after, addrs, err)
			}
			c.set("127.0.0.1")
		}
		time.Sleep(2 * time.Second)
		var refused *resolve.Refused
		if addrs, _, err := r.Resolve(t.Context(), "example.org", 443); !errors.As(err, &refused) || addrs != nil {
			t.Errorf("after 31 s: got %v, %v, want a refusal", addrs, err)
		}
		c.set("9.9.9.9")
		time.Sleep(31 * time.Second)
		if addrs, _, err := r.Resolve(t.Context(), "example.org", 443); err != nil || len(addrs) != 1 || addrs[0].String() != "9.9.9.9:443" {
			t.Errorf("after another 31 s: got %v, %v, want the new address", addrs, err)
		}
		if c.asked != 3 {
			t.Errorf("the name was looked up %d times, want 3", c.asked)
		}
	})
}

// lookups counts lookups, each of which waits for a value.
type lookups struct {
	count atomic.Int64
	go_   chan struct{}
}

func (l *lookups) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	l.count.Add(1)
	select {
	case <-l.go_:
		return []netip.Addr{netip.MustParseAddr("8.8.8.8")}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestResolve_OneLookupForMany(t *testing.T) {
	l := &lookups{go_: make(chan struct{})}
	r := newResolver(t, l)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.Resolve(cancelled, "example.org", 443); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, _, err := r.Resolve(t.Context(), "example.org", 443); err != nil {
				t.Error(err)
			}
		})
	}
	close(l.go_)
	wg.Wait()
	if got := l.count.Load(); got != 1 {
		t.Errorf("%d lookups, want 1", got)
	}
}

func TestResolve_CloseEndsLookups(t *testing.T) {
	l := &lookups{go_: make(chan struct{})}
	r := newResolver(t, l)
	failed := make(chan error, 1)
	go func() {
		_, _, err := r.Resolve(context.Background(), "example.org", 443)
		failed <- err
	}()
	for l.count.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	r.Close()
	if err := <-failed; err == nil {
		t.Error("the lookup succeeded")
	}
	if _, _, err := r.Resolve(t.Context(), "example.net", 443); !errors.Is(err, resolve.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestResolve_ManyNames: the memory for answers is bounded.
func TestResolve_ManyNames(t *testing.T) {
	l := &lookups{go_: make(chan struct{})}
	close(l.go_)
	r := newResolver(t, l)
	for i := range 1000 {
		if _, _, err := r.Resolve(t.Context(), fmt.Sprintf("n%d.example.org", i), 443); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Entries(); got > 256 {
		t.Errorf("%d answers are kept", got)
	}
}

// TestResolve_PinOfPortFirst: a pin for a port prevails over one for all ports, in any order.
func TestResolve_PinOfPortFirst(t *testing.T) {
	for _, order := range [][]string{
		{"a.test=127.0.0.1", "a.test:80=127.0.0.2:8080", "a.test:80=127.0.0.4", "a.test=127.0.0.5"},
		{"a.test:80=127.0.0.2:8080", "a.test:80=127.0.0.4", "a.test=127.0.0.1", "a.test=127.0.0.5"},
	} {
		var pins []resolve.Pin
		for _, s := range order {
			p, err := resolve.ParsePin(s)
			if err != nil {
				t.Fatal(err)
			}
			pins = append(pins, p)
		}
		r := resolve.New(resolve.Options{Pins: pins})
		defer r.Close()
		for port, want := range map[uint16]string{80: "127.0.0.2:8080", 443: "127.0.0.1:443"} {
			addrs, pinned, err := r.Resolve(t.Context(), "a.test", port)
			if err != nil || !pinned || len(addrs) != 1 || addrs[0].String() != want {
				t.Errorf("%v, port %d: got %v, %v, want %s", order, port, addrs, err, want)
			}
		}
	}
}

func TestParsePin(t *testing.T) {
	for _, s := range []string{"Registry.example.org=10.0.0.1", "a.b:443=[::1]:8443", "a.b=::1", "a.b=127.0.0.1:80"} {
		if _, err := resolve.ParsePin(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "a.b", "a.b=", "a=127.0.0.1", "a.b=c.d", "a.b:0=127.0.0.1", "a.b=127.0.0.1:0", "a.b=169.254.169.254", "a.b=[::ffff:169.254.169.254]:80", "*.a.b=127.0.0.1", "a.b=fe80::1"} {
		if p, err := resolve.ParsePin(s); err == nil {
			t.Errorf("ParsePin(%q) = %+v, want an error", s, p)
		}
	}
}
