package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// countedFleet counts the lookups of servers, which ask the cluster.
type countedFleet struct {
	fleet.Fleet
	hang chan struct{} // lookups of servers that are not there wait for its end; nil: they do not

	mu    sync.Mutex
	asked map[string]int // guarded by mu: by server
}

func (f *countedFleet) Server(ctx context.Context, name string) (fleet.Server, error) {
	f.mu.Lock()
	f.asked[name]++
	f.mu.Unlock()
	s, err := f.Fleet.Server(ctx, name)
	if s.Gone && f.hang != nil {
		<-f.hang
	}
	return s, err
}

// strange returns how many lookups there were of servers other than those.
func (f *countedFleet) strange(but ...*neighbor) (sum int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.asked {
		sum += n
	}
	for _, one := range but {
		sum -= f.asked[one.self.Self()]
	}
	return sum
}

// counted returns two servers. The second counts what it asks the cluster, and takes the
// addresses of its clients from their requests.
func counted(t *testing.T, hang chan struct{}, change ...func(*Options)) (all []*neighbor, f *countedFleet) {
	t.Helper()
	all = neighbors(t, 2, change...)
	one := all[1]
	f = &countedFleet{Fleet: one.self, hang: hang, asked: make(map[string]int)}
	one.opts.Peers = func() *Peers { return &Peers{Fleet: f, Boxes: one.boxes} }
	one.opts.BehindProxy = true
	return all, f
}

func strangeSession(n int, from string) header {
	return header{"Accept": mcpAccept, "Mcp-Protocol-Version": "2025-11-25", "Mcp-Session-Id": fleet.ID(fmt.Sprintf("%016x", n), "X"), "X-Forwarded-For": from}
}

// mostLookups is how many lookups an account may cause since a time.
func mostLookups(begun time.Time) int {
	return lookupBurst + int(lookupRate*time.Since(begun).Seconds()) + 1
}

// TestForward_InventedServersAreLookedUpWithinARate: ids of sessions and of tasks name servers,
// and a client can make them up.
func TestForward_InventedServersAreLookedUpWithinARate(t *testing.T) {
	all, f := counted(t, nil)
	theirs := with(session(t, all[0].url), "X-Forwarded-For", "192.0.2.2")
	own := with(theirs, "X-Forwarded-For", "192.0.2.1")
	begun := time.Now()
	refused := 0
	for i := range 4 * lookupBurst {
		method, h, body := "POST", strangeSession(i, "192.0.2.1"), toolCall(1, "get_sessions", "{}")
		switch i % 4 {
		case 1:
			method, body = "DELETE", ""
		case 2:
			method, body = "GET", ""
			h["Accept"] = eventStream
		case 3:
			delete(h, "Mcp-Session-Id")
			h["Mcp-Protocol-Version"], h["Mcp-Method"] = "2026-07-28", "tasks/get"
			h["Mcp-Name"] = fleet.ID(fmt.Sprintf("%016x", i), "X")
			body = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":%q,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, h["Mcp-Name"])
		}
		res, text := do(t, method, all[1].url, h, body)
		if res.StatusCode == http.StatusTooManyRequests {
			refused++
			if res.Header.Get("Retry-After") == "" || !strings.Contains(text, "try again in a moment") {
				t.Fatalf("request %d is refused with %q %s", i, res.Header, text)
			}
		}
	}
	if got, most := f.strange(all...), mostLookups(begun); got > most || got < lookupBurst || refused == 0 {
		t.Errorf("the cluster was asked %d times, want %d to %d; %d requests were refused", got, lookupBurst, most, refused)
	}
	// Another client finds the server that lives, and from then on the same one does, too.
	for _, c := range []struct {
		name string
		h    header
	}{{"other client", theirs}, {"same client", own}} {
		if res, body := do(t, "POST", all[1].url, c.h, toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusOK {
			t.Errorf("%s: a session of a living server gets %s %s", c.name, res.Status, body)
		}
	}
	if res, body := do(t, "POST", all[1].url, strangeSession(1<<20, "192.0.2.2"), toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusNotFound {
		t.Errorf("another client's session that is over gets %s %s", res.Status, body)
	}
}

// TestForward_InventedServersOfAnOwner: with tokens, the lookups that an owner causes count together,
// whatever its addresses and tokens are, and another owner at the same address has its own. A request
// beyond them has a line in the audit log.
func TestForward_InventedServersOfAnOwner(t *testing.T) {
	p := newPeople(t)
	all, f := counted(t, nil, p.options(nil))
	ask := func(who string, n int, from string) int {
		t.Helper()
		h := strangeSession(n, from)
		h["Authorization"] = "Bearer " + p.tokens[who]
		res, _ := do(t, "POST", all[1].url, h, toolCall(1, "get_sessions", "{}"))
		return res.StatusCode
	}
	begun := time.Now()
	statuses := make(map[int]int)
	for i := range 2 * lookupBurst {
		who := "alice"
		if i%2 == 1 {
			who = "second" // another token of alice
		}
		statuses[ask(who, i, fmt.Sprint("192.0.2.", i))]++
	}
	if got, most := f.strange(all...), mostLookups(begun); got > most || got < lookupBurst || statuses[http.StatusTooManyRequests] == 0 {
		t.Errorf("the cluster was asked %d times for one owner, want %d to %d; the answers are %v", got, lookupBurst, most, statuses)
	}
	if lines := p.refusals(t); !slices.Contains(lines, "token alice rate POST") {
		t.Errorf("the lines %q, want some of the rate of alice", lines)
	}
	// Tokens that may only read use up their own.
	if got := ask("reader", 1<<19, "192.0.2.1"); got != http.StatusNotFound {
		t.Errorf("the lookup of a read token of the same owner: %d, want 404", got)
	}
	for i := range lookupBurst / 2 { // more than alice's lookups that have come back meanwhile
		if got := ask("bob", 1<<20+i, "192.0.2.1"); got != http.StatusNotFound {
			t.Fatalf("lookup %d of another owner at the same address: %d, want 404", i, got)
		}
	}
}

// TestForward_GoneServerIsLookedUpOnce: clients repeat requests of sessions that have ended with
// their server.
func TestForward_GoneServerIsLookedUpOnce(t *testing.T) {
	all, f := counted(t, nil)
	h := with(session(t, all[0].url), "X-Forwarded-For", "192.0.2.1")
	if res, body := do(t, "POST", all[1].url, h, toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	all[0].self.Kill()
	before, begun := f.strange(), time.Now()
	for range 2 * lookupBurst {
		for _, h := range []header{h, strangeSession(1, "192.0.2.1")} {
			if res, body := do(t, "POST", all[1].url, h, toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusNotFound {
				t.Fatalf("a session of a server that is gone gets %s %s", res.Status, body)
			}
		}
	}
	if got, most := f.strange()-before, 2*(1+int(time.Since(begun)/goneFor)); got > most {
		t.Errorf("the cluster was asked %d times for two servers, want %d at most", got, most)
	}
}

// TestForward_HangingLookupsDelayNobodyElse: requests that name the same server share a lookup,
// and those that name another one do not wait for it.
func TestForward_HangingLookupsDelayNobodyElse(t *testing.T) {
	hang := make(chan struct{})
	all, f := counted(t, hang)
	theirs := with(session(t, all[0].url), "X-Forwarded-For", "192.0.2.2")
	begun := time.Now()
	var wg sync.WaitGroup
	defer wg.Wait()
	release := sync.OnceFunc(func() { close(hang) })
	defer release()
	const requests = 8
	for i := range 2 * requests {
		wg.Go(func() {
			n := 0 // the same one
			if i < requests {
				n = 1 + i
			}
			res, body := do(t, "POST", all[1].url, strangeSession(n, "192.0.2.1"), toolCall(1, "get_sessions", "{}"))
			if res.StatusCode != http.StatusNotFound {
				t.Errorf("%s %s", res.Status, body)
			}
		})
	}
	eventually(t, "the lookups hang", func() bool { return f.strange() == 1+requests })
	if res, body := do(t, "POST", all[1].url, theirs, toolCall(1, "get_sessions", "{}")); res.StatusCode != http.StatusOK {
		t.Errorf("another client's session gets %s %s", res.Status, body)
	}
	release()
	wg.Wait()
	if got, most := f.strange(all[0]), 1+requests+int(time.Since(begun)/goneFor); got > most {
		t.Errorf("the cluster was asked %d times, want %d at most", got, most)
	}
}
