package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/asuser"
	"github.com/glovebox-dev/glovebox/internal/guest/agent/files"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// newTestAgent returns an agent that handles files below a new home and cannot start
// processes.
func newTestAgent(t testing.TB, out io.Writer) *agent {
	a := newAgent(slog.New(slog.DiscardHandler), out, false)
	home := t.TempDir()
	a.cfg.Store(&settings{home: home, user: asuser.New(-1, -1), files: files.New(home, []string{home}, nil)})
	return a
}

func request(op uint32, name protocol.Op, args any) []byte {
	raw, _ := json.Marshal(args)
	p, _ := json.Marshal(protocol.Request{Op: name, Args: raw})
	return append(protocol.Header{Type: protocol.Open, Op: op, Length: uint32(len(p))}.Append(nil), p...)
}

// TestPanic_EndsOneOperation checks that a panic ends only its operation.
func TestPanic_EndsOneOperation(t *testing.T) {
	r, w := io.Pipe()
	a := newTestAgent(t, w)
	inR, inW := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- a.serve(inR) }()
	rd := protocol.NewReader(r)
	// Without a launcher a command is a nil pointer.
	for op, tc := range []struct {
		req  []byte
		want protocol.Code
	}{
		{request(1, protocol.OpExec, protocol.Exec{Argv: []string{"true"}}), protocol.CodeInternal},
		{request(3, protocol.OpPing, nil), ""},
		{request(5, "nonsense", nil), protocol.CodeInvalid},
		{append(protocol.Header{Type: protocol.Open, Op: 7, Length: 1}.Append(nil), '{'), protocol.CodeInvalid},
		{request(9, protocol.OpStat, []int{1}), protocol.CodeInvalid},
	} {
		inW.Write(tc.req)
		h, p, err := rd.Next()
		var resp protocol.Response
		if err != nil || h.Type != protocol.End || h.Op != uint32(2*op+1) || json.Unmarshal(p, &resp) != nil {
			t.Fatalf("got %+v, %q, %v", h, p, err)
		}
		got := protocol.Code("")
		if resp.Error != nil {
			got = resp.Error.Code
		}
		if got != tc.want {
			t.Errorf("operation %d: got %+v, want code %q", h.Op, resp.Error, tc.want)
		}
	}
	inW.Close()
	go io.Copy(io.Discard, r)
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestOperations_BeforeHello checks that an unconfigured agent rejects operations.
func TestOperations_BeforeHello(t *testing.T) {
	var out bytes.Buffer
	a := newAgent(slog.New(slog.DiscardHandler), &out, false)
	s := a.newConnection(nil, 0)
	for _, name := range []protocol.Op{protocol.OpExec, protocol.OpRun, protocol.OpRead, protocol.OpPS} {
		o := &op{conn: s, in: protocol.NewRecvQueue(protocol.Window), window: protocol.NewSendWindow(protocol.Window)}
		o.ctx, o.cancel = context.WithCancelCause(t.Context())
		if _, err := o.run(protocol.Request{Op: name}); err == nil || !strings.Contains(err.Error(), "before hello") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzAgentInput feeds the agent arbitrary bytes instead of a host's.
func FuzzAgentInput(f *testing.F) {
	f.Add(request(1, protocol.OpPing, nil))
	f.Add(request(1, protocol.OpList, protocol.List{Path: "."}))
	f.Add(append(request(1, protocol.OpWrite, protocol.Write{Path: "f"}), append(
		protocol.Header{Type: protocol.Data, Channel: protocol.Body, Op: 1, Length: 1}.Append(nil), 'x')...))
	f.Add(request(1, protocol.OpBackup, protocol.Backup{MaxBytes: 1 << 20}))
	f.Add(append(request(1, protocol.OpExtract, protocol.Extract{Path: "."}), protocol.Header{Type: protocol.EOF, Channel: protocol.Body, Op: 1}.Append(nil)...))
	f.Add(append(request(1, protocol.OpPing, nil), protocol.AppendMarker(make([]byte, 20), "0123456789abcdef")...))
	f.Fuzz(func(t *testing.T, in []byte) {
		a := newTestAgent(t, io.Discard)
		done := make(chan error, 1)
		go func() { done <- a.serve(bytes.NewReader(in)) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			buf := make([]byte, 1<<20)
			t.Fatalf("agent hangs\n%s", buf[:runtime.Stack(buf, true)])
		}
	})
}

func TestMergeEnv(t *testing.T) {
	got := mergeEnv([]string{"A=1", "B=2"}, []string{"B=3", "C=4", "broken", "=x", "D=a\x00b", "A="})
	if want := "A= B=3 C=4"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOutputRing(t *testing.T) {
	r := newRing()
	var all []byte
	for i := range 500 {
		p := bytes.Repeat([]byte{byte(i)}, 1+i*37)
		all = append(all, p...)
		r.write(p)
		if len(r.buf) > ringSize {
			t.Fatalf("the ring holds %d bytes", len(r.buf))
		}
		off := int64(max(0, len(all)-1000))
		got, next, _, ended := r.from(off)
		if !bytes.Equal(got, all[off:]) || next != int64(len(all)) || ended {
			t.Fatalf("after %d bytes: got %d, next %d", len(all), len(got), next)
		}
	}
	got, next, _, _ := r.from(0)
	if len(got) != protocol.MaxPayload || !bytes.Equal(got, all[next-int64(len(got)):next]) {
		t.Errorf("got %d bytes up to %d", len(got), next)
	}
	r.end()
	if _, _, _, ended := r.from(1 << 50); !ended {
		t.Error("not ended")
	}
}

func TestMemoryWatcher(t *testing.T) {
	pid, rss, sum := largestProcess()
	if pid <= 0 || rss <= 0 || sum < rss {
		t.Errorf("got %d, %d, %d", pid, rss, sum)
	}
	var m *memoryWatcher
	m.enter()
	m.leave()
	m.close()
	if m.killed(1) {
		t.Error("reported a kill that did not happen")
	}
}
