//go:build linux

package attack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/glovebox-dev/glovebox/internal/egress"
)

// maxLinks bounds the aliases that aliasServer follows for one answer.
const maxLinks = 40

// aliasServer is a name server of an attacker on loopback. It follows aliases itself, as a
// recursive server does, and puts all records of a chain into one answer.
type aliasServer struct {
	conn net.PacketConn
	done chan struct{}

	mu   sync.Mutex
	zone map[string][]string // guarded by mu; of each name: addresses, "CNAME name", or "OTHER address" for a record of another name
}

func newAliasServer() (*aliasServer, error) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for queries of names: %w", err)
	}
	s := &aliasServer{conn: conn, done: make(chan struct{}), zone: make(map[string][]string)}
	go s.serve()
	return s, nil
}

// close stops the server. It may be called once.
func (s *aliasServer) close() {
	s.conn.Close() // the reader notices
	<-s.done
}

func (s *aliasServer) set(name string, records ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone[name] = records
}

// resolver returns Go's own resolver, which asks this server only.
func (s *aliasServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

func (s *aliasServer) serve() {
	defer close(s.done)
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		if b, err := s.answer(m).Pack(); err == nil {
			_, _ = s.conn.WriteTo(b, from) // the resolver asks again
		}
	}
}

func (s *aliasServer) answer(m dnsmessage.Message) *dnsmessage.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := m.Questions[0]
	res := &dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	owner := q.Name
	for range maxLinks {
		records := s.zone[strings.ToLower(strings.TrimSuffix(owner.String(), "."))]
		next := owner
		for _, r := range records {
			header := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET}
			kind, value, _ := strings.Cut(r, " ")
			switch kind {
			case "CNAME":
				next = dnsmessage.MustNewName(value + ".")
				res.Answers = append(res.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: next}})
				continue
			case "OTHER":
				header.Name, r = dnsmessage.MustNewName("other.example.com."), value
			}
			switch addr := netip.MustParseAddr(r); {
			case addr.Is4() && q.Type == dnsmessage.TypeA:
				res.Answers = append(res.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
			case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
				res.Answers = append(res.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
			}
		}
		if next == owner {
			break
		}
		owner = next
	}
	if len(res.Answers) == 0 && s.zone[strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))] == nil {
		res.RCode = dnsmessage.RCodeNameError
	}
	return res
}

// chain sets aliases from a name to the records, n links away, through names of the format.
func (s *aliasServer) chain(name string, n int, format string, records ...string) {
	for i := range n {
		next := fmt.Sprintf(format, i)
		s.set(name, "CNAME "+next)
		name = next
	}
	s.set(name, records...)
}

// aliasChains has an allowed name lead to private addresses through aliases. The name server
// is real, and so is the resolver.
func aliasChains(ctx context.Context, t *trial) error {
	s, err := newAliasServer()
	if err != nil {
		return err
	}
	defer s.close()
	r, err := t.net(egress.Options{Resolver: s.resolver()}, "*.example.net:DECOY", "0.0.0.0/0:DECOY", "::/0:DECOY")
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.works(ctx); err != nil {
		return err
	}
	s.chain("one.example.net", 1, "one-%d.example.com", "127.0.0.1")
	s.chain("long.example.net", 12, "long-%d.example.com", "127.0.0.1")
	s.chain("six.example.net", 3, "six-%d.example.com", "::1")
	s.chain("mapped.example.net", 2, "mapped-%d.example.com", "::ffff:127.0.0.1")
	s.chain("mixed.example.net", 2, "mixed-%d.example.com", "203.0.113.1", "127.0.0.1")
	s.chain("families.example.net", 2, "families-%d.example.com", "203.0.113.1", "::1")
	s.chain("beside.example.net", 1, "beside-%d.example.com", "OTHER 127.0.0.1")
	s.chain("allowed.example.net", 1, "inner-%d.example.net", "CNAME "+goodHost) // and not what is pinned for that name
	s.set(goodHost, "127.0.0.1")
	s.set("local.example.net", "CNAME localhost")
	s.set("localhost", "127.0.0.1")
	s.set("number.example.net", "CNAME 127.0.0.1")
	s.set("127.0.0.1", "127.0.0.1")
	s.set("loop.example.net", "CNAME pool.example.net")
	s.set("pool.example.net", "CNAME loop.example.net")
	for _, name := range []string{
		"one.example.net", "long.example.net", "six.example.net", "mapped.example.net", "mixed.example.net", "families.example.net", "beside.example.net",
		"allowed.example.net", "local.example.net", "number.example.net", "loop.example.net", "ONE.example.net.",
	} {
		r.tryAll(ctx, name)
	}
	// Nothing listens there, so the answer shows whether the gate would have connected.
	for i, private := range []string{"10.0.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "fd00::1", "fe80::1"} {
		name := fmt.Sprintf("private-%d.example.net", i)
		s.chain(name, 2, fmt.Sprintf("step-%d-%%d.example.com", i), private)
		got := r.proxy(ctx, fmt.Sprintf("CONNECT %s:%d HTTP/1.1\r\nHost: x\r\n\r\n", name, r.decoy.port()))
		t.check(strings.Contains(got, " 403 "), "the alias of %s is not refused: %.80q", private, got)
	}
	return nil
}
