package netdoor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

func TestMain(m *testing.M) { os.Exit(proctest.Main(m)) }

// host allows names below example.org.
type host struct {
	asked atomic.Int32
	wait  chan struct{} // lookups wait until it is closed; nil: they do not
	ports []int
}

func (h *host) Dial(protocol.Dial) (Stream, error) { return nil, io.ErrClosedPipe }

func (h *host) Lookup(ctx context.Context, name string) (protocol.LookupResult, error) {
	h.asked.Add(1)
	if h.wait != nil {
		<-h.wait
	}
	if !protocol.ValidName(name) {
		panic(name)
	}
	if strings.HasSuffix(name, ".example.org") {
		return protocol.LookupResult{Status: protocol.LookupOK, Ports: h.ports}, nil
	}
	return protocol.LookupResult{Status: protocol.LookupRefused}, nil
}

// open opens doors on ports that are free. It retries, because the name server listens for
// TCP on the number that it got for UDP, which another process may have.
func open(t testing.TB) *Doors {
	t.Helper()
	var d *Doors
	var err error
	for range 20 {
		d, err = Open(Config{DNS: "127.0.0.1:0", HTTP: "127.0.0.1:0", SOCKS: "127.0.0.1:0"})
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func pack(t testing.TB, name string, typ dnsmessage.Type, edns bool) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET}},
	}
	if edns {
		var h dnsmessage.ResourceHeader
		h.SetEDNS0(1232, 0, false)
		m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask sends a query over UDP.
func ask(t testing.TB, d *Doors, q []byte) dnsmessage.Message {
	t.Helper()
	c, err := net.Dial("udp", d.udp.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Write(q); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	var m dnsmessage.Message
	if err := m.Unpack(b[:n]); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDNS_Answers(t *testing.T) {
	d := open(t)
	h := &host{ports: []int{18080}}
	d.Connect(h)
	m := ask(t, d, pack(t, "a.example.org.", dnsmessage.TypeA, true))
	if m.RCode != dnsmessage.RCodeNameError || len(m.Additionals) != 1 {
		t.Fatalf("without a network: got %+v", m)
	}
	opt := m.Additionals[0].Body.(*dnsmessage.OPTResource)
	if len(opt.Options) != 1 || opt.Options[0].Code != 15 || binary.BigEndian.Uint16(opt.Options[0].Data) != 15 || !strings.Contains(string(opt.Options[0].Data[2:]), "no network") {
		t.Errorf("extended error: got %+v", opt)
	}
	if h.asked.Load() != 0 {
		t.Error("the host was asked without a network")
	}
	d.Configure(true, "")
	m = ask(t, d, pack(t, "A.Example.org.", dnsmessage.TypeA, false))
	if m.RCode != 0 || len(m.Answers) != 1 || len(m.Additionals) != 0 || m.Answers[0].Header.Name.String() != "A.Example.org." {
		t.Fatalf("got %+v", m)
	}
	a := netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A)
	if !netip.MustParsePrefix("127.80.0.0/12").Contains(a) {
		t.Errorf("got address %v", a)
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeSRV, 64, 65} {
		if m := ask(t, d, pack(t, "a.example.org.", typ, false)); m.RCode != 0 || len(m.Answers) != 0 {
			t.Errorf("type %v: got %+v", typ, m)
		}
	}
	if n := h.asked.Load(); n != 1 {
		t.Errorf("the host was asked %d times for one name", n)
	}
	x := a.As4()
	m = ask(t, d, pack(t, fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", x[3], x[2], x[1], x[0]), dnsmessage.TypePTR, false))
	if len(m.Answers) != 1 || m.Answers[0].Body.(*dnsmessage.PTRResource).PTR.String() != "a.example.org." {
		t.Errorf("reverse: got %+v", m)
	}
	for name, want := range map[string]dnsmessage.RCode{
		"other.test.": dnsmessage.RCodeNameError, "single.": dnsmessage.RCodeNameError, "b!.example.org.": dnsmessage.RCodeNameError, "1.0.0.127.in-addr.arpa.": dnsmessage.RCodeNameError,
	} {
		if m := ask(t, d, pack(t, name, dnsmessage.TypeA, false)); m.RCode != want {
			t.Errorf("%s: got %v, want %v", name, m.RCode, want)
		}
	}
}

// TestDNS_AsksOnce checks that concurrent queries for a name are one question.
func TestDNS_AsksOnce(t *testing.T) {
	d := open(t)
	h := &host{ports: []int{18081}, wait: make(chan struct{})}
	d.Connect(h)
	d.Configure(true, "")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			q, _ := parseQuery(pack(t, "b.example.org.", dnsmessage.TypeAAAA, false))
			if r := d.reply(q); len(r) == 0 {
				t.Error("no answer")
			}
		})
	}
	for h.asked.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(h.wait)
	wg.Wait()
	if n := h.asked.Load(); n != 1 {
		t.Errorf("the host was asked %d times", n)
	}
}

// TestDNS_CallsAskAgainAboutFailures checks that the host decides in each call on a name that
// it refused in another, but once for all queries of a call.
func TestDNS_CallsAskAgainAboutFailures(t *testing.T) {
	d := open(t)
	h := &host{ports: []int{18082}}
	d.Connect(h)
	d.Configure(true, "")
	for call := range int32(3) {
		d.BeginCall()
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			if m := ask(t, d, pack(t, "refused.test.", typ, false)); m.RCode != dnsmessage.RCodeNameError {
				t.Fatalf("got %+v, want no such name", m)
			}
			if m := ask(t, d, pack(t, "c.example.org.", typ, false)); m.RCode != 0 {
				t.Fatalf("got %+v, want an answer", m)
			}
		}
		if n, want := h.asked.Load(), 2+call; n != want {
			t.Errorf("call %d: the host was asked %d times, want %d: once about the allowed name, and in each call about the refused one", call+1, n, want)
		}
	}
}

// TestNames_AreBounded checks that old names and their listeners go, that an address is
// not reused soon, and that a known name keeps its own.
func TestNames_AreBounded(t *testing.T) {
	var n names
	n.init()
	var wg sync.WaitGroup
	accept := func(l net.Listener, _ protocol.Dial) {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}
	seen := make(map[netip.Addr]bool)
	for i := range maxNames + 300 {
		a, err := n.assign(fmt.Sprintf("n%d.example.org", i), []int{18082}, wg.Go, accept)
		if err != nil {
			t.Fatal(err)
		}
		if seen[a] {
			t.Fatalf("address %v is given out twice", a)
		}
		seen[a] = true
		if b, _ := n.assign("n0.example.org", []int{18082}, wg.Go, accept); i > 0 && !seen[b] {
			t.Fatal("a name in use has lost its address")
		}
	}
	if len(n.byName) != maxNames || len(n.byAddr) != maxNames || n.listeners != maxNames {
		t.Errorf("%d names, %d addresses, %d listeners", len(n.byName), len(n.byAddr), n.listeners)
	}
	n.close()
	wg.Wait()
}

// TestConnect_ProgramsWaitForSettings checks that a connection made just after the host
// has changed is not refused.
func TestConnect_ProgramsWaitForSettings(t *testing.T) {
	d := open(t)
	h := &host{ports: []int{18083}}
	d.Connect(h)
	d.Configure(true, "")
	d.Connect(h)
	go d.Configure(true, "")
	if got, _ := d.current(); got != h {
		t.Error("refused before the settings have come")
	}
	d.Configure(false, "no")
	d.Connect(h)
	if got, notice := d.current(); got != nil || notice != "no" {
		t.Errorf("got %v, %q", got, notice)
	}
}

// TestRefuse_LongRequest checks that a request that never ends is refused without being
// kept.
func TestRefuse_LongRequest(t *testing.T) {
	d := open(t)
	c, err := net.Dial("tcp", d.listeners[1].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	go c.Write(bytes.Repeat([]byte("x"), 2*maxRequest))
	b, err := io.ReadAll(c)
	if !bytes.HasPrefix(b, []byte("HTTP/1.1 403 ")) {
		t.Errorf("got %q, %v", b, err)
	}
}

// FuzzDNS checks that every query gets a valid answer with its id, or none.
func FuzzDNS(f *testing.F) {
	f.Add(pack(f, "a.example.org.", dnsmessage.TypeA, true))
	f.Add(pack(f, "1.0.80.127.in-addr.arpa.", dnsmessage.TypePTR, false))
	f.Add(pack(f, strings.Repeat("a.", 126)+"b.", dnsmessage.TypeAAAA, true))
	f.Add([]byte("000000000000")) // of another kind than a query
	d := &Doors{notice: defaultNotice}
	d.quit, d.cancel = context.WithCancel(context.Background())
	d.names.init()
	d.on, d.host = true, &host{ports: []int{0}} // no port can be listened on
	f.Fuzz(func(t *testing.T, in []byte) {
		q, ok := parseQuery(in)
		if !ok {
			return
		}
		if q.valid {
			q.question.Type |= 256 // of no record: names get no listeners
		}
		out := d.reply(q)
		var m dnsmessage.Message
		if err := m.Unpack(out); err != nil {
			t.Fatalf("%x: answer %x: %v", in, out, err)
		}
		if m.ID != binary.BigEndian.Uint16(in) || !m.Response || len(m.Answers) > 1 {
			t.Fatalf("%x: got %+v", in, m)
		}
	})
}
