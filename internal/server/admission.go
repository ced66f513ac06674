package server

import "sync"

// An admission is what the requests of one POST hold of the limits: places among the
// concurrent requests, and the bytes of the body. A request returns its place when it has
// its answer. The POST keeps one place until the answers are written. Requests that
// outlive their POST keep their places and the body.
type admission struct {
	release  func(places int64) // nil without places
	freeBody func()             // called once, when nothing is held any more

	mu       sync.Mutex
	posting  bool  // guarded by mu: the POST has not returned
	begun    bool  // guarded by mu: the requests have begun, and answered is called for each
	requests int64 // guarded by mu: without an answer
	places   int64 // guarded by mu
}

// admit gives the POST its places. There may be fewer than requests.
func (a *admission) admit(requests, places int64, giveBack func(places int64)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests, a.places, a.release = requests, places, giveBack
}

// begin says that the requests have begun. Without it they end with the POST.
func (a *admission) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.begun = true
}

// answered says that one of the requests has ended.
func (a *admission) answered() {
	a.mu.Lock()
	a.requests--
	a.settle()
}

// leave records that the POST returns.
func (a *admission) leave() {
	a.mu.Lock()
	a.posting = false
	if !a.begun {
		a.requests = 0
	}
	a.settle()
}

// settle returns the places that are not needed any more, and the body with the last. The
// caller holds a.mu, which settle unlocks.
func (a *admission) settle() {
	keep := a.requests
	if a.posting {
		keep = max(keep, 1)
	}
	surplus := max(a.places-keep, 0)
	a.places -= surplus
	var free func()
	if keep <= 0 {
		free, a.freeBody = a.freeBody, nil
	}
	a.mu.Unlock()
	if surplus > 0 {
		a.release(surplus)
	}
	if free != nil {
		free()
	}
}
