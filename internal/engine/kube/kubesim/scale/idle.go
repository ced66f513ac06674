//go:build linux

package main

import (
	"context"
	"strconv"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubesim"
)

// warmLabel is the label of warm Pods, for this program to count them.
const warmLabel = "glovebox.dev/warm"

// idling watches the fleet while nobody uses it, and scales what it does to an hour. Renewals of
// Leases and counts of warm Pods come at their real intervals; watches end watchSpeed times as
// often as a cluster's; the sweeps of an hour are computed from the one that was measured.
func (p *plan) idling(ctx context.Context, s *sim, r *result) error {
	for _, e := range s.replicas {
		if err := e.KeepWarm(ctx, spec()); err != nil {
			return err
		}
	}
	err := s.until(ctx, "Pods are warm", func(kubesim.Counts) bool { return s.api.Ready(warmLabel, "true") >= idleWarm })
	if err == nil {
		err = s.quiet(ctx)
	}
	if err != nil {
		return err
	}
	before, begun := s.api.Counts(), time.Now()
	if err := pause(ctx, p.idle); err != nil {
		return err
	}
	c := s.api.Counts().Since(before)
	perHour := time.Hour.Seconds() / time.Since(begun).Seconds()
	sweepRequests, _ := r.value("a sweep: requests")
	sweepBytes, _ := r.value("a sweep: bytes")
	total := func(match func(kubesim.Key) bool) (requests, bytes float64) {
		for k, l := range c {
			if !match(k) {
				continue
			}
			speed := 1.0
			if k.Verb == "watch" {
				speed = watchSpeed
			}
			requests += float64(l.Requests) * perHour / speed
			bytes += float64(l.Bytes) * perHour / speed
		}
		return requests, bytes
	}
	replicas := float64(len(s.replicas))
	for _, k := range []kind{{"patch", "leases", ""}, {"watch", "pods", ""}, {"list", "pods", "warm"}} {
		requests, _ := total(k.of)
		r.add("idle, an hour, at each replica: "+k.String(), "requests", requests/replicas)
	}
	r.add("idle, an hour, at each replica: sweeps", "requests", sweepsPerHour*sweepRequests)
	for i := range s.replicas {
		user := "replica-" + strconv.Itoa(i+1)
		requests, bytes := total(func(k kubesim.Key) bool { return k.User == user })
		name := "idle, an hour, " + user
		r.add(name+": all requests", "requests", requests+sweepsPerHour*sweepRequests)
		r.add(name+": bytes of answers", "MB", bytes/1e6+sweepsPerHour*sweepBytes)
	}
	_, bytes := total(kind{"watch", "pods", ""}.of)
	r.add("idle, an hour, at each replica: bytes of the watch", "kB", bytes/1000/replicas)
	return nil
}

// memoryOfEngines closes the engines, which leave the boxes. The stand-in holds the same
// before and after, so that the difference is that of the engines and their connections.
func memoryOfEngines(ctx context.Context, s *sim, r *result) error {
	n, boxes := float64(len(s.replicas)), 0
	for _, e := range s.replicas {
		boxes += len(e.boxes)
	}
	before := held()
	if err := s.closeAll(ctx); err != nil {
		return err
	}
	after := held()
	heap, stacks := float64(before.heap-after.heap), float64(before.stacks-after.stacks)
	r.add("memory of a replica: heap", "MB", heap/1e6/n)
	r.add("memory of a replica: stacks", "MB", stacks/1e6/n)
	r.add("memory of all replicas, for each box: heap and stacks", "kB", (heap+stacks)/1000/float64(boxes))
	r.add("goroutines of all replicas, for each box", "goroutines", float64(before.goroutines-after.goroutines)/float64(boxes))
	return nil
}
