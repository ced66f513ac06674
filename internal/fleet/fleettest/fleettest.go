// Package fleettest has servers of one process share the boxes of an engine, for tests.
package fleettest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"sync"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/fleet"
)

// A Cluster knows who has which guest. The zero value is ready for use.
type Cluster struct {
	mu      sync.Mutex
	servers map[string]*Server // guarded by mu; also those that are gone
	guests  map[string]*guest  // guarded by mu; by id
}

type guest struct {
	note    fleet.Note
	server  string
	version int
}

// A Server is one of the Cluster. It implements fleet.Fleet.
type Server struct {
	cluster *Cluster
	name    string
	engine  engine.Engine

	address netip.AddrPort // guarded by Cluster.mu
	gone    bool           // guarded by Cluster.mu
	err     error          // guarded by Cluster.mu
}

var _ fleet.Fleet = (*Server)(nil)

// Join adds a server with an engine whose guests the engines of the others can recover.
func (c *Cluster) Join(e engine.Engine) *Server {
	b := make([]byte, 8)
	rand.Read(b) // never fails
	s := &Server{cluster: c, name: hex.EncodeToString(b), engine: e}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.servers == nil {
		c.servers, c.guests = make(map[string]*Server), make(map[string]*guest)
	}
	c.servers[s.name] = s
	return s
}

// Listen says where the server listens.
func (s *Server) Listen(at netip.AddrPort) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	s.address = at
}

// Kill makes the server count as gone.
func (s *Server) Kill() {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	s.gone = true
}

// Fail makes the cluster answer the server with an error; nil: no more.
func (s *Server) Fail(err error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	s.err = err
}

// Self implements fleet.Fleet.
func (s *Server) Self() string { return s.name }

// Note implements fleet.Fleet.
func (s *Server) Note(_ context.Context, id string, n fleet.Note) error {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	g := s.cluster.guests[id]
	if g == nil {
		g = &guest{server: s.name}
		s.cluster.guests[id] = g
	}
	g.note = n
	g.version++
	return nil
}

// Boxes implements fleet.Fleet.
func (s *Server) Boxes(ctx context.Context, tags ...string) ([]fleet.Guest, error) {
	return s.find(ctx, func(n *fleet.Note) bool {
		for _, tag := range tags {
			if n.Box == tag {
				return true
			}
		}
		return false
	})
}

// Owned implements fleet.Fleet.
func (s *Server) Owned(ctx context.Context, tag string) ([]fleet.Guest, error) {
	return s.find(ctx, func(n *fleet.Note) bool { return n.Owner == tag })
}

func (s *Server) find(ctx context.Context, match func(*fleet.Note) bool) (found []fleet.Guest, err error) {
	recoverer, _ := engine.As[engine.Recoverer](s.engine)
	living, err := recoverer.List(ctx)
	if err != nil {
		return nil, err
	}
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	for _, state := range living {
		g := s.cluster.guests[state.ID]
		if g != nil && match(&g.note) {
			found = append(found, fleet.Guest{State: state, Server: g.server, Version: strconv.Itoa(g.version), Text: g.note.Text})
		}
	}
	return found, s.err
}

// Server implements fleet.Fleet.
func (s *Server) Server(_ context.Context, name string) (fleet.Server, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	other := s.cluster.servers[name]
	if other == nil {
		return fleet.Server{Gone: true}, s.err
	}
	return fleet.Server{Address: other.address, Gone: other.gone}, s.err
}

// Adopt implements fleet.Fleet.
func (s *Server) Adopt(ctx context.Context, found fleet.Guest) (engine.Guest, error) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	g := s.cluster.guests[found.State.ID]
	if g == nil || strconv.Itoa(g.version) != found.Version {
		return nil, fmt.Errorf("take over %s: %w", found.State.ID, fleet.ErrChanged)
	}
	from, _ := engine.As[engine.Recoverer](s.cluster.servers[g.server].engine)
	_ = from.Detach(ctx, found.State.ID) // it may have left it
	to, _ := engine.As[engine.Recoverer](s.engine)
	taken, err := to.Recover(ctx, found.State)
	if err == nil {
		g.server = s.name
		g.version++
	}
	return taken, err
}

// Leave implements fleet.Fleet.
func (s *Server) Leave(ctx context.Context, id string) error {
	recoverer, _ := engine.As[engine.Recoverer](s.engine)
	return recoverer.Detach(ctx, id)
}
