package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"testing"
	"testing/iotest"
	"time"
)

func frame(h Header, p []byte) []byte {
	h.Length = uint32(len(p))
	return append(h.Append(nil), p...)
}

func TestReadFrames(t *testing.T) {
	var in []byte
	var want []Header
	rnd := rand.New(rand.NewSource(1))
	for i := range 200 {
		n := rnd.Intn(300)
		if i%20 == 0 {
			n = rnd.Intn(MaxPayload + 1)
		}
		h := Header{Type: Data, Channel: Channel(i % int(numChannels)), More: i%2 == 0, Op: rnd.Uint32(), Length: uint32(n)}
		want = append(want, h)
		in = append(in, frame(h, bytes.Repeat([]byte{byte(i)}, n))...)
	}
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(in), "bytewise": iotest.OneByteReader(bytes.NewReader(in)),
		"halves": iotest.HalfReader(bytes.NewReader(in)), "with EOF": iotest.DataErrReader(bytes.NewReader(in)),
	} {
		rd := NewReader(r)
		for i, w := range want {
			h, p, err := rd.Next()
			if err != nil || h != w || len(p) != int(w.Length) || !bytes.Equal(p, bytes.Repeat([]byte{byte(i)}, len(p))) {
				t.Fatalf("%s, frame %d: got %+v, %d bytes, %v; want %+v", name, i, h, len(p), err, w)
			}
		}
		if _, _, err := rd.Next(); err != io.EOF {
			t.Errorf("%s: got %v at the end, want EOF", name, err)
		}
	}
	for _, cut := range []int{1, HeaderSize - 1, HeaderSize, HeaderSize + 1} {
		rd := NewReader(bytes.NewReader(frame(Header{Type: End, Op: 1}, []byte("abc"))[:cut]))
		if _, _, err := rd.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: got %v, want ErrUnexpectedEOF", cut, err)
		}
	}
}

func TestParseHeader(t *testing.T) {
	ok := Header{Type: Open, Op: 1}.Append(nil)
	for i, b := range map[int]byte{0: 0x48, 1: 0, 2: byte(numChannels), 3: 2, 8: 1} {
		bad := bytes.Clone(ok)
		bad[i] = b
		if _, err := ParseHeader(bad); !errors.Is(err, ErrFrame) {
			t.Errorf("byte %d = %d: got %v", i, b, err)
		}
	}
	if _, err := ParseHeader(ok[:5]); !errors.Is(err, ErrFrame) {
		t.Errorf("short: got %v", err)
	}
	for n, want := range map[uint32]error{MaxPayload: nil, MaxPayload + 1: ErrFrame, 1 << 31: ErrFrame} {
		if _, err := ParseHeader(Header{Type: Data, Length: n}.Append(nil)); !errors.Is(err, want) {
			t.Errorf("length %d: got %v", n, err)
		}
	}
}

// TestResync truncates a stream of frames anywhere and resumes it.
func TestResync(t *testing.T) {
	old := frame(Header{Type: Data, Channel: Body, Op: 0x01020304}, make([]byte, MaxPayload))
	old = append(old, frame(Header{Type: EOF, Op: 1, Channel: Body}, nil)...)
	nonce := NewNonce()
	after := frame(Header{Type: Open, Op: 1}, []byte("hello"))
	for _, cut := range []int{0, 1, 2, 3, 5, 8, 9, 10, 11, 12, 13, 1000, MaxPayload, MaxPayload + 11, MaxPayload + 12, MaxPayload + 13, len(old) - 1, len(old)} {
		in := AppendPreamble(bytes.Clone(old[:cut]), nonce)
		rd := NewReader(iotest.HalfReader(bytes.NewReader(append(in, after...))))
		var err error
		for err == nil {
			_, _, err = rd.Next()
		}
		if !errors.Is(err, ErrFrame) {
			t.Fatalf("cut at %d: got %v", cut, err)
		}
		got, err := rd.Resync(0, func(string) bool { return true })
		if err != nil || got != nonce {
			t.Fatalf("cut at %d: got nonce %q, %v", cut, got, err)
		}
		if h, p, err := rd.Next(); err != nil || h.Type != Open || string(p) != "hello" {
			t.Fatalf("cut at %d: got %+v %q, %v", cut, h, p, err)
		}
	}
	junk := append(bytes.Repeat([]byte("GLOVEBOX-RESUME-"), 100), AppendMarker(nil, "0123456789abcdef")...)
	junk = append(junk, AppendMarker(nil, nonce)...)
	if got, err := NewReader(bytes.NewReader(junk)).Resync(1<<20, func(n string) bool { return n == nonce }); err != nil || got != nonce {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := NewReader(rand.New(rand.NewSource(1))).Resync(1<<20, func(n string) bool { return true }); !errors.Is(err, ErrFrame) {
		t.Errorf("endless: got %v", err)
	}
}

func TestSendWindow(t *testing.T) {
	g := NewSendWindow(Window)
	sent := 0
	closed := make(chan struct{})
	close(closed)
	for {
		n, err := g.Take(1<<20, closed)
		if err != nil {
			break
		}
		if n > MaxPayload {
			t.Fatalf("took %d", n)
		}
		sent += Cost(n)
	}
	if sent > Window || sent < Window-minTake-HeaderSize {
		t.Errorf("sent %d of %d", sent, Window)
	}
	credit := func(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }
	if err := g.Credit(credit(sent + 1)); !errors.Is(err, ErrFlow) {
		t.Errorf("too much: got %v", err)
	}
	if err := g.Credit(credit(1 << 31)); !errors.Is(err, ErrFlow) {
		t.Errorf("far too much: got %v", err)
	}
	took := make(chan int)
	go func() {
		n, _ := g.Take(10, nil)
		took <- n
	}()
	if err := g.Credit(credit(sent)); err != nil {
		t.Error(err)
	}
	if n := <-took; n != 10 {
		t.Errorf("took %d, want 10", n)
	}
}

func TestRecvQueue(t *testing.T) {
	q := NewRecvQueue(Window)
	pushed := 0
	for {
		if err := q.Push(Header{Type: Data, Channel: Stdout}, []byte("x")); err != nil {
			if !errors.Is(err, ErrFlow) {
				t.Errorf("got %v", err)
			}
			break
		}
		pushed++
	}
	if want := Window / Cost(1); pushed != want {
		t.Errorf("%d frames of one byte fit, want %d", pushed, want)
	}
	data, items := q.Take(nil, nil)
	if len(data) != pushed || len(items) != 1 || items[0].Len != pushed {
		t.Errorf("got %d bytes, items %+v", len(data), items)
	}
	if n := q.Consume(items[0]); int(n) != pushed*Cost(1) {
		t.Errorf("credit %d, want %d", n, pushed*Cost(1))
	}
	for _, h := range []Header{
		{Type: Data, Channel: Displays, More: true}, {Type: Data, Channel: Displays}, {Type: Data, Channel: Displays},
		{Type: Data, Channel: Stderr}, {Type: Data, Channel: Stderr}, {Type: EOF, Channel: Stderr},
	} {
		p := []byte("ab")
		if h.Type == EOF {
			p = nil
		}
		if err := q.Push(h, p); err != nil {
			t.Fatal(err)
		}
	}
	_, items = q.Take(data, items)
	var got string
	for _, it := range items {
		got += fmt.Sprintf("%d:%d:%v:%v ", it.Channel, it.Len, it.More, it.EOF)
	}
	if want := "4:2:true:false 4:2:false:false 4:2:false:false 3:4:false:false 3:0:false:true "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := q.Push(Header{Type: Data, Channel: Stderr}, nil); !errors.Is(err, ErrFlow) {
		t.Errorf("after EOF: got %v", err)
	}
}

// writes records each write.
type writes struct {
	all   [][]byte
	begun chan struct{} // gets an element when a write begins, if there is room
	wait  chan struct{} // each write takes an element
}

func (w *writes) Write(p []byte) (int, error) {
	if w.wait != nil {
		select {
		case w.begun <- struct{}{}:
		default:
		}
		<-w.wait
	}
	w.all = append(w.all, bytes.Clone(p))
	return len(p), nil
}

func TestOutbox(t *testing.T) {
	w := &writes{}
	o := NewOutbox(w)
	for range 3 {
		if err := o.AddNow(0, Header{Type: Data}, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Flush(); err != nil || len(w.all) != 1 || len(w.all[0]) != 3*(HeaderSize+1) {
		t.Errorf("got %d writes, %v; want all in one", len(w.all), err)
	}
	if err := o.AddNow(1, Header{Type: Data}, nil); !errors.Is(err, ErrSuperseded) {
		t.Errorf("wrong epoch: got %v", err)
	}
	o.AddNow(0, Header{Type: Data}, []byte("old"))
	o.Restart(1, []byte("marker"))
	o.AddNow(1, Header{Type: End}, nil)
	if err := o.Flush(); err != nil || len(w.all) != 2 || !bytes.HasPrefix(w.all[1], []byte("marker")) || len(w.all[1]) != len("marker")+HeaderSize {
		t.Errorf("got %q, %v", w.all[1:], err)
	}

	// A blocked writer blocks Add, but not Put.
	w.wait = make(chan struct{})
	stop := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(stop) })
	var err error
	n := 0
	for ; err == nil; n++ {
		err = o.Add(1, stop, Header{Type: Data}, make([]byte, MaxPayload))
	}
	if !errors.Is(err, ErrStopped) || n > 2+outboxData/MaxPayload {
		t.Errorf("added %d frames, then %v", n, err)
	}
	for err = nil; err == nil; n++ {
		err = o.AddNow(1, Header{Type: Data}, make([]byte, MaxPayload))
	}
	if !errors.Is(err, ErrStuck) || n > 30 {
		t.Errorf("put %d frames, then %v", n, err)
	}
}

// FuzzReadFrame checks that no input makes the reader panic, hang or return an invalid
// frame.
func FuzzReadFrame(f *testing.F) {
	f.Add(frame(Header{Type: Data, Channel: Stdout, Op: 1}, []byte("abc")))
	f.Add(AppendPreamble(nil, "0123456789abcdef")[preambleSize-5:])
	f.Fuzz(func(t *testing.T, in []byte) {
		rd := NewReader(bytes.NewReader(in))
		read := 0
		for {
			h, p, err := rd.Next()
			if errors.Is(err, ErrFrame) {
				if _, err := rd.Resync(0, func(n string) bool { return true }); err != nil {
					return
				}
				read = 0
				continue
			}
			if err != nil {
				return
			}
			again, err := ParseHeader(h.Append(nil))
			if err != nil || again != h || len(p) != int(h.Length) {
				t.Fatalf("got %+v with %d bytes, then %+v, %v", h, len(p), again, err)
			}
			if read += HeaderSize + len(p); read > len(in) {
				t.Fatalf("read %d of %d bytes", read, len(in))
			}
		}
	})
}
