package egresstest

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// A DNS is a name server whose answers can change between two queries.
type DNS struct {
	conn net.PacketConn

	mu      sync.Mutex
	answers map[string][]string // guarded by mu: addresses, or one name after "CNAME "
	asked   []string            // guarded by mu
}

// NewDNS starts a name server that knows no names.
func NewDNS(t testing.TB) *DNS {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &DNS{conn: conn, answers: make(map[string][]string)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.serve()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return d
}

// Resolver returns a resolver that asks only this server.
func (d *DNS) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "udp", d.conn.LocalAddr().String())
	}}
}

// Set sets the addresses of a name, or, as one "CNAME other.example.org", its alias.
func (d *DNS) Set(name string, answers ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[name] = answers
}

// Asked returns the names of all queries for IPv4 addresses since the last call.
func (d *DNS) Asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nil
	return asked
}

func (d *DNS) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		answer, err := d.answer(m).Pack()
		if err != nil {
			panic(err)
		}
		if _, err := d.conn.WriteTo(answer, from); err != nil {
			return
		}
	}
}

func (d *DNS) answer(m dnsmessage.Message) *dnsmessage.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := m.Questions[0]
	res := &dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	name := strings.TrimSuffix(q.Name.String(), ".")
	if q.Type == dnsmessage.TypeA {
		d.asked = append(d.asked, name)
	}
	if _, ok := d.answers[name]; !ok {
		res.RCode = dnsmessage.RCodeNameError
		return res
	}
	owner := q.Name
	for range 10 { // CNAMEs
		next := ""
		for _, a := range d.answers[name] {
			header := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET}
			if alias, ok := strings.CutPrefix(a, "CNAME "); ok {
				target := dnsmessage.MustNewName(alias + ".")
				res.Answers = append(res.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: target}})
				next, owner = alias, target
				continue
			}
			switch addr := netip.MustParseAddr(a); {
			case addr.Is4() && q.Type == dnsmessage.TypeA:
				res.Answers = append(res.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
			case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
				res.Answers = append(res.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
			}
		}
		if name = next; name == "" {
			break
		}
	}
	return res
}
