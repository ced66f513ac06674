//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubesim"
	"github.com/glovebox-dev/glovebox/internal/fleet"
)

const (
	// atOnce bounds the calls that one replica makes at once.
	atOnce = 16
	// noteBytes is the size of the note that the server writes down with a box.
	noteBytes = 300
)

var (
	box    = &engine.Image{Name: "registry.example/team/python", Digest: "sha256:" + strings.Repeat("1", 64)}
	helper = &engine.Image{Name: "registry.example/team/glovebox-helper", Digest: "sha256:" + strings.Repeat("2", 64)}
)

// spec is a box of the default flavor.
func spec() *engine.Spec {
	return &engine.Spec{
		Root: kube.RootOf(box), Hostname: "glovebox",
		Agent:  engine.Program{Path: kube.AgentPath, Args: []string{"glovebox-guest"}, Image: helper},
		Limits: engine.Limits{CPUs: 1, MemoryMB: 2048, DiskMB: 1024},
	}
}

// A sim is a cluster and the replicas of the engine that use it.
type sim struct {
	api      *kubesim.Server
	dir      string // of kubeconfigs
	replicas []*replica
}

// replica is an engine, with its boxes.
type replica struct {
	*kube.Engine

	mu    sync.Mutex
	boxes []engine.Guest // guarded by mu while several calls run
}

func (r *replica) keep(g engine.Guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boxes = append(r.boxes, g)
}

// next removes and returns a box; there is one.
func (r *replica) next() engine.Guest {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.boxes[0]
	r.boxes = r.boxes[1:]
	return g
}

func newSim(o kubesim.Options) (*sim, error) {
	dir, err := os.MkdirTemp("", "glovebox-scale-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for kubeconfigs: %w", err)
	}
	return &sim{api: kubesim.Start(o), dir: dir}, nil
}

// open opens an engine whose requests count as those of a user.
func (s *sim) open(ctx context.Context, user string, warm int, sweep time.Duration) (*replica, error) {
	path, err := s.api.Kubeconfig(s.dir, user)
	if err != nil {
		return nil, err
	}
	e, err := kube.Open(ctx, kube.Config{
		Cluster: kubeconfig.Options{Path: path}, RuntimeClass: kubesim.RuntimeClass, Helper: engine.Program{Path: kube.HelperPath, Image: helper},
		SweepEvery: sweep, Warm: warm, ProgramVersion: "simulation",
		// Nothing listens there, since no box is dialled.
		Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(20000+len(s.replicas))),
	})
	if err != nil {
		return nil, err
	}
	return &replica{Engine: e}, nil
}

// openAll opens the replicas, named after prefix.
func (s *sim) openAll(ctx context.Context, prefix string, n, warm int) error {
	for i := range n {
		r, err := s.open(ctx, prefix+strconv.Itoa(i+1), warm, 0)
		if err != nil {
			return err
		}
		s.replicas = append(s.replicas, r)
	}
	return nil
}

// closeAll closes the replicas, which leave their boxes behind.
func (s *sim) closeAll(ctx context.Context) error {
	var all []error
	for _, r := range s.replicas {
		for _, g := range r.boxes {
			all = append(all, r.Leave(ctx, g.ID()))
		}
		all = append(all, r.Close())
	}
	s.replicas = nil
	return errors.Join(all...)
}

func (s *sim) close() {
	_ = s.closeAll(context.Background()) // boxes that have ended cannot be left
	s.api.Close()
	_ = os.RemoveAll(s.dir)
}

// each calls do for each of n numbers, some of them at once, on the replicas in turn. It
// returns the first error.
func (s *sim) each(ctx context.Context, n int, do func(ctx context.Context, r *replica, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	step := atOnce * len(s.replicas)
	for w := range step {
		workers.Go(func() {
			for i := w; i < n && ctx.Err() == nil; i += step {
				if err := do(ctx, s.replicas[w%len(s.replicas)], i); err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// tag is the tag of a box.
func tag(id string) string { return fleet.Tag("box", id) }

// create makes a box and writes down which one it is, as the server does.
func (r *replica) create(ctx context.Context, id string) (engine.Guest, error) {
	g, err := r.Create(ctx, id, spec())
	if err != nil {
		return nil, err
	}
	note := fleet.Note{Box: tag(id), Owner: fleet.Tag("owner", id[len(id)-1:]), Text: strings.Repeat("n", noteBytes)}
	if err := r.Note(ctx, id, note); err != nil {
		return nil, err
	}
	return g, nil
}
