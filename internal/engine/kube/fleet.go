package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeapi"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// boxLabel and tenantLabel have the tags of fleet.Note, noteAnnotation its text.
	boxLabel       = "glovebox.dev/box"
	tenantLabel    = "glovebox.dev/tenant"
	noteAnnotation = "glovebox.dev/note"

	// addressAnnotation of a Lease is where its engine's server listens for others.
	addressAnnotation = "glovebox.dev/address"

	// leasePrefix and the name of a server are the name of the server's Lease.
	leasePrefix = "glovebox-"

	// goneAfter is how long a Lease must be seen unchanged until its server is gone. A
	// server renews it four times in that.
	goneAfter = sharedLeaseSeconds * time.Second
	// maxGap is the longest time between two checks of a Lease that prove something about the
	// time between: when the cluster does not answer, no server can renew its Lease.
	maxGap = goneAfter / 4
	// freshFor is how long an answer about a server that lives, or has no Lease, is used again.
	freshFor = time.Second
	// maxServers bounds the servers that an engine remembers, and the names without a Lease.
	maxServers = 1000
)

var _ fleet.Fleet = (*Engine)(nil)

// Fleet returns the servers of the namespace that share boxes; nil if this one shares none.
func (e *Engine) Fleet() fleet.Fleet {
	if !e.holder.address.IsValid() {
		return nil
	}
	return e
}

// Self returns the name of this server. See fleet.Fleet.
func (e *Engine) Self() string { return serverOf(e.holder.name) }

// serverOf returns the server of a Lease; "" if it is not the Lease of a server.
func serverOf(lease string) string {
	server, ok := strings.CutPrefix(lease, leasePrefix)
	if !ok || !fleet.ValidServer(server) {
		return ""
	}
	return server
}

// Note writes down which box a guest is. See fleet.Fleet.
func (e *Engine) Note(ctx context.Context, id string, n fleet.Note) error {
	if !fleet.ValidTag(n.Box) || !fleet.ValidTag(n.Owner) || len(n.Text) > fleet.MaxText {
		return fmt.Errorf("note which box guest %q is: malformed tags, or %d bytes of text: %w", id, len(n.Text), engine.ErrInvalid)
	}
	g, err := e.set.Get(id)
	if err != nil {
		return fmt.Errorf("note which box guest %q is: %w", id, err)
	}
	_, err = e.api.PatchPod(ctx, e.namespace, g.name, map[string]any{
		"metadata": map[string]any{
			"uid":         g.uid,
			"labels":      map[string]string{boxLabel: n.Box, tenantLabel: n.Owner},
			"annotations": map[string]string{noteAnnotation: n.Text},
		},
	})
	if err != nil {
		return fmt.Errorf("note which box guest %q is: %w", id, unavailable(err))
	}
	return nil
}

// Boxes finds guests by the tags of their boxes. See fleet.Fleet.
func (e *Engine) Boxes(ctx context.Context, tags ...string) ([]fleet.Guest, error) {
	return e.find(ctx, boxLabel, tags)
}

// Owned finds guests by the tag of their owner. See fleet.Fleet.
func (e *Engine) Owned(ctx context.Context, tag string) ([]fleet.Guest, error) {
	return e.find(ctx, tenantLabel, []string{tag})
}

// find lists Pods by a label. It asks the cluster, not what the watch has told: that may be
// late, and a box that is not found is made a second time.
func (e *Engine) find(ctx context.Context, label string, tags []string) ([]fleet.Guest, error) {
	for _, tag := range tags {
		if !fleet.ValidTag(tag) {
			return nil, fmt.Errorf("find guests: malformed tag %.40q: %w", tag, engine.ErrInvalid)
		}
	}
	var found []fleet.Guest
	_, err := e.api.ListPods(ctx, e.namespace, selector+","+label+" in ("+strings.Join(tags, ",")+")", func(p *kubeapi.Pod) {
		id, helper, ok := parsePod(p)
		server, text := serverOf(p.Metadata.Labels[holderLabel]), p.Metadata.Annotations[noteAnnotation]
		if !ok || server == "" || !isRunning(p) || len(text) > fleet.MaxText {
			return
		}
		found = append(found, fleet.Guest{
			State:  encode(id, state{Pod: p.Metadata.Name, UID: p.Metadata.UID, Helper: helper}),
			Server: server, Version: p.Metadata.ResourceVersion, Text: text,
		})
	})
	if err != nil {
		return nil, fmt.Errorf("find guests: %w", unavailable(err))
	}
	return found, nil
}

// Adopt recovers a guest at the version at which it was found, so that one of several
// servers gets it. See fleet.Fleet.
func (e *Engine) Adopt(ctx context.Context, f fleet.Guest) (engine.Guest, error) {
	g, err := e.recover(ctx, f.State, f.Version)
	if err != nil {
		return nil, err
	}
	e.log.Info("took over a Pod of another server", logkey.Guest, f.State.ID)
	return g, nil
}

// Leave detaches a guest. See fleet.Fleet.
func (e *Engine) Leave(ctx context.Context, id string) error { return e.Detach(ctx, id) }

// errNotAServer is the error for a Lease that no Glovebox server has made.
var errNotAServer = errors.New("the Lease does not belong to a Glovebox server")

// Server looks at the Lease of another server, and only at that: nothing that a client sends
// is an address. See fleet.Fleet.
func (e *Engine) Server(ctx context.Context, name string) (fleet.Server, error) {
	if !fleet.ValidServer(name) {
		return fleet.Server{}, fmt.Errorf("look for server %.40q: malformed name: %w", name, engine.ErrInvalid)
	}
	if s, ok := e.servers.fresh(name, time.Now()); ok {
		return s, nil
	}
	lease, err := e.api.GetLease(ctx, e.namespace, leasePrefix+name)
	switch {
	case kubeapi.Code(err) == http.StatusNotFound:
		e.servers.miss(name, time.Now())
		return fleet.Server{Gone: true}, nil
	case err != nil:
		return fleet.Server{}, fmt.Errorf("look for server %s: %w", name, unavailable(err))
	case lease.Metadata.Name != leasePrefix+name || lease.Metadata.Labels[managedLabel] != managedBy || lease.Spec.Holder != leasePrefix+name:
		return fleet.Server{}, fmt.Errorf("look for server %s: %w", name, errNotAServer)
	}
	var at netip.AddrPort
	if text := lease.Metadata.Annotations[addressAnnotation]; text != "" {
		if at, err = fleet.ParseAddress(text); err != nil || !fleet.Reachable(e.holder.address, at) {
			e.servers.unused.Do(func() {
				e.log.Warn("the Lease of a server names an address that is not used", logkey.Detail, detail(leasePrefix+name+": "+text))
			})
			at = netip.AddrPort{}
		}
	}
	return e.servers.see(name, lease.Metadata.ResourceVersion, at, time.Now()), nil
}

// A sighting is what an engine knows of another server. Clocks of different machines are not
// compared: only how long this engine has seen the Lease unchanged.
type sighting struct {
	version string // of the Lease
	since   time.Time
	last    time.Time
	server  fleet.Server
}

// sightings are the servers that an engine has looked for lately.
type sightings struct {
	mu   sync.Mutex
	seen map[string]*sighting // guarded by mu
	// missing has when servers had no Lease. Clients go on naming servers that have ended, and
	// may make up names: these must not displace the sightings of others.
	missing map[string]time.Time // guarded by mu
	unused  rate.Sometimes       // of warnings about addresses that are not used
}

// fresh returns what is known of a server that was seen to live, or to have no Lease, just now.
func (ss *sightings) fresh(name string, now time.Time) (fleet.Server, bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if at, ok := ss.missing[name]; ok && now.Sub(at) < freshFor {
		return fleet.Server{Gone: true}, true
	}
	s := ss.seen[name]
	if s == nil || s.server.Gone || now.Sub(s.last) >= freshFor {
		return fleet.Server{}, false
	}
	return s.server, true
}

// miss records that a server has no Lease.
func (ss *sightings) miss(name string, now time.Time) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.seen, name)
	if ss.missing == nil || len(ss.missing) >= maxServers {
		ss.missing = make(map[string]time.Time)
	}
	ss.missing[name] = now
}

// see records that the Lease of a server has a version, and returns what is known of the
// server then. One that was gone stays so until its Lease changes.
func (ss *sightings) see(name, version string, at netip.AddrPort, now time.Time) fleet.Server {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.missing, name)
	s := ss.seen[name]
	if s == nil {
		if ss.seen == nil {
			ss.seen = make(map[string]*sighting)
		}
		for other := range ss.seen {
			if len(ss.seen) < maxServers {
				break
			}
			delete(ss.seen, other)
		}
		s = &sighting{since: now}
		ss.seen[name] = s
	}
	gone := s.server.Gone && s.version == version
	if s.version != version || !gone && now.Sub(s.last) > maxGap {
		s.since = now
	}
	s.version, s.last = version, now
	s.server = fleet.Server{Address: at, Gone: gone || now.Sub(s.since) >= goneAfter}
	return s.server
}
