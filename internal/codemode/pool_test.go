package codemode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// recorder opens sets of one server and records what happens to them.
type recorder struct {
	mu     sync.Mutex
	events []string // "open alice", "close alice"
	block  chan struct{}
}

func (r *recorder) add(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) count(event string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e == event {
			n++
		}
	}
	return n
}

func (r *recorder) open(owner string) (Servers, func() error, error) {
	if owner == "broken" {
		r.add("fail " + owner)
		return nil, nil, fmt.Errorf("no home directory")
	}
	r.add("open " + owner)
	return recorded{r}, func() error { r.add("close " + owner); return nil }, nil
}

var recordedTool = Tool{Server: "s", Tool: &mcp.Tool{Name: "t"}}

// recorded has one tool, whose call waits until recorder.block is closed.
type recorded struct{ r *recorder }

func (recorded) Names() []string { return []string{"s"} }
func (recorded) Tools(context.Context, string) []Tool {
	return []Tool{recordedTool}
}
func (recorded) Unavailable(context.Context, string, string) *Error { return nil }
func (r recorded) Call(ctx context.Context, _ Tool, _ json.RawMessage) (*mcp.CallToolResult, error) {
	select {
	case <-r.r.block:
	case <-ctx.Done():
	}
	return &mcp.CallToolResult{}, ctx.Err()
}

func newPool(t *testing.T, o PoolOptions) (*Pool, *recorder) {
	r := &recorder{block: make(chan struct{})}
	o.Open, o.Names = r.open, func(string) []string { return []string{"s"} }
	p := NewPool(o)
	t.Cleanup(p.Close)
	return p, r
}

func TestPool_opensOnUseAndClosesWhenIdle(t *testing.T) {
	p, r := newPool(t, PoolOptions{Idle: 20 * time.Millisecond})
	alice := p.Of("alice")
	if names := alice.Names(); !slices.Equal(names, []string{"s"}) || len(r.events) != 0 {
		t.Fatalf("names %q, events %q", names, r.events)
	}
	if n := len(alice.Tools(t.Context(), "")); n != 1 || r.count("open alice") != 1 {
		t.Fatalf("%d tools, events %q", n, r.events)
	}
	polltest.Until(t, 5*time.Second, "idle servers are closed", func() bool { return r.count("close alice") == 1 })
	if n := len(alice.Tools(t.Context(), "")); n != 1 || r.count("open alice") != 2 {
		t.Errorf("%d tools, events %q", n, r.events)
	}
}

// TestPool_boundsOwners opens servers of more owners than the pool has places for.
func TestPool_boundsOwners(t *testing.T) {
	p, r := newPool(t, PoolOptions{Max: 2})
	p.Of("alice").Tools(t.Context(), "")
	done := make(chan error)
	go func() {
		_, err := p.Of("bob").Call(t.Context(), recordedTool, nil)
		done <- err
	}()
	polltest.Until(t, 5*time.Second, "bob's servers are open", func() bool { return r.count("open bob") == 1 })
	p.Of("carol").Tools(t.Context(), "")
	if r.count("close alice") != 1 || r.count("close bob") != 0 {
		t.Errorf("the third owner: events %q, want alice's servers closed, which were idle", r.events)
	}
	go func() {
		_, err := p.Of("carol").Call(t.Context(), recordedTool, nil)
		done <- err
	}()
	polltest.Until(t, 5*time.Second, "carol's servers are in use", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.open["carol"].uses == 1
	})
	if tools := p.Of("dave").Tools(t.Context(), ""); tools != nil {
		t.Errorf("got %d tools beyond the limit", len(tools))
	}
	if why := p.Of("dave").Unavailable(t.Context(), "s", ""); why == nil || why.Code != Unavailable {
		t.Errorf("got %+v, want a reason", why)
	}
	close(r.block)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if p.Of("dave").Tools(t.Context(), "") == nil {
		t.Error("no tools after a place became free")
	}
}

func TestPool_renew(t *testing.T) {
	p, r := newPool(t, PoolOptions{})
	done := make(chan error)
	go func() {
		_, err := p.Of("alice").Call(t.Context(), recordedTool, nil)
		done <- err
	}()
	polltest.Until(t, 5*time.Second, "the servers are open", func() bool { return r.count("open alice") == 1 })
	p.Renew("alice")
	p.Renew("nobody")
	p.Of("alice").Tools(t.Context(), "")
	if r.count("open alice") != 2 || r.count("close alice") != 0 {
		t.Errorf("during a call: events %q", r.events)
	}
	close(r.block)
	if err := <-done; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	polltest.Until(t, 5*time.Second, "the earlier servers are closed", func() bool { return r.count("close alice") == 1 })
	p.Renew("alice")
	polltest.Until(t, 5*time.Second, "idle servers are closed", func() bool { return r.count("close alice") == 2 })
}

// TestPool_renewIsSlow checks that neither the caller of Renew nor the last call of the
// earlier servers waits for their end, and that Close does.
func TestPool_renewIsSlow(t *testing.T) {
	r := &recorder{block: make(chan struct{})}
	closing := make(chan struct{})
	p := NewPool(PoolOptions{Open: func(owner string) (Servers, func() error, error) {
		s, end, err := r.open(owner)
		return s, func() error { <-closing; return end() }, err
	}})
	t.Cleanup(p.Close)
	p.Of("alice").Tools(t.Context(), "")
	_, release, err := p.use(t.Context(), "bob")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Renew("alice")
		p.Renew("bob")
		release()
	}()
	select {
	case <-done:
		close(closing)
	case <-time.After(5 * time.Second):
		close(closing)
		t.Fatal("Renew or the last call waits for the end of servers")
	}
	p.Close()
	if r.count("close alice") != 1 || r.count("close bob") != 1 {
		t.Errorf("Close does not wait: events %q", r.events)
	}
}

// TestPool_close closes servers whose calls are in progress, and those that Renew replaced,
// once each.
func TestPool_close(t *testing.T) {
	p, r := newPool(t, PoolOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for i, owner := range []string{"alice", "bob"} {
		go func() {
			_, err := p.Of(owner).Call(ctx, recordedTool, nil)
			done <- err
		}()
		polltest.Until(t, 5*time.Second, "the servers are in use", func() bool { return r.count("open "+owner) == 1 })
		if i == 0 {
			p.Renew(owner)
		}
	}
	p.Close()
	cancel()
	<-done
	<-done
	if r.count("close alice") != 1 || r.count("close bob") != 1 {
		t.Errorf("events %q", r.events)
	}
	if why := p.Of("alice").Unavailable(t.Context(), "s", ""); why == nil {
		t.Error("a closed pool opens servers")
	}
}

func TestPool_openFails(t *testing.T) {
	p, r := newPool(t, PoolOptions{})
	for range 2 {
		if why := p.Of("broken").Unavailable(t.Context(), "s", ""); why == nil || why.Code != Unavailable {
			t.Errorf("got %+v", why)
		}
	}
	if r.count("fail broken") != 2 {
		t.Errorf("events %q, want one for each attempt", r.events)
	}
}

// TestPool_evictionIsSlow checks that a call of an owner waits no longer than its context
// for the servers of another owner to end.
func TestPool_evictionIsSlow(t *testing.T) {
	r := &recorder{block: make(chan struct{})}
	closing := make(chan struct{})
	p := NewPool(PoolOptions{Max: 1, Open: func(owner string) (Servers, func() error, error) {
		s, end, err := r.open(owner)
		return s, func() error { <-closing; return end() }, err
	}})
	t.Cleanup(p.Close)
	if _, release, err := p.use(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	} else {
		release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, _, err := p.use(ctx, "bob")
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) || r.count("open bob") != 0 {
			t.Errorf("got %v, events %q", err, r.events)
		}
		close(closing)
	case <-time.After(5 * time.Second):
		close(closing)
		t.Fatal("bob waits for the end of alice's servers")
	}
	polltest.Until(t, 5*time.Second, "bob's servers are open", func() bool { return r.count("open bob") == 1 })
	if r.count("close alice") != 1 {
		t.Errorf("events %q", r.events)
	}
}

// TestPool_renewWhileOpening renews servers that then fail to open, and checks that the pool
// forgets them.
func TestPool_renewWhileOpening(t *testing.T) {
	opening, fail := make(chan struct{}), make(chan struct{})
	p := NewPool(PoolOptions{Open: func(string) (Servers, func() error, error) {
		close(opening)
		<-fail
		return nil, nil, errors.New("no home directory")
	}})
	t.Cleanup(p.Close)
	done := make(chan error)
	go func() {
		_, _, err := p.use(t.Context(), "alice")
		done <- err
	}()
	<-opening
	p.Renew("alice")
	close(fail)
	if err := <-done; err == nil {
		t.Error("opened")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.stale) != 0 || len(p.open) != 0 {
		t.Errorf("%d stale, %d open", len(p.stale), len(p.open))
	}
}
