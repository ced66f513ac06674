package codemode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
func (recorded) Withheld(context.Context, string) []string { return nil }

func (recorded) Hold() (release func())                             { return func() {} }
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

// inUse keeps servers of owners in use until release is called.
func inUse(t *testing.T, p *Pool, owners ...string) (release func()) {
	t.Helper()
	var all []func()
	for _, owner := range owners {
		_, one, err := p.use(t.Context(), owner)
		if err != nil {
			t.Fatalf("%s: %v", owner, err)
		}
		all = append(all, one)
	}
	return func() {
		for _, one := range all {
			one()
		}
	}
}

// TestPool_boundsOwners opens servers of more owners than the pool has places for.
func TestPool_boundsOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPool(t, PoolOptions{Max: 2})
		p.Of("alice").Tools(t.Context(), "")
		release := inUse(t, p, "bob", "carol")
		synctest.Wait()
		if r.count("close alice") != 1 || r.count("close bob") != 0 {
			t.Errorf("the third owner: events %q, want alice's servers closed, which were idle", r.events)
		}
		begun := time.Now()
		if why := p.Of("dave").Unavailable(t.Context(), "s", ""); why == nil || why.Code != Unavailable {
			t.Errorf("got %+v, want a reason", why)
		}
		if waited := time.Since(begun); waited != placeWait {
			t.Errorf("waited %v for a place, want %v", waited, placeWait)
		}
		if why := p.Of("dave").Unavailable(t.Context(), "s", ""); why == nil || time.Since(begun) != placeWait {
			t.Errorf("the next use of the same request: got %+v after %v, want an error at once", why, time.Since(begun)-placeWait)
		}
		time.Sleep(refusedFor + time.Second)
		begun = time.Now()
		time.AfterFunc(placeWait/2, release)
		if tools := p.Of("dave").Tools(t.Context(), ""); tools == nil {
			t.Error("no tools after a place became free")
		}
		if waited := time.Since(begun); waited != placeWait/2 {
			t.Errorf("waited %v, want the place after %v", waited, placeWait/2)
		}
	})
}

// TestPool_runKeepsServers: the servers of a program that runs make room for those of others
// only after programs without one, and after runRest.
func TestPool_runKeepsServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPool(t, PoolOptions{Max: 2, Idle: time.Hour})
		done := p.Of("alice").Hold()
		p.Of("alice").Tools(t.Context(), "")
		time.Sleep(time.Second)
		p.Of("bob").Tools(t.Context(), "")
		p.Of("carol").Tools(t.Context(), "")
		synctest.Wait()
		if r.count("close alice") != 0 || r.count("close bob") != 1 {
			t.Errorf("events %q, want bob's servers closed, who has no program", r.events)
		}
		held := p.Of("carol").Hold()
		if why := p.Of("dave").Unavailable(t.Context(), "s", ""); why == nil {
			t.Error("a place of a program that has just called was free")
		}
		time.Sleep(runRest)
		p.Of("dave").Tools(t.Context(), "")
		synctest.Wait()
		if r.count("close alice") != 1 || r.count("close carol") != 0 {
			t.Errorf("events %q, want alice's servers closed, whose program has not called for longest", r.events)
		}
		p.Of("carol").Tools(t.Context(), "")
		time.Sleep(2 * time.Hour)
		if r.count("close carol") != 0 {
			t.Errorf("events %q, want carol's servers open as long as the program runs", r.events)
		}
		held()
		done()
		time.Sleep(2 * time.Hour)
		if r.count("close carol") != 1 || len(p.runs) != 0 {
			t.Errorf("events %q, %d runs, want carol's servers closed after the program", r.events, len(p.runs))
		}
	})
}

// TestPool_waitingCallsGetPlaces: a call that waits gets a place that Renew frees, and one whose
// servers have rested for long enough by then.
func TestPool_waitingCallsGetPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, c := range map[string]struct{ free, waits time.Duration }{"renewed": {time.Second, time.Second}, "rested": {time.Hour, placeWait}} {
			p, _ := newPool(t, PoolOptions{Max: 1})
			done := p.Of("alice").Hold()
			p.Of("alice").Tools(t.Context(), "")
			time.Sleep(runRest - 2*time.Second)
			time.AfterFunc(c.free, func() { p.Renew("alice") })
			begun := time.Now()
			if p.Of("bob").Tools(t.Context(), "") == nil || time.Since(begun) != c.waits {
				t.Errorf("%s: no place after %v, want one after %v", what, time.Since(begun), c.waits)
			}
			done()
		}
		time.Sleep(2 * time.Hour) // for the timers of Renew
	})
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

// hanging returns a pool whose servers take a time to end, by owner.
func hanging(t *testing.T, limit int, end map[string]time.Duration) (*Pool, *recorder, func() (most int)) {
	r := &recorder{block: make(chan struct{})}
	live, most := 0, 0
	p := NewPool(PoolOptions{Max: limit, Open: func(owner string) (Servers, func() error, error) {
		s, ended, err := r.open(owner)
		r.mu.Lock()
		defer r.mu.Unlock()
		live++
		most = max(most, live)
		return s, func() error {
			time.Sleep(end[owner])
			r.mu.Lock()
			live--
			r.mu.Unlock()
			return ended()
		}, err
	}})
	t.Cleanup(p.Close)
	return p, r, func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return most
	}
}

// TestPool_serversHang: servers that do not end delay their own owner, and others only if
// those of as many owners as there are places do not end.
func TestPool_serversHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const end = 5 * time.Second
		p, r, most := hanging(t, 1, map[string]time.Duration{"alice": end, "bob": end})
		for _, c := range []struct {
			owner string
			waits time.Duration
		}{
			{"alice", 0},
			{"bob", 0},
			{"alice", end}, // for her own, and bob's have no place to end before
			{"carol", end}, // bob's have not ended
			{"dave", end},  // alice's have not ended
			{"carol", 0},
			{"dave", 0},
		} {
			begun := time.Now()
			inUse(t, p, c.owner)()
			if waited := time.Since(begun); waited != c.waits {
				t.Errorf("%s waited %v, want %v; events %q", c.owner, waited, c.waits, r.events)
			}
			synctest.Wait()
		}
		inUse(t, p, "alice")()
		inUse(t, p, "bob")()
		ctx, cancel := context.WithTimeout(t.Context(), end/2)
		defer cancel()
		if _, _, err := p.use(ctx, "alice"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call that ends while it waits: got %v", err)
		}
		if n := most(); n > 2 {
			t.Errorf("servers of %d owners at once, want 2 at most", n)
		}
	})
}

// TestPool_neverEnds: an owner whose servers never end gets an error, and others get servers.
func TestPool_neverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, most := hanging(t, 2, map[string]time.Duration{"alice": time.Hour})
		inUse(t, p, "alice")()
		time.Sleep(time.Second) // those of alice are the first to make room
		for range 20 {
			begun := time.Now()
			for _, owner := range []string{"bob", "carol", "dave"} {
				inUse(t, p, owner)()
			}
			if waited := time.Since(begun); waited != 0 {
				t.Errorf("others waited %v", waited)
			}
			if why := p.Of("alice").Unavailable(t.Context(), "s", ""); why == nil || !strings.Contains(why.Message, "has not ended yet") {
				t.Errorf("alice, whose servers have not ended: got %+v", why)
			}
		}
		if n := most(); n > 4 {
			t.Errorf("servers of %d owners at once, want 4 at most", n)
		}
	})
}

// TestPool_expiredServersHang: as many servers as there are places that do not end after their idle
// time leave no place for others, although none are open.
func TestPool_expiredServersHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r, most := hanging(t, 2, map[string]time.Duration{"alice": time.Hour, "bob": time.Hour, "carol": time.Hour})
		p.o.Idle = time.Minute
		inUse(t, p, "alice")()
		inUse(t, p, "bob", "carol")() // alice's are ended for carol's
		time.Sleep(2 * time.Minute)
		if why := p.Of("dave").Unavailable(t.Context(), "s", ""); why == nil || why.Code != Unavailable || !strings.Contains(why.Message, "of 3 other users have not ended") {
			t.Errorf("got %+v, want a reason; events %q", why, r.events)
		}
		time.Sleep(time.Hour)
		inUse(t, p, "dave")()
		if n := most(); n != 3 {
			t.Errorf("servers of %d owners at once, want 3", n)
		}
		time.Sleep(time.Hour) // for the timer of dave's
	})
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
