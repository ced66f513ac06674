package netdoor

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxQuery bounds a query, and the answers, which are smaller.
	maxQuery = 4 << 10
	// maxQueries bounds the queries under way.
	maxQueries = protocol.MaxLookups
	// maxAnswers bounds the answers of the host that are kept.
	maxAnswers = 1024
	// maxTTL bounds how long an answer of the host is used again, and is the TTL of
	// addresses: they stand for their names for far longer.
	maxTTL = 60 * time.Second
	// minTTL is how long every answer of the host is used again: programs ask for A and
	// AAAA at the same time.
	minTTL = 2 * time.Second
	// maxText bounds the text of an extended error.
	maxText = 200
	// udpSize is the size of datagrams that this server accepts.
	udpSize = 1232
)

// Codes of RFC 6891 and RFC 8914.
const (
	optionExtendedError = 15
	infoBlocked         = 15
)

// notAllowed is the text of an extended error about a name that the host refused.
const notAllowed = "Glovebox: no rule of this box's network policy allows this name"

// serveUDP answers queries until the socket is closed.
func (d *Doors) serveUDP(c net.PacketConn) {
	slots := make(chan struct{}, maxQueries)
	buf := make([]byte, maxQuery)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // of an earlier answer: the program has closed its socket
		}
		q, ok := parseQuery(buf[:n])
		if !ok {
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			c.WriteTo(q.answer(dnsmessage.RCodeServerFailure, nil, ""), from)
			continue
		}
		d.wg.Go(func() {
			defer func() { <-slots }()
			c.WriteTo(d.reply(q), from)
		})
	}
}

// doorDNS marks connections to the name server. No dial has it.
const doorDNS = "dns"

// serveQueries answers the queries of one connection.
func (d *Doors) serveQueries(c *net.TCPConn) {
	var size [2]byte
	for {
		c.SetDeadline(time.Now().Add(requestTime))
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuery {
			return
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		q, ok := parseQuery(b)
		if !ok {
			return
		}
		c.SetDeadline(time.Time{})
		reply := d.reply(q)
		c.SetDeadline(time.Now().Add(requestTime))
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// query is a parsed query.
type query struct {
	id       uint16
	recurse  bool
	opcode   dnsmessage.OpCode
	question dnsmessage.Question // the zero value unless there is exactly one
	valid    bool                // there is exactly one question
	edns     bool
}

// parseQuery parses a query. It returns false for what deserves no answer.
func parseQuery(b []byte) (q query, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.Response {
		return q, false
	}
	q.id, q.recurse, q.opcode = h.ID, h.RecursionDesired, h.OpCode
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		return q, true
	}
	q.question = questions[0]
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, true
	}
	for {
		h, err := p.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil || p.SkipAdditional() != nil {
			return q, true
		}
		q.edns = q.edns || h.Type == dnsmessage.TypeOPT
	}
	q.valid = true
	return q, true
}

// reply returns the answer to a query. It asks the host if there is a network.
func (d *Doors) reply(q query) []byte {
	switch {
	case q.opcode != 0:
		return q.answer(dnsmessage.RCodeNotImplemented, nil, "")
	case !q.valid:
		return q.answer(dnsmessage.RCodeFormatError, nil, "")
	case q.question.Class != dnsmessage.ClassINET:
		return q.answer(dnsmessage.RCodeRefused, nil, "")
	}
	host := strings.ToLower(strings.TrimSuffix(q.question.Name.String(), "."))
	if addr, ok := reversed(host); ok {
		return d.reverse(q, addr)
	}
	if !protocol.ValidName(host) {
		return q.answer(dnsmessage.RCodeNameError, nil, "")
	}
	link, notice := d.current()
	if link == nil {
		return q.answer(dnsmessage.RCodeNameError, nil, notice)
	}
	ctx, cancel := context.WithTimeout(d.quit, lookupTime)
	defer cancel()
	res := d.answers.get(ctx, host, link)
	switch res.Status {
	case protocol.LookupOK:
	case protocol.LookupNXDomain:
		return q.answer(dnsmessage.RCodeNameError, nil, "")
	case protocol.LookupRefused:
		return q.answer(dnsmessage.RCodeNameError, nil, notAllowed)
	default:
		return q.answer(dnsmessage.RCodeServerFailure, nil, "")
	}
	if q.question.Type != dnsmessage.TypeA {
		return q.answer(dnsmessage.RCodeSuccess, nil, "")
	}
	addr, err := d.names.assign(host, res.Ports, d.wg.Go, d.accept)
	if err != nil {
		d.log.Warn("no address for a name", "err", err)
		return q.answer(dnsmessage.RCodeServerFailure, nil, "")
	}
	return q.answer(dnsmessage.RCodeSuccess, &dnsmessage.AResource{A: addr.As4()}, "")
}

// reversed returns the address of a name below in-addr.arpa.
func reversed(host string) (netip.Addr, bool) {
	labels, ok := strings.CutSuffix(host, ".in-addr.arpa")
	if !ok {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(labels)
	if err != nil || !addr.Is4() {
		return netip.Addr{}, false
	}
	a := addr.As4()
	return netip.AddrFrom4([4]byte{a[3], a[2], a[1], a[0]}), true
}

// reverse answers a question about an address.
func (d *Doors) reverse(q query, addr netip.Addr) []byte {
	known := d.names.lookup(addr)
	if known == "" {
		return q.answer(dnsmessage.RCodeNameError, nil, "")
	}
	if q.question.Type != dnsmessage.TypePTR {
		return q.answer(dnsmessage.RCodeSuccess, nil, "")
	}
	name, err := dnsmessage.NewName(known + ".")
	if err != nil {
		return q.answer(dnsmessage.RCodeServerFailure, nil, "")
	}
	return q.answer(dnsmessage.RCodeSuccess, &dnsmessage.PTRResource{PTR: name}, "")
}

// answer returns an answer with at most one record. The text goes to clients that
// understand extended errors.
func (q query) answer(code dnsmessage.RCode, body dnsmessage.ResourceBody, text string) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{
		ID: q.id, Response: true, OpCode: q.opcode, RecursionDesired: q.recurse, RecursionAvailable: true, RCode: code,
	}}
	if q.question.Type != 0 {
		m.Questions = []dnsmessage.Question{q.question}
	}
	if body != nil {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET, TTL: uint32(maxTTL / time.Second)},
			Body:   body,
		}}
	}
	if q.edns {
		var h dnsmessage.ResourceHeader
		opt := &dnsmessage.OPTResource{}
		if text != "" {
			data := binary.BigEndian.AppendUint16(nil, infoBlocked)
			opt.Options = []dnsmessage.Option{{Code: optionExtendedError, Data: append(data, clean(text, maxText)...)}}
		}
		if h.SetEDNS0(udpSize, dnsmessage.RCodeSuccess, false) == nil {
			m.Additionals = []dnsmessage.Resource{{Header: h, Body: opt}}
		}
	}
	b, err := m.Pack()
	if err != nil { // of a name that was parsed
		return binary.BigEndian.AppendUint16(nil, q.id)
	}
	return b
}

// answers keeps the host's answers for a short time, and asks once for each name.
type answers struct {
	mu     sync.Mutex
	byName map[string]*hostAnswer // guarded by mu
}

type hostAnswer struct {
	done  chan struct{}         // closed when res is set
	res   protocol.LookupResult // set before done is closed
	until time.Time             // set before done is closed
}

// stale reports whether the answer has been given and may not be used again.
func (a *hostAnswer) stale(now time.Time) bool {
	select {
	case <-a.done:
		return now.After(a.until)
	default:
		return false
	}
}

// get returns the host's answer for a name. If it does not come in time, the status is
// LookupFailed.
func (t *answers) get(ctx context.Context, host string, h Host) protocol.LookupResult {
	t.mu.Lock()
	now := time.Now()
	a := t.byName[host]
	if a == nil || a.stale(now) {
		if len(t.byName) >= maxAnswers || t.byName == nil {
			t.byName = make(map[string]*hostAnswer)
		}
		a = &hostAnswer{done: make(chan struct{})}
		t.byName[host] = a
		t.mu.Unlock()
		res, err := h.Lookup(ctx, host)
		if err != nil {
			res = protocol.LookupResult{Status: protocol.LookupFailed}
		}
		a.res = res
		a.until = time.Now().Add(min(max(time.Duration(res.TTL)*time.Second, minTTL), maxTTL))
		close(a.done)
		return a.res
	}
	t.mu.Unlock()
	select {
	case <-a.done:
		return a.res
	case <-ctx.Done():
		return protocol.LookupResult{Status: protocol.LookupFailed}
	}
}

// clear forgets all answers.
func (t *answers) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName = nil
}

// forgetFailed forgets the answers that have no address.
func (t *answers) forgetFailed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byName, func(_ string, a *hostAnswer) bool {
		select {
		case <-a.done:
			return a.res.Status != protocol.LookupOK
		default:
			return false
		}
	})
}
