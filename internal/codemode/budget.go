package codemode

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/plural"
)

// A Budget bounds the calls of a run, or of a box or an owner within an hour. Ten times as many
// requests are answered: searches, and calls that are refused before they are made.
type Budget struct {
	Calls int
	Bytes int           // of arguments and results
	Time  time.Duration // in which at least one call or search was in progress
}

// requestsPerCall is the number of requests that a budget allows for each call.
const requestsPerCall = 10

func (b Budget) withDefaults(d Budget) Budget {
	return Budget{cmp.Or(b.Calls, d.Calls), cmp.Or(b.Bytes, d.Bytes), cmp.Or(b.Time, d.Time)}
}

// usage is how much of a budget is used. Its methods may be called concurrently: what is
// checked is counted in the same step.
type usage struct {
	limit  Budget
	of     string        // "run", "box" or "user"
	period time.Duration // after which the use is forgotten; 0: never

	mu       sync.Mutex
	used     Budget    // guarded by mu; Time without that since busy
	requests int       // guarded by mu
	active   int       // guarded by mu; calls and searches in progress
	busy     time.Time // guarded by mu; since when active > 0
	since    time.Time // guarded by mu; begin of the period
}

func newUsage(limit Budget, of string, period time.Duration) *usage {
	return &usage{limit: limit, of: of, period: period, since: time.Now()}
}

// renew forgets the use of a period that is over. The caller must hold mu.
func (u *usage) renew() {
	if now := time.Now(); u.period > 0 && now.Sub(u.since) >= u.period {
		u.used, u.requests, u.since, u.busy = Budget{}, 0, now, now
	}
}

// request counts a request.
func (u *usage) request() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.renew()
	limit := u.limit.Calls * requestsPerCall
	if u.requests >= limit {
		return u.exhausted(plural.N(limit, "request"))
	}
	u.requests++
	return nil
}

// begin counts calls, 0 or 1, with the bytes of arguments, and returns the time that the
// request may take, and the begin of the period in which they count. Requests in progress at
// the same time share the time that is left. end must follow.
func (u *usage) begin(calls, bytes int) (left time.Duration, period time.Time, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.renew()
	spent := u.used.Time
	if u.active > 0 {
		spent += time.Since(u.busy)
	}
	switch {
	case u.used.Calls+calls > u.limit.Calls:
		return 0, period, u.exhausted(plural.N(u.limit.Calls, "call"))
	case u.used.Bytes+bytes > u.limit.Bytes:
		return 0, period, u.exhausted(plural.N(u.limit.Bytes, "byte"))
	case spent >= u.limit.Time:
		return 0, period, u.exhausted(u.limit.Time.String() + " of waiting for calls")
	}
	u.used.Calls += calls
	u.used.Bytes += bytes
	if u.active++; u.active == 1 {
		u.busy = time.Now()
	}
	return u.limit.Time - spent, u.since, nil
}

// undo takes back a begin, whose period may be over.
func (u *usage) undo(calls, bytes int, period time.Time) {
	u.end()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.since.Equal(period) {
		u.used.Calls -= calls
		u.used.Bytes -= bytes
	}
}

// end ends what begin counted.
func (u *usage) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.active--; u.active == 0 {
		u.used.Time += time.Since(u.busy)
	}
}

// add counts bytes of a result, unless they exceed the budget. The error says that the tool
// ran, so that nobody repeats the call for its result.
func (u *usage) add(bytes int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if left := u.limit.Bytes - u.used.Bytes; bytes > left {
		return &Error{Code: TooLarge, Message: fmt.Sprintf("the tool ran, but its result of %s is lost: the budget of the %s has %s left; a repeated call runs the tool again",
			plural.N(bytes, "byte"), u.of, plural.N(max(left, 0), "byte"))}
	}
	u.used.Bytes += bytes
	return nil
}

// exhausted says which limit was reached and what to do.
func (u *usage) exhausted(limit string) error {
	remedy := "filter on the server's side, fetch less, or continue in another run"
	if u.period > 0 {
		remedy = fmt.Sprintf("try again within %v", time.Until(u.since.Add(u.period)).Round(time.Minute))
	}
	return &Error{Code: Exhausted, Message: fmt.Sprintf("the %s has used up its budget of %s: %s", u.of, limit, remedy)}
}
