//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubesim"
)

const (
	// watchSpeed makes watches of five minutes end after ten seconds.
	watchSpeed = 30
	// sweepsPerHour is the default of orphan-cleanup-interval.
	sweepsPerHour = 6
	// idleWarm is the number of warm Pods that the idle fleet keeps.
	idleWarm = 5
	// waitFor bounds a wait for the simulated cluster, which takes less than a second on an idle
	// machine.
	waitFor = 5 * time.Minute

	// Times are means of that many calls.
	lists, lookups, adoptions, endings = 3, 60, 30, 100

	pods = "pods"
)

// plan says what to measure.
type plan struct {
	replicas int
	idle     time.Duration
	claims   bool // of warm Pods, too
	warm     int  // Pods kept warm for that
	bursts   int
}

// measure measures a number of boxes.
func (p *plan) measure(ctx context.Context, boxes int, progress io.Writer) (*result, error) {
	s, err := newSim(kubesim.Options{WatchSpeed: watchSpeed})
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.openAll(ctx, "replica-", p.replicas, idleWarm); err != nil {
		return nil, err
	}
	r := &result{Boxes: boxes, Replicas: p.replicas}
	steps := []step{
		{"create", creations}, {"list", listings}, {"look up", lookUps}, {"sweep", sweeps}, {"take over", takeOvers},
		{"destroy", destructions}, {"idle", p.idling}, {"memory", memoryOfEngines},
	}
	if p.claims {
		steps = append(steps, step{"claim", p.claiming})
	}
	for _, step := range steps {
		begun := time.Now()
		if err := step.do(ctx, s, r); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(progress, "scale: %s: %.1f s\n", step.name, time.Since(begun).Seconds())
	}
	return r, nil
}

// step is a part of the measurement. The steps run in an order.
type step struct {
	name string
	do   func(context.Context, *sim, *result) error
}

// perBox are the requests that boxes may cause: a kind that is missing here is in the sum.
var perBox = []kind{{"create", "pods", ""}, {"patch", "pods", ""}, {"get", "pods", ""}, {"list", "pods", ""}, {"delete", "pods", ""}}

// caused adds what n boxes have caused since before: requests, and what the watches told.
func (s *sim) caused(r *result, what string, n int, before kubesim.Counts) {
	c := s.api.Counts().Since(before)
	r.loads(what, n, c, perBox...)
	sum := c.Sum(func(k kubesim.Key) bool { return k.Verb != "watch" && k.Resource != "leases" })
	r.add(what+": all requests", "requests", float64(sum.Requests)/float64(n))
	w := c.Sum(kind{"watch", "pods", ""}.of)
	r.add(what+": events, at each replica", "events", float64(w.Events)/float64(n*len(s.replicas)))
	r.add(what+": bytes of the watch, at each replica", "kB", float64(w.Bytes)/1000/float64(n*len(s.replicas)))
}

// quiet waits until the watches have told everything.
func (s *sim) quiet(ctx context.Context) error {
	watched := func() kubesim.Load { return s.api.Counts().Sum(kind{"watch", "pods", ""}.of) }
	for last, deadline := -1, time.Now().Add(waitFor); ; {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		now := watched().Events
		if now == last {
			return nil
		}
		if last = now; time.Now().After(deadline) {
			return errors.New("wait for the watches: they still send events")
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// creations makes the boxes.
func creations(ctx context.Context, s *sim, r *result) error {
	before := s.api.Counts()
	t, err := during(func() error {
		return s.each(ctx, r.Boxes, func(ctx context.Context, e *replica, i int) error {
			g, err := e.create(ctx, "box-"+strconv.Itoa(i))
			if err == nil {
				e.keep(g)
			}
			return err
		})
	})
	if err == nil {
		err = s.quiet(ctx)
	}
	if err != nil {
		return err
	}
	s.caused(r, "a box is created", r.Boxes, before)
	r.took("a box is created", r.Boxes, t)
	return nil
}

// listings lists all boxes as a server does that starts.
func listings(ctx context.Context, s *sim, r *result) error {
	before := s.api.Counts()
	var start, end runtime.MemStats
	runtime.ReadMemStats(&start)
	t, err := during(func() error {
		for range lists {
			found, err := s.replicas[0].List(ctx)
			if err == nil && len(found) != r.Boxes {
				err = fmt.Errorf("list guests: found %d of %d", len(found), r.Boxes)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	runtime.ReadMemStats(&end)
	r.took("List", lists, t)
	l := s.api.Counts().Since(before).Sum(kind{"list", "pods", "role"}.of)
	r.add("List: requests", "requests", float64(l.Requests)/lists)
	r.add("List: bytes", "MB", float64(l.Bytes)/1e6/lists)
	r.add("List: allocated", "MB", float64(end.TotalAlloc-start.TotalAlloc)/1e6/lists)
	return nil
}

// lookUps finds who has a box, as a server does that gets a call for it.
func lookUps(ctx context.Context, s *sim, r *result) error {
	before := s.api.Counts()
	var times []time.Duration
	all, err := during(func() error {
		for range lookups {
			holder := s.replicas[rand.N(len(s.replicas))]
			id := holder.boxes[rand.N(len(holder.boxes))].ID()
			t, err := during(func() error {
				found, err := s.replicas[0].Boxes(ctx, tag(id))
				if err == nil && (len(found) != 1 || found[0].State.ID != id || found[0].Server != holder.Self()) {
					err = fmt.Errorf("look up box %s: found %+v", id, found)
				}
				if err == nil && holder != s.replicas[0] {
					_, err = s.replicas[0].Server(ctx, found[0].Server)
				}
				return err
			})
			if err != nil {
				return err
			}
			times = append(times, t.wall)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(times)
	r.add("look up who has a box: median", "ms", ms(times[len(times)/2]))
	r.add("look up who has a box: processor time", "ms", ms(all.cpu)/lookups)
	l := s.api.Counts().Since(before).Sum(kind{"list", "pods", "box"}.of)
	r.add("look up who has a box: Pods that the API server examines", "Pods", float64(l.Examined)/lookups)
	r.add("look up who has a box: bytes", "kB", float64(l.Bytes)/1000/lookups)
	return nil
}

// sweeps opens a replica that looks for Pods whose holders are gone, which it does at once.
func sweeps(ctx context.Context, s *sim, r *result) error {
	var opened spent
	var sweeper *replica
	most, err := peak(func() (err error) {
		opened, err = during(func() (err error) {
			sweeper, err = s.open(ctx, "sweeper", 0, time.Hour)
			return err
		})
		if err != nil {
			return err
		}
		defer sweeper.Close()
		// A sweep asks for the Lease of each holder last.
		return s.until(ctx, "the sweep ends", func(c kubesim.Counts) bool {
			return c.Sum(func(k kubesim.Key) bool { return k.User == "sweeper" && kind{"get", "leases", ""}.of(k) }).Requests >= len(s.replicas)
		})
	})
	if err != nil {
		return err
	}
	r.took("a replica opens", 1, opened)
	r.add("a sweep: most memory meanwhile", "MB", float64(most)/1e6)
	l := s.api.Counts().Sum(func(k kubesim.Key) bool { return k.User == "sweeper" && kind{"list", "pods", "role"}.of(k) })
	// The replica has listed all Pods when it was opened, too.
	r.add("a sweep: requests", "requests", float64(l.Requests)/2+float64(len(s.replicas)))
	r.add("a sweep: bytes", "MB", float64(l.Bytes)/2/1e6)
	return nil
}

// until waits until the counts are as wanted.
func (s *sim) until(ctx context.Context, what string, wanted func(kubesim.Counts) bool) error {
	for deadline := time.Now().Add(waitFor); !wanted(s.api.Counts()); {
		if time.Now().After(deadline) {
			return fmt.Errorf("wait until %s: it takes more than %v", what, waitFor)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// takeOvers has one replica take over boxes that another one leaves.
func takeOvers(ctx context.Context, s *sim, r *result) error {
	from, to := s.replicas[0], s.replicas[len(s.replicas)-1]
	n := min(adoptions, len(from.boxes)/2)
	var moved []string
	for range n {
		id := from.next().ID()
		if err := from.Leave(ctx, id); err != nil {
			return err
		}
		moved = append(moved, id)
	}
	before := s.api.Counts()
	t, err := during(func() error {
		for _, id := range moved {
			found, err := to.Boxes(ctx, tag(id))
			if err == nil && len(found) != 1 {
				err = fmt.Errorf("look up box %s: found %d", id, len(found))
			}
			if err != nil {
				return err
			}
			g, err := to.Adopt(ctx, found[0])
			if err != nil {
				return err
			}
			to.keep(g)
		}
		return nil
	})
	if err != nil {
		return err
	}
	sum := s.api.Counts().Since(before).Sum(func(k kubesim.Key) bool { return k.Resource == pods && k.Verb != "watch" })
	r.add("a box is taken over: requests", "requests", float64(sum.Requests)/float64(n))
	r.took("a box is taken over", n, t)
	return nil
}

// destructions ends some boxes of each replica.
func destructions(ctx context.Context, s *sim, r *result) error {
	if err := s.quiet(ctx); err != nil {
		return err
	}
	n := min(endings, r.Boxes/3)
	before, begun := s.api.Counts(), time.Now()
	err := s.each(ctx, n, func(ctx context.Context, e *replica, _ int) error { return e.next().Destroy(ctx) })
	if err != nil {
		return err
	}
	r.add("a box is destroyed, many at once: time", "ms", ms(time.Since(begun))/float64(n))
	if err := s.quiet(ctx); err != nil {
		return err
	}
	s.caused(r, "a box is destroyed", n, before)
	return nil
}
