package codemode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/mcpkit"
)

// testMemory returns a bound for tests, with a wait of a minute.
func testMemory(size, ownerSize int64) *Memory {
	m := NewMemory()
	m.size, m.ownerSize, m.wait = size, ownerSize, time.Minute
	return m
}

// usesSoon waits until so much memory is in use.
func (m *Memory) usesSoon(t *testing.T, want int64) {
	t.Helper()
	var used int64
	if !polltest.Soon(10*time.Second, func() bool { used, _ = m.Use(); return used == want }) {
		t.Errorf("%d bytes are in use, want %d", used, want)
	}
}

// TestMemory_limits checks the figures of the memory that the server makes.
func TestMemory_limits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		if _, limit := m.Use(); limit != 512<<20 {
			t.Errorf("the memory of all owners is %d bytes, want 512 MiB", limit)
		}
		own := m.newReservation("a")
		if err := own.take(t.Context(), 192<<20); err != nil {
			t.Fatalf("192 MiB of one owner: %v", err)
		}
		begun := time.Now()
		if err := m.newReservation("a").take(t.Context(), 1); !errors.Is(err, errNoMemory) || time.Since(begun) != 5*time.Second {
			t.Errorf("one byte more: %v after %v, want none within 5 s", err, time.Since(begun))
		}
		if err := m.newReservation("b").take(t.Context(), 160<<20); err != nil {
			t.Errorf("160 MiB of another owner: %v", err)
		}
	})
}

// TestMemory_fair checks that owners who hold all that they get leave something to others,
// and that a small request does not wait for a large one.
func TestMemory_fair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := testMemory(512, 192)
		for owner, want := range []int64{192, 160, 80, 40} { // the last three: half of what is free
			r := m.newReservation(fmt.Sprint(owner))
			for full := (<-chan struct{})(nil); full == nil; {
				full, _ = r.try(8)
			}
			if r.n != want {
				t.Errorf("owner %d got %d bytes, want %d", owner, r.n, want)
			}
		}
		begun := time.Now()
		large := make(chan error, 1)
		go func() { large <- m.newReservation("5").take(t.Context(), 100) }()
		synctest.Wait()
		small := m.newReservation("5")
		for owner, r := range map[string]*reservation{"5": small, "6": m.newReservation("6")} {
			if err := r.take(t.Context(), 8); err != nil || time.Since(begun) != 0 {
				t.Errorf("a small request of owner %s: %v after %v", owner, err, time.Since(begun))
			}
		}
		if err := m.newReservation("0").take(t.Context(), 193); !errors.Is(err, errNoMemory) || time.Since(begun) != 0 {
			t.Errorf("more than an owner's part: %v after %v", err, time.Since(begun))
		}
		if err := <-large; !errors.Is(err, errNoMemory) || time.Since(begun) != time.Minute {
			t.Errorf("a large request: %v after %v", err, time.Since(begun))
		}
	})
}

// TestMemory_freed checks that a request gets memory as soon as it is free, or ends with its
// call.
func TestMemory_freed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := testMemory(100, 50)
		first, second := m.newReservation("a"), m.newReservation("a")
		if err := first.take(t.Context(), 50); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := second.take(ctx, 30); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the end of the call: %v", err)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- second.take(t.Context(), 30) }()
		synctest.Wait()
		first.resize(25) // too little
		synctest.Wait()
		first.resize(20)
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		first.move(second, 100)
		first.end()
		second.end()
		if used, _ := m.Use(); used != 0 || len(m.owned) > 0 {
			t.Errorf("%d bytes of %v are in use", used, m.owned)
		}
		if err := second.take(t.Context(), 1); !errors.Is(err, errCallEnded) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestMemory_givenBack calls tools whose results succeed and fail, and checks that no memory
// stays in use.
func TestMemory_givenBack(t *testing.T) {
	m := testMemory(64<<20, 8<<20)
	w := newWorld(t, mcpkit.Trusted, Options{Memory: m, RunBudget: Budget{Calls: 1000}}, "files")
	r := w.Begin(Identity{Owner: "o"})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for _, tool := range []string{"add", "fail", "values", "two", "large"} {
				if _, failure := w.call(t, r, "files."+tool, `{"a":1,"n":10000}`); failure != nil && failure.Code != ToolFailed {
					t.Errorf("%s: %+v", tool, failure)
				}
			}
		})
	}
	wg.Wait()
	m.usesSoon(t, 0)
	if _, failure := w.call(t, r, "files.picture", `{}`); failure != nil {
		t.Error(failure)
	}
	m.usesSoon(t, int64(len(png)))
	r.End()
	m.usesSoon(t, 0)
}

// TestMemory_answers checks that answers count until the guest has them, and that a call
// whose answer does not fit says that the tool ran.
func TestMemory_answers(t *testing.T) {
	m := testMemory(100<<20, 5<<20)
	m.wait = 10 * time.Millisecond
	w := newWorld(t, mcpkit.Trusted, Options{Memory: m}, "files")
	unread, read := context.WithCancel(t.Context())
	defer read()
	large := []byte(`{"name":"files.large","arguments":{"n":1000000}}`)
	r := w.Begin(Identity{Owner: "o"})
	var failed []byte
	for n := range 10 {
		b, err := r.Call(unread, "tool", large)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) < 1_000_000 {
			failed = b
			if n == 0 {
				t.Error("no answer fits")
			}
			break
		}
	}
	var a answer
	if err := json.Unmarshal(failed, &a); err != nil || codeOf(a.Error) != TooLarge || !strings.Contains(a.Error.Message, "the tool ran, but its result was dropped: the calls of this user use up to 5 MiB") {
		t.Errorf("got %.300s", failed)
	}
	if used, _ := m.Use(); used < 1_000_000 || used > 5<<20 {
		t.Errorf("%d bytes are in use", used)
	}
	if value, failure := w.call(t, w.Begin(Identity{Owner: "p"}), "files.large", `{"n":1000000}`); failure != nil || len(value) < 1_000_000 {
		t.Errorf("another owner: %+v", failure)
	}
	read()
	m.usesSoon(t, 0)
	// Of an answer that nothing was taken for before, too.
	w = offering(t, Options{Memory: testMemory(100, 50), Servers: oneTool(func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 50)}}}, nil
	})})
	for method, args := range map[string]string{"tool": `{"name":"s.t"}`, "catalog": `{}`} {
		if value, failure := w.ask(t, w.Begin(Identity{Owner: "o"}), method, args); codeOf(failure) != TooLarge || !strings.Contains(failure.Message, "the answer was dropped; if it is of a tool, the tool ran: ") {
			t.Errorf("an answer of over 50 bytes of the method %s: got %s, %+v", method, value, failure)
		}
	}
}

// TestMemory_answerDoesNotWait checks that an answer which would fit later is dropped at once: its tool ran.
func TestMemory_answerDoesNotWait(t *testing.T) {
	m := testMemory(1000, 500)
	w := offering(t, Options{Memory: m, Servers: oneTool(func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 300)}}}, nil
	})})
	others := m.newReservation("o")
	if err := others.take(t.Context(), 300); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if value, failure := w.ask(t, w.Begin(Identity{Owner: "o"}), "tool", `{"name":"s.t"}`); codeOf(failure) != TooLarge {
		t.Errorf("an answer of over 300 bytes beside 300 of 500: got %s, %+v", value, failure)
	}
	if took := time.Since(begun); took >= m.wait {
		t.Errorf("the answer took %v", took)
	}
	others.end()
	if value, failure := w.ask(t, w.Begin(Identity{Owner: "o"}), "tool", `{"name":"s.t"}`); failure != nil {
		t.Errorf("without those: got %s, %+v", value, failure)
	}
}

// TestMemory_arguments checks that the arguments of calls that wait for approval count.
func TestMemory_arguments(t *testing.T) {
	m := testMemory(100<<20, 5<<20)
	m.wait = 10 * time.Millisecond
	asked := make(chan struct{}, 100)
	w := newWorld(t, mcpkit.Trusted, Options{Memory: m, Approve: func(ctx context.Context, _ Request) (bool, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return false, context.Cause(ctx)
	}}, "files")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	args := []byte(`{"name":"files.write","arguments":{"x":"` + strings.Repeat("x", 1<<20-100) + `"}}`)
	ended := make(chan []byte)
	wait := func() {
		b, err := w.Begin(Identity{Owner: "o"}).Call(ctx, "tool", args)
		if err != nil {
			t.Error(err)
		}
		ended <- b
	}
	go wait()
	<-asked
	go wait()
	select {
	case b := <-ended:
		var a answer
		if err := json.Unmarshal(b, &a); err != nil || codeOf(a.Error) != Exhausted || !strings.HasPrefix(a.Error.Message, "nothing was called: ") {
			t.Errorf("got %+v, %v", a.Error, err)
		}
	case <-asked:
		t.Error("the second call waits for approval, too")
		cancel()
		<-ended
	}
	cancel()
	<-ended
	m.usesSoon(t, 0)
}

// TestUsage_undo checks that a call that is taken back after the end of its period does not
// count in the next one.
func TestUsage_undo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsage(Budget{Calls: 1, Bytes: 100, Time: time.Hour}, "box", time.Minute)
		_, period, err := u.begin(1, 10)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if err := u.request(); err != nil {
			t.Fatal(err)
		}
		u.undo(1, 10, period)
		if _, period, err = u.begin(1, 10); err != nil {
			t.Fatal(err)
		}
		if _, _, err = u.begin(1, 10); err == nil {
			t.Error("the box got a call for free")
		}
		u.undo(1, 10, period)
		if _, _, err = u.begin(1, 10); err != nil {
			t.Errorf("after undo: %v", err)
		}
	})
}

// TestBudget_owner checks that an owner's boxes share a budget.
func TestBudget_owner(t *testing.T) {
	w := offering(t, Options{RunBudget: Budget{Calls: 5}, BoxBudget: Budget{Calls: 5}, OwnerBudget: Budget{Calls: 8}}, `{}`)
	calls := func(owner, box string) (n int, last *Error) {
		r := w.Begin(Identity{Owner: owner, Box: box})
		for range 10 {
			_, failure := w.call(t, r, "s.t", `{}`)
			if failure != nil {
				return n, failure
			}
			n++
		}
		return n, nil
	}
	for _, tc := range []struct {
		owner, box string
		want       int
	}{{"a", "1", 5}, {"a", "2", 3}, {"a", "3", 0}, {"b", "4", 5}} {
		n, failure := calls(tc.owner, tc.box)
		if n != tc.want || codeOf(failure) != Exhausted {
			t.Errorf("box %s of %s: %d calls, then %+v, want %d", tc.box, tc.owner, n, failure, tc.want)
		}
		if tc.box == "3" && !strings.Contains(failure.Message, "the user has used up its budget of 8 calls: try again within") {
			t.Errorf("got %q", failure.Message)
		}
	}
}

// TestCall_stderr checks that what a server's program writes to its standard error does
// not reach programs and models: it may have secrets of the host.
func TestCall_stderr(t *testing.T) {
	w := newWorld(t, mcpkit.Trusted, Options{}, "files", "ends")
	r := w.Begin(Identity{})
	_, died := w.call(t, r, "files.die", `{}`)
	_, ended := w.call(t, r, "ends.x", `{}`)
	for want, failure := range map[string]*Error{"exit status 3": died, "exit status 4": ended} {
		if failure == nil || !strings.Contains(failure.Message, want) || strings.Contains(failure.Message, "hunter2") {
			t.Errorf("got %+v, want %s", failure, want)
		}
	}
	if notes := strings.Join(w.Missing(t.Context(), ""), "\n"); !strings.Contains(notes, "exit status 4") || strings.Contains(notes, "hunter2") {
		t.Errorf("got notes %q", notes)
	}
}
