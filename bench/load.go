//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// Numbers of clients in the load scenario.
const (
	loadSessions = 1000 // that do nothing
	loadStreams  = 100  // that listen
	loadCallers  = 32   // that behave well, each ten times a second
	loadSlow     = 20   // that read an answer of megabytes by 16 bytes a second
	loadStuck    = 20   // that do not read it
	loadBreaking = 16   // that break off in the middle of calls; or, where all behave, wait
	loadTrickle  = 20   // that send a request by 8 bytes a second
)

// loadPace is the pause between two calls of a well-behaved caller. Together they stay far
// below the server's capacity, so that their delays come from others.
const loadPace = 100 * time.Millisecond

// recoverLimit bounds the time in which the server must release clients that left.
const recoverLimit = time.Minute

// loadScenario measures well-behaved callers next to idle sessions, streams and
// short-lived clients, and then next to clients that also read slowly or not at all, abort
// calls and send byte by byte. Finally it checks for leaks.
func loadScenario(ctx context.Context, b *bench) error {
	s, err := b.servePlain(ctx, plain, highLimits...)
	if err != nil {
		return err
	}
	defer s.stop()
	_, box, _, err := s.create(ctx, "load")
	if err != nil {
		return err
	}
	before, err := s.leakMetrics(ctx)
	watched := err == nil
	if err != nil && !errors.Is(err, errNoMetrics) {
		return err
	}
	b.logf("load: %d sessions and %d streams", loadSessions, loadStreams)
	clients, err := b.openLoad(ctx, s, box)
	defer clients.close(ctx)
	if err != nil {
		return err
	}
	d := b.pause(10*time.Second, 2*time.Second)
	var decent, beside []float64
	// Alternately, so that both run under the same load.
	var bad badClients
	for range b.n(3, 2) {
		for _, turn := range []struct {
			to    *[]float64
			begin func(context.Context, string, string) func()
		}{{&decent, bad.startWellBehaved}, {&beside, bad.begin}} {
			others, stop := context.WithCancel(ctx)
			ended := turn.begin(others, s.url, box)
			var took []float64
			if err = s.calm(ctx); err == nil {
				took, err = clients.call(ctx, d)
			}
			stop()
			ended()
			if err != nil {
				return err
			}
			*turn.to = append(*turn.to, took...)
		}
	}
	if n := clients.deaf.Load(); n > 0 {
		return fmt.Errorf("%d of %d streams ended before their clients", n, loadStreams)
	}
	if bad.broken.Load() == 0 {
		return errors.New("no client broke off: the bad clients did nothing")
	}
	clients.close(ctx)
	peace := report.Measured("load.decent", "call of one of 32 callers, beside clients that behave", "ms", decent...)
	b.add(
		report.Measured("load.beside", "call of one of 32 callers, beside bad clients", "ms", beside...).Against(peace).
			AtMost(report.Ratio, 2).AtMost(report.Worst, 5000).
			Noting("beside %d who read slowly, %d not at all, %d who trickle, %d calls broken off", loadSlow, loadStuck, loadTrickle, bad.broken.Load()),
		peace,
	)
	if !watched {
		b.add(report.Absent("load.goroutines", "goroutines left of all", notOffered))
		return s.end(ctx, box)
	}
	left, err := s.awaitRecovery(ctx, before, recoverLimit)
	b.add(
		report.Measured("load.goroutines", "goroutines left of all", "", left.goroutines).AtMost(report.Median, spareGoroutines),
		report.Measured("load.descriptors", "descriptors left of all", "", left.descriptors).AtMost(report.Median, spareDescriptors),
		report.Measured("load.heap", "heap left of all", "MB", left.heap/1e6).AtMost(report.Median, spareHeap/1e6),
	)
	return errors.Join(err, s.end(ctx, box))
}

// calm waits until the clients that do not read have filled the buffers. Until then they
// are ordinary clients and keep the server busy.
func (s *server) calm(ctx context.Context) error {
	const busy = 0.25 // of one processor: what all the others take
	const looks = 3   // in a row: they all begin a little apart
	calm := 0
	// Less than the server's time-out for stuck clients.
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		before, err := usage(s.cmd.Process.Pid)
		if err != nil {
			return err
		}
		begun := time.Now()
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		after, err := usage(s.cmd.Process.Pid)
		if err != nil {
			return err
		}
		if after.Since(before).Seconds() >= busy*time.Since(begun).Seconds() {
			calm = 0
		} else if calm++; calm == looks {
			return nil
		}
	}
	return nil // a busy machine; what is measured says so
}

// loadClients are the well-behaved clients.
type loadClients struct {
	idle, callers crowd
	deaf          atomic.Int64 // streams that ended by themselves
	listening     sync.WaitGroup
	stopListening context.CancelFunc
}

// openLoad opens sessions, streams and callers. After an error it still returns those that
// it opened.
func (b *bench) openLoad(ctx context.Context, s *server, box string) (*loadClients, error) {
	c := &loadClients{}
	var listen context.Context
	listen, c.stopListening = context.WithCancel(ctx)
	shared := newPoster(s.url, map[string]string{"Accept": both}, nil, "")
	for range b.n(loadSessions, 200) {
		p := newPoster(s.url, map[string]string{"Accept": both}, nil, "")
		p.client = shared.client
		if err := p.handshake(ctx); err != nil {
			return c, err
		}
		c.idle = append(c.idle, p)
	}
	for _, p := range c.idle[:loadStreams] {
		w, err := dial(listen, s.url)
		if err != nil {
			return c, err
		}
		if err := w.listen(p.header); err != nil {
			return c, err
		}
		c.listening.Go(func() {
			_, _ = io.Copy(io.Discard, w)
			if listen.Err() == nil { // not the client's doing
				c.deaf.Add(1)
			}
		})
	}
	var err error
	c.callers, err = connectCrowd(ctx, loadCallers, sessionCaller, s.url, "list_contexts", map[string]any{}, box)
	return c, err
}

// call runs all callers at loadPace for d.
func (c *loadClients) call(ctx context.Context, d time.Duration) ([]float64, error) {
	var paced []caller
	for _, p := range c.callers {
		paced = append(paced, func(ctx context.Context) (float64, error) {
			if err := sleep(ctx, rand.N(2*loadPace)); err != nil {
				return 0, err
			}
			return p.post(ctx)
		})
	}
	_, took, err := storm(ctx, paced, d)
	return took, err
}

// close ends all clients. It is idempotent.
func (c *loadClients) close(ctx context.Context) {
	c.stopListening()
	c.listening.Wait()
	for _, p := range append(c.idle, c.callers...) {
		p.end(ctx)
	}
	c.idle, c.callers = nil, nil
}

// badClients counts the actions of bad clients.
type badClients struct {
	broken atomic.Int64 // calls broken off
}

// startWellBehaved starts short-lived clients. After ctx has ended, end waits for them.
func (c *badClients) startWellBehaved(ctx context.Context, url, box string) (end func()) {
	var all sync.WaitGroup
	c.startVisitors(ctx, &all, url, box, true)
	return all.Wait
}

// startVisitors starts clients that open a connection, and some of them a session, for each call.
func (c *badClients) startVisitors(ctx context.Context, all *sync.WaitGroup, url, box string, patient bool) {
	for i := range loadBreaking {
		all.Go(func() {
			for ctx.Err() == nil {
				if visit(ctx, url, box, i%2 == 0, patient) == nil && !patient {
					c.broken.Add(1)
				}
				_ = sleep(ctx, rand.N(200*time.Millisecond))
			}
		})
	}
}

// begin starts bad clients, as startWellBehaved does the others.
func (c *badClients) begin(ctx context.Context, url, box string) (end func()) {
	var all sync.WaitGroup
	c.startVisitors(ctx, &all, url, box, false)
	many := func(n int, client func(context.Context, string) error) {
		for range n {
			all.Go(func() {
				for ctx.Err() == nil {
					_ = client(ctx, url) // whatever comes of it
					_ = sleep(ctx, rand.N(time.Second))
				}
			})
		}
	}
	many(loadSlow, func(ctx context.Context, url string) error { return slowReader(ctx, url, time.Second) })
	many(loadStuck, func(ctx context.Context, url string) error { return slowReader(ctx, url, time.Hour) })
	many(loadTrickle, slowSender)
	return all.Wait
}

// slowReader requests megabytes repeatedly and reads 16 bytes after each pause.
func slowReader(ctx context.Context, url string, pause time.Duration) error {
	w, err := dial(ctx, url)
	if err != nil {
		return err
	}
	defer w.reset()
	w.SetReadBuffer(4 << 10)
	ask := w.request(http.MethodPost, http.Header{"Accept": {both}, "Content-Type": {"application/json"}},
		[]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	for range 120 { // 31 KB each
		if _, err := io.WriteString(w, ask); err != nil {
			return err
		}
	}
	return w.readSlowly(ctx, pause)
}

// slowSender sends requests in small pieces and aborts some of them.
func slowSender(ctx context.Context, url string) error {
	w, err := dial(ctx, url)
	if err != nil {
		return err
	}
	defer w.Close()
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_contexts","arguments":{}}}`)
	text := w.request(http.MethodPost, http.Header{"Accept": {both}, "Content-Type": {"application/json"}}, body)
	quick := rand.IntN(len(text))
	if _, err := io.WriteString(w, text[:quick]); err != nil {
		return err
	}
	return w.writeSlowly(ctx, text[quick:], time.Second)
}

// visit calls a tool, in a session or in the newest revision, and either waits for the
// answer or disconnects before it.
func visit(ctx context.Context, url, box string, session, patient bool) error {
	pause := "0.2"
	if patient {
		pause = "0.025" // as long as the others stay
	}
	open, tool, args := modernCaller, "run_code", map[string]any{"context_id": box, "code": "import time; time.sleep(" + pause + ")"}
	if session {
		open, tool, args = sessionCaller, "list_contexts", map[string]any{}
	}
	// End the session: otherwise it lives for an idle hour and counts as a leak.
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	p, err := open(whole, url, tool, args, "")
	if err != nil {
		return err
	}
	defer p.end(whole)
	w, err := dial(ctx, url)
	if err != nil {
		return err
	}
	defer w.reset()
	if _, err := io.WriteString(w, w.request(http.MethodPost, p.header, p.body)); err != nil {
		return err
	}
	if patient {
		_, err := w.Read(make([]byte, 4<<10))
		return err
	}
	return sleep(ctx, rand.N(50*time.Millisecond))
}
