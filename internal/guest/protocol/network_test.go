package protocol

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
)

func TestValidName(t *testing.T) {
	long := strings.Repeat("a.", 126) + "b" // 253 bytes
	for _, name := range []string{
		"pypi.org", "files.pythonhosted.org", "xn--bcher-kva.example", "a_b.example.org", "_dmarc.example.org",
		"1.example", "127.0.0.1.example.org", "0x7f.1.example", "a-.b", long, strings.Repeat("a", 63) + ".org",
	} {
		if !ValidName(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{
		"", ".", "org", "localhost", "pypi.org.", ".pypi.org", "pypi..org", "PyPI.org", "pypi.org\x00", "pypi.org ", "a b.org",
		"127.0.0.1", "0.0.0.0", "1.2", "a.2130706433", "a.1", "[::1]", "::1", "pypi.org:443", "user@pypi.org", "pypi%2eorg", "b\u00fccher.example",
		"pypi.org/x", "a" + long, strings.Repeat("a", 64) + ".org",
	} {
		if ValidName(name) {
			t.Errorf("%q is accepted", name)
		}
	}
}

func TestDial_Check(t *testing.T) {
	for _, d := range []Dial{{Door: DoorHTTP}, {Door: DoorSOCKS}, {Door: DoorTCP, Name: "pypi.org", Port: 443}, {Door: DoorTCP, Name: "pypi.org", Port: 65535}} {
		if err := d.Check(); err != nil {
			t.Errorf("%+v: %v", d, err)
		}
	}
	for _, d := range []Dial{
		{}, {Door: "udp"}, {Door: "TCP", Name: "pypi.org", Port: 443}, {Door: DoorHTTP, Name: "pypi.org"}, {Door: DoorSOCKS, Port: 1},
		{Door: DoorTCP, Name: "pypi.org"}, {Door: DoorTCP, Name: "pypi.org", Port: 65536}, {Door: DoorTCP, Name: "pypi.org", Port: -1},
		{Door: DoorTCP, Name: "127.0.0.1", Port: 80}, {Door: DoorTCP, Port: 80},
	} {
		if d.Check() == nil {
			t.Errorf("%+v is accepted", d)
		}
	}
}

func TestNetwork_Check(t *testing.T) {
	many := make(map[string]string)
	for i := range MaxNetworkEnv + 1 {
		many[strings.Repeat("x", i)] = ""
	}
	for name, n := range map[string]Network{
		"notice":    {Notice: strings.Repeat("x", MaxNotice+1)},
		"CA":        {CA: strings.Repeat("x", MaxCA+1)},
		"variables": {Env: many},
		"value":     {Env: map[string]string{"A": strings.Repeat("x", MaxNetworkValue)}},
	} {
		if n.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := (Network{On: true, Notice: strings.Repeat("x", MaxNotice)}).Check(); err != nil {
		t.Error(err)
	}
}

// TestOutbox_BulkLeavesRoom checks that transfers, unlike calls, wait while little is
// pending.
func TestOutbox_BulkLeavesRoom(t *testing.T) {
	w := &writes{wait: make(chan struct{})}
	o := NewOutbox(w)
	stop := make(chan struct{})
	close(stop)
	n := 0
	for o.AddBulk(0, stop, Header{Type: Data}, make([]byte, MaxDialFrame)) == nil {
		if n++; n > 100 {
			t.Fatal("transfers never wait")
		}
	}
	if pending := n * (HeaderSize + MaxDialFrame); pending > outboxBulk+HeaderSize+MaxDialFrame {
		t.Errorf("%d bytes are pending", pending)
	}
	if err := o.Add(0, stop, Header{Type: Open}, []byte("x")); err != nil {
		t.Errorf("a call waits behind transfers: %v", err)
	}
}

// TestOutbox_BulkGivesWay checks that other frames overtake transfers, at most one frame
// of which goes into a write, and that the frames of a transfer keep their order.
func TestOutbox_BulkGivesWay(t *testing.T) {
	type frame struct {
		Type Type
		Op   uint32
	}
	w := &writes{begun: make(chan struct{}, 1), wait: make(chan struct{})}
	o := NewOutbox(w)
	add := func(f frame, size int, put func(uint64, Header, []byte) error) {
		t.Helper()
		if err := put(0, Header{Type: f.Type, Op: f.Op}, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	bulk := func(epoch uint64, h Header, p []byte) error { return o.AddBulk(epoch, nil, h, p) }
	add(frame{Data, 2}, MaxDialFrame, bulk)
	done := make(chan error, 1)
	go func() { done <- o.Flush() }()
	<-w.begun // the first write takes none of the frames that follow
	add(frame{Data, 4}, MaxDialFrame, bulk)
	add(frame{Data, 2}, MaxDialFrame-1, bulk)
	add(frame{EOF, 2}, 0, o.AddBulkNow)
	add(frame{End, 4}, 20, o.AddBulkNow)
	add(frame{Open, 1}, 10, o.AddNow)
	go func() {
		for {
			select {
			case w.wait <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := o.Flush(); err != nil {
		t.Fatal(err)
	}
	var got [][]frame
	for _, b := range w.all {
		var frames []frame
		for rd := NewReader(bytes.NewReader(b)); ; {
			h, _, err := rd.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, frame{h.Type, h.Op})
		}
		got = append(got, frames)
	}
	want := [][]frame{{{Data, 2}}, {{Open, 1}, {Data, 4}}, {{Data, 2}}, {{EOF, 2}, {End, 4}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got writes %v, want %v", got, want)
	}
}
