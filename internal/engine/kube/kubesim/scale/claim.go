//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubesim"
)

// claiming has new replicas claim all warm Pods at once, several times.
func (p *plan) claiming(ctx context.Context, s *sim, r *result) error {
	if err := s.openAll(ctx, "claimer-", p.replicas, p.warm); err != nil {
		return err
	}
	for _, e := range s.replicas {
		if err := e.KeepWarm(ctx, spec()); err != nil {
			return err
		}
	}
	claimers := func(k kubesim.Key) bool { return strings.HasPrefix(k.User, "claimer-") }
	var rates, refills []float64
	var warm, cold atomic.Int64
	conflicts := 0
	begin := s.api.Counts()
	for burst := range p.bursts {
		begun := time.Now()
		err := s.until(ctx, "Pods are warm", func(kubesim.Counts) bool { return s.api.Ready(warmLabel, "true") >= p.warm })
		if err != nil {
			return err
		}
		refills = append(refills, float64(p.warm)/time.Since(begun).Seconds())
		if err := s.quiet(ctx); err != nil { // every replica knows all
			return err
		}
		before, was := s.api.Counts(), warm.Load()
		t, err := during(func() error {
			return s.each(ctx, p.warm, func(ctx context.Context, e *replica, i int) error {
				id := "claimed-" + strconv.Itoa(burst) + "-" + strconv.Itoa(i)
				g, err := e.Create(ctx, id, spec())
				if err != nil {
					return err
				}
				st, err := e.State(ctx, id)
				if strings.Contains(string(st.Data), `"pod":"warm-`) { // it keeps its name
					warm.Add(1)
				} else {
					cold.Add(1)
				}
				e.keep(g)
				return err
			})
		})
		if err != nil {
			return err
		}
		conflicts += s.api.Counts().Since(before).Sum(func(k kubesim.Key) bool {
			return claimers(k) && k.Verb == "patch" && k.Resource == pods && k.Code == http.StatusConflict
		}).Requests
		rates = append(rates, float64(warm.Load()-was)/t.wall.Seconds())
	}
	if warm.Load() == 0 {
		return fmt.Errorf("claim warm Pods: none of %d boxes got one", cold.Load())
	}
	c := s.api.Counts().Since(begin)
	made := float64(warm.Load()) // as many as were used
	lists := c.Sum(func(k kubesim.Key) bool { return claimers(k) && kind{"list", "pods", "warm"}.of(k) })
	slices.Sort(rates)
	slices.Sort(refills)
	r.add("claims of warm Pods, all at once: median rate", "per s", rates[len(rates)/2])
	r.add("claims of warm Pods: conflicts (409)", "per 100", 100*float64(conflicts)/made)
	r.add("claims of warm Pods: boxes that found none", "per 100", 100*float64(cold.Load())/float64(warm.Load()+cold.Load()))
	r.add("warm Pods are made: median rate", "per s", refills[len(refills)/2])
	r.add("warm Pods are made: lists, for each", "requests", float64(lists.Requests)/made)
	r.add("warm Pods are made: bytes of lists, for each", "kB", float64(lists.Bytes)/1000/made)
	return nil
}
