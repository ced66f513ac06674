// Package secret lets programs in boxes use secrets that they cannot read.
//
// A program gets a placeholder. An [Interceptor] terminates the TLS of connections to the
// hosts that a secret is for, with a certificate authority of that box alone, and replaces
// placeholders in the listed headers of requests. In all that comes back, it masks the
// value (package redact). Connections to other hosts never come here.
//
// A host that a secret is for is trusted with it: one that returns the value in a form of
// its own, such as reversed, discloses it.
//
// Where to look: proxy.go intercepts the TLS of a connection, placeholder.go makes
// placeholders and swaps them in a request, and response.go masks what comes back: whole.go
// bodies that are read first, lines.go those that are streamed, frames.go those of WebSockets.
// definition.go checks the settings, load.go and key.go read the values, and rotate.go replaces
// them.
package secret

import (
	"container/list"
	"context"
	"crypto/x509"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/authority"
	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/loglimit"
)

// maxAuthorities bounds the authorities that an Interceptor keeps; it derives the others
// again.
const maxAuthorities = 1024

// Kind is what happened to a secret. It is one of a closed set, for metrics.
type Kind string

const (
	Swapped   Kind = "swapped"   // a request got the secret
	Misplaced Kind = "misplaced" // a request has the placeholder where it is not replaced
	Masked    Kind = "masked"    // a response had the value
	// Unencrypted: a request of plain HTTP has the placeholder, which is replaced inside of
	// TLS only.
	Unencrypted Kind = "unencrypted"
)

// Event is something that happened to secrets in one request or response.
type Event struct {
	Box     egress.Box
	Host    string
	Kind    Kind
	Secrets []string // names; of Masked: all that the response could have had
	Where   string   // of Misplaced: "URL" or "header NAME"
	Count   int64    // of Masked: occurrences
	// Omitted is the number of such events that were not reported since the last one: an
	// owner gets five of each kind and secret, and then one every ten seconds.
	Omitted int64
}

// Options configure an Interceptor.
type Options struct {
	// Key is the master key, from LoadKey. Required.
	Key []byte
	// Report receives events. It is called concurrently and must not block. nil: none.
	Report func(Event)
	// Roots are the authorities that hosts are verified with; nil: those of this machine.
	Roots *x509.CertPool
	// Log receives faults of the program itself. nil: none.
	Log *slog.Logger
}

// Interceptor implements egress.Interceptor. Its methods may be called concurrently.
type Interceptor struct {
	opts    Options
	bounds  webserve.Bounds          // of requests
	lines   *loglimit.Table[lineKey] // of reported events
	secrets atomic.Pointer[Secrets]

	mu          sync.Mutex
	authorities map[egress.Box]*list.Element // of *boxAuthority, guarded by mu
	recent      list.List                    // guarded by mu; least recently used last

	sessionsMu sync.Mutex                         // held while secrets is replaced
	sessions   map[*sessionKey]context.CancelFunc // guarded by sessionsMu: the open ones
	loads      map[string]*ownerLoad              // guarded by sessionsMu: by owner
}

type boxAuthority struct {
	box       egress.Box
	authority *authority.Authority
}

// New returns an Interceptor for the secrets.
func New(o Options, s *Secrets) *Interceptor {
	if o.Report == nil {
		o.Report = func(Event) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	i := &Interceptor{opts: o, bounds: webserve.Default, lines: newLines(lineBurst),
		authorities: make(map[egress.Box]*list.Element), sessions: make(map[*sessionKey]context.CancelFunc), loads: make(map[string]*ownerLoad)}
	i.secrets.Store(s)
	return i
}

// Secrets returns what i uses.
func (i *Interceptor) Secrets() *Secrets { return i.secrets.Load() }

// Wants implements egress.Interceptor.
func (i *Interceptor) Wants(b egress.Box, host string) bool { return i.host(b, host) != nil }

// host returns the secrets of the box's owner for host; nil: none.
func (i *Interceptor) host(b egress.Box, host string) *hostSecrets {
	return i.secrets.Load().of(b.Owner).hosts[host]
}

// Settings implements egress.Interceptor: the placeholders of the box, by the variables
// of their secrets, and the certificate of its authority.
func (i *Interceptor) Settings(b egress.Box) (env map[string]string, caPEM string) {
	o := i.secrets.Load().of(b.Owner)
	if len(o.all) == 0 {
		return nil, ""
	}
	a, err := i.authority(b, o.names)
	if err != nil {
		i.opts.Log.Error("the secrets of a box do not work", logkey.Box, b.ID, logkey.Error, err)
		return nil, ""
	}
	env = make(map[string]string)
	for _, s := range o.all {
		if s.As != "" {
			env[s.As] = s.placeholder(i.opts.Key, b.Owner, b.ID)
		}
	}
	return env, a.PEM()
}

// authority returns the authority of a box for the names.
func (i *Interceptor) authority(b egress.Box, names []string) (*authority.Authority, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e, ok := i.authorities[b]; ok {
		if a := e.Value.(*boxAuthority).authority; a.Fresh() && slices.Equal(a.Names(), names) {
			i.recent.MoveToFront(e)
			return a, nil
		}
		delete(i.authorities, i.recent.Remove(e).(*boxAuthority).box)
	}
	a, err := authority.New(i.opts.Key, b.Owner+"\x00"+b.ID, names)
	if err != nil {
		return nil, err
	}
	i.authorities[b] = i.recent.PushFront(&boxAuthority{b, a})
	if i.recent.Len() > maxAuthorities {
		delete(i.authorities, i.recent.Remove(i.recent.Back()).(*boxAuthority).box)
	}
	return a, nil
}

var _ egress.Interceptor = (*Interceptor)(nil)
