package kubesim

import (
	"context"
	"sync"
	"time"
)

// kubelet brings Pods to a node, makes them ready, and ends them.
type kubelet struct {
	starting, ending *line
}

// line takes Pods through steps that take equally long, so that it keeps the order in which
// they come.
type line struct {
	delay time.Duration // of a step
	steps []func(name, uid string)
	wake  chan struct{} // holds an element if a Pod has come; capacity 1

	mu    sync.Mutex
	queue []job // guarded by mu; the earliest first
}

// job is the next step of a Pod.
type job struct {
	name, uid string
	step      int
	due       time.Time
}

func newKubelet(s *store, start, end time.Duration) *kubelet {
	deleting := func(o *object) bool { return o.deleting }
	never := func(*object) bool { return false }
	change := func(skip func(*object) bool, apply func(map[string]any)) func(string, string) {
		return func(name, uid string) { s.update(name, uid, skip, apply) }
	}
	waiting := func(f map[string]any) {
		report(f, "Pending", map[string]any{"waiting": map[string]any{"reason": "PodInitializing"}})
	}
	running := func(f map[string]any) {
		report(f, "Running", map[string]any{"running": map[string]any{"startedAt": timestamp()}})
	}
	ended := func(f map[string]any) {
		report(f, "Succeeded", map[string]any{"terminated": map[string]any{
			"exitCode": 0, "reason": "Completed", "startedAt": timestamp(), "finishedAt": timestamp(), "message": `{"stopped":true}`,
		}})
	}
	return &kubelet{
		starting: newLine(start, change(deleting, bind), change(deleting, waiting), change(deleting, running)),
		ending:   newLine(end, change(never, ended), s.finish),
	}
}

func newLine(total time.Duration, steps ...func(name, uid string)) *line {
	return &line{delay: total / time.Duration(len(steps)), steps: steps, wake: make(chan struct{}, 1)}
}

func (k *kubelet) begin(o *object) { k.starting.add(job{name: o.name, uid: o.uid}) }
func (k *kubelet) end(o *object)   { k.ending.add(job{name: o.name, uid: o.uid}) }

// run takes Pods through their steps until ctx ends.
func (k *kubelet) run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { k.starting.run(ctx) })
	both.Go(func() { k.ending.run(ctx) })
	both.Wait()
}

func (l *line) add(j job) {
	j.due = time.Now().Add(l.delay)
	l.mu.Lock()
	l.queue = append(l.queue, j)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // it looks at the queue soon
	}
}

// next removes and returns the first Pod whose step is due, or says how long to wait.
func (l *line) next(now time.Time) (j job, ok bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return job{}, false, time.Hour // a Pod that comes wakes the line
	}
	j = l.queue[0]
	if wait = j.due.Sub(now); wait > 0 {
		return job{}, false, wait
	}
	l.queue = l.queue[1:]
	return j, true, 0
}

func (l *line) run(ctx context.Context) {
	for ctx.Err() == nil {
		j, ok, wait := l.next(time.Now())
		if ok {
			l.steps[j.step](j.name, j.uid)
			if j.step++; j.step < len(l.steps) {
				l.add(j)
			}
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
