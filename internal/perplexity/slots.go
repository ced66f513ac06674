package perplexity

import (
	"fmt"
	"sync"
)

const (
	// maxCalls bounds the calls to the API at once, and with maxEvent their memory. Each
	// may take minutes and is billed.
	maxCalls = 32
	// maxOwnerCalls bounds those of one owner, where owners are known.
	maxOwnerCalls = maxCalls / 2
)

// slots counts the calls to the API. The zero value has none.
type slots struct {
	mu     sync.Mutex
	all    int            // guarded by mu
	owners map[string]int // guarded by mu
}

// take reserves a slot for a call of an owner, "" for the local user, until release is
// called. It never waits: at a limit, it returns an error.
func (s *slots) take(owner string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case owner != "" && s.owners[owner] >= maxOwnerCalls:
		return nil, &Error{Kind: KindBusy, Text: fmt.Sprintf("%d searches and answers of this user are under way already", maxOwnerCalls), Hint: "Wait for one of them to end."}
	case s.all >= maxCalls:
		return nil, &Error{Kind: KindBusy, Text: fmt.Sprintf("%d searches and answers are under way already", maxCalls), Hint: "Wait for one of them to end."}
	}
	if s.owners == nil {
		s.owners = make(map[string]int)
	}
	s.all++
	s.owners[owner]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.owners[owner]--; s.owners[owner] == 0 {
			delete(s.owners, owner)
		}
	}, nil
}
