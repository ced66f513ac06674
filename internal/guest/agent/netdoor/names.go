package netdoor

import (
	"container/list"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// maxNames bounds the names that have an address.
	maxNames = 1024
	// maxListeners bounds the listeners of all names, each of which is an open file.
	maxListeners = 2048
	// firstAddr and addrs are the range of addresses, 127.80.0.0/12, without its first
	// address. They are given out in turn, so that an address of a forgotten name stands
	// for another name only after all others.
	firstAddr = 127<<24 | 80<<16 | 1
	addrs     = 1<<20 - 2
)

// names gives addresses to names, and listens there. It forgets the names that were
// looked up least recently.
type names struct {
	mu        sync.Mutex
	byName    map[string]*name     // guarded by mu
	byAddr    map[netip.Addr]*name // guarded by mu
	recent    *list.List           // guarded by mu; of *name, the most recent first
	listeners int                  // guarded by mu
	next      uint32               // guarded by mu; offset of the next address
	closed    bool                 // guarded by mu
}

// name is a name with an address.
type name struct {
	name      string
	addr      netip.Addr
	listeners map[int]net.Listener // by port
	element   *list.Element
}

func (t *names) init() {
	t.byName, t.byAddr, t.recent = make(map[string]*name), make(map[netip.Addr]*name), list.New()
}

// assign returns the address of a name, at which the ports accept connections. accept is
// called in a goroutine of its own for each new listener; begin starts it.
func (t *names) assign(host string, ports []int, begin func(func()), accept func(net.Listener, protocol.Dial)) (netip.Addr, error) {
	if len(ports) == 0 || len(ports) > protocol.MaxPorts {
		return netip.Addr{}, fmt.Errorf("%d ports", len(ports))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return netip.Addr{}, net.ErrClosed
	}
	n := t.byName[host]
	if n == nil {
		n = &name{name: host, addr: t.addressLocked(), listeners: make(map[int]net.Listener)}
		n.element = t.recent.PushFront(n)
		t.byName[host], t.byAddr[n.addr] = n, n
	}
	t.recent.MoveToFront(n.element)
	for port, l := range n.listeners {
		if !slices.Contains(ports, port) {
			l.Close()
			delete(n.listeners, port)
			t.listeners--
		}
	}
	for len(t.byName) > maxNames || t.listeners+len(ports) > maxListeners && t.recent.Len() > 1 {
		t.forgetLocked(t.recent.Back().Value.(*name))
	}
	var failed error
	for _, port := range ports {
		if n.listeners[port] != nil {
			continue
		}
		l, err := net.Listen("tcp4", netip.AddrPortFrom(n.addr, uint16(port)).String())
		if err != nil { // a program may listen on that port of all addresses
			failed = errors.Join(failed, err)
			continue
		}
		n.listeners[port] = l
		t.listeners++
		begin(func() { accept(l, protocol.Dial{Door: protocol.DoorTCP, Name: host, Port: port}) })
	}
	if len(n.listeners) == 0 {
		t.forgetLocked(n)
		return netip.Addr{}, failed
	}
	return n.addr, nil
}

// addressLocked returns an address that no name has.
func (t *names) addressLocked() netip.Addr {
	for {
		a := firstAddr + t.next%addrs
		t.next++
		addr := netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)})
		if t.byAddr[addr] == nil {
			return addr
		}
	}
}

// forgetLocked stops listening for a name. Its connections continue.
func (t *names) forgetLocked(n *name) {
	for _, l := range n.listeners {
		l.Close()
		t.listeners--
	}
	t.recent.Remove(n.element)
	delete(t.byName, n.name)
	delete(t.byAddr, n.addr)
}

// lookup returns the name that has an address, or "".
func (t *names) lookup(addr netip.Addr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.byAddr[addr]; n != nil {
		return n.name
	}
	return ""
}

func (t *names) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, n := range t.byName {
		for _, l := range n.listeners {
			l.Close()
		}
	}
}
