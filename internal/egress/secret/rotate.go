package secret

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/redact"
)

// maxFormer bounds the former values that a secret keeps. A host may return a value long after
// it was replaced, such as from a log of requests.
const maxFormer = 8

// formerValues returns what a secret of prev, which may be nil, leaves to its successor with
// the value: newest first.
func formerValues(prev *secret, value string) []string {
	if prev == nil {
		return nil
	}
	var former []string
	for _, v := range append([]string{prev.value}, prev.former...) {
		if v != value && !slices.Contains(former, v) && len(former) < maxFormer {
			former = append(former, v)
		}
	}
	return former
}

// masked returns the values to mask in what the host returns: all current ones, and as many
// former ones as a redact.Set takes, the newest of each secret first.
func (h *hostSecrets) masked() []string {
	var values []string
	for _, s := range h.secrets {
		values = append(values, s.value)
	}
	for age := range maxFormer {
		for _, s := range h.secrets {
			if age < len(s.former) && len(values) < redact.MaxValues {
				values = append(values, s.former[age])
			}
		}
	}
	return values
}

// same reports whether requests to a host get the same secrets from h and from o. Either may
// be nil.
func (h *hostSecrets) same(o *hostSecrets) bool {
	if h == nil || o == nil {
		return h == o
	}
	return slices.EqualFunc(h.secrets, o.secrets, func(a, b *secret) bool {
		return a.Name == b.Name && a.value == b.value && a.prefix() == b.prefix() && slices.Equal(a.Headers, b.Headers)
	})
}

// sessionKey is the box and host of a session.
type sessionKey struct {
	box  egress.Box
	host string
}

// ownerLoad bounds what the sessions of an owner take together: one at a time masks, so that it
// takes one processor, and so many requests are served at once, each with buffers.
type ownerLoad struct {
	turn     sync.Mutex // held while an answer is masked
	requests atomic.Int64
	sessions int // guarded by Interceptor.sessionsMu
}

// begin registers a session, which Replace ends by cancel, and returns the secrets that hold
// from then on; nil: none for the host. The caller calls done when the session has ended.
func (i *Interceptor) begin(b egress.Box, host string, cancel context.CancelFunc) (o *ownerSecrets, load *ownerLoad, done func()) {
	i.sessionsMu.Lock()
	defer i.sessionsMu.Unlock()
	o = i.secrets.Load().of(b.Owner)
	if o.hosts[host] == nil {
		return nil, nil, func() {}
	}
	key := &sessionKey{b, host}
	i.sessions[key] = cancel
	load = i.loads[b.Owner]
	if load == nil {
		load = &ownerLoad{}
		i.loads[b.Owner] = load
	}
	load.sessions++
	return o, load, func() {
		i.sessionsMu.Lock()
		defer i.sessionsMu.Unlock()
		delete(i.sessions, key)
		if load.sessions--; load.sessions == 0 {
			delete(i.loads, b.Owner)
		}
	}
}

// Replace makes i use other secrets. Connections to a host whose secrets differ end, with all
// requests and streams in them: they would go on with a value that was replaced or withdrawn,
// and would not mask the new one. Placeholders and keys of boxes stay the same.
func (i *Interceptor) Replace(s *Secrets) {
	i.sessionsMu.Lock()
	defer i.sessionsMu.Unlock()
	prev := i.secrets.Swap(s)
	for key, cancel := range i.sessions {
		if owner := key.box.Owner; !prev.of(owner).hosts[key.host].same(s.of(owner).hosts[key.host]) {
			cancel()
		}
	}
}
