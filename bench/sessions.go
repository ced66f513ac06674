//go:build linux

package main

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// heartbeatWait is the time until every stream has had a heartbeat, which the server sends each
// 15 s.
const heartbeatWait = 17 * time.Second

// sessionsScenario measures idle MCP sessions, streams that carry only heartbeats, and
// connections between two requests: a server's extra memory for each. Each kind has a
// server of its own, since the next kind would reuse memory that one has freed.
func sessionsScenario(ctx context.Context, b *bench) error {
	n, streams := b.n(1000, 300), b.n(500, 150)
	open := func(ctx context.Context, s *server, n int) (all crowd, err error) {
		shared := newPoster(s.url, nil, nil, "") // one connection for all
		defer shared.close()
		for range n {
			p := newPoster(s.url, map[string]string{"Accept": both}, nil, "")
			p.client = shared.client
			if err := p.handshake(ctx); err != nil {
				return all, err
			}
			all = append(all, p)
		}
		return all, nil
	}
	nothing := func(context.Context, *server) (crowd, error) { return nil, nil }
	idle, err := b.memoryOfEachClient(ctx, n, nothing, func(ctx context.Context, s *server, _ crowd) error {
		_, err := open(ctx, s, n)
		return err
	})
	if err != nil {
		return err
	}
	connection, err := b.memoryOfEachClient(ctx, streams, nothing, func(ctx context.Context, s *server, _ crowd) error {
		for range streams {
			if err := keepConnection(ctx, s.url); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	stream, err := b.memoryOfEachClient(ctx, streams, func(ctx context.Context, s *server) (crowd, error) { return open(ctx, s, streams) },
		func(ctx context.Context, s *server, sessions crowd) error {
			for _, p := range sessions {
				w, err := dial(ctx, s.url)
				if err == nil {
					err = w.listen(p.header)
				}
				if err != nil {
					return err
				}
				go io.Copy(io.Discard, w) // until ctx ends
			}
			return sleep(ctx, b.pause(heartbeatWait, time.Second))
		})
	if err != nil {
		return err
	}
	b.add(
		report.Measured("sessions.idle", "idle MCP session (PSS)", "kB", idle...).AtMost(report.Median, 20).
			Noting("%d of them", n),
		report.Measured("sessions.stream", "stream with heartbeats only (PSS)", "kB", stream...).AtMost(report.Median, 40).
			Noting("%d of them, each with its connection, the sessions not counted", streams),
		report.Measured("sessions.connection", "of which the connection, between two requests", "kB", connection...).As(report.Part),
	)
	return nil
}

// keepConnection opens a connection, makes a request and keeps the connection open until ctx ends.
func keepConnection(ctx context.Context, url string) error {
	w, err := dial(ctx, url)
	if err != nil {
		return err
	}
	w.path = "/health"
	if _, err := io.WriteString(w, w.request(http.MethodGet, nil, nil)); err != nil {
		return err
	}
	_, err = w.Read(make([]byte, 4<<10)) // the answer is shorter
	return err
}

// memoryOfEachClient starts a server and returns the memory of each of n clients in kB: with begin
// against prepare alone.
func (b *bench) memoryOfEachClient(ctx context.Context, n int, prepare func(context.Context, *server) (crowd, error),
	begin func(context.Context, *server, crowd) error) ([]float64, error) {
	s, err := b.servePlain(ctx, plain, highLimits...)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	ctx, cancel := context.WithCancel(ctx) // ends the clients before the server
	defer cancel()
	before, err := prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	without, err := s.memoryAfterGC(ctx)
	if err != nil {
		return nil, err
	}
	if err := begin(ctx, s, before); err != nil {
		return nil, err
	}
	with, err := s.memoryAfterGC(ctx)
	if err != nil {
		return nil, err
	}
	base := report.Measured("", "", "", without...).P50
	for i := range with {
		with[i] = (with[i] - base) / 1e3 / float64(n)
	}
	return with, nil
}

// highLimits are settings for many clients at once.
var highLimits = []string{
	"MCP_MAX_CONNECTIONS=2000", "GLOVEBOX_MAX_STREAMS=1500", "GLOVEBOX_MAX_CALLS=1000", "GLOVEBOX_MAX_MCP_SESSIONS=2000",
}

// memoryAfterGC measures the server several times, each time after enough work for its garbage
// collector to run.
func (s *server) memoryAfterGC(ctx context.Context) ([]float64, error) {
	churn := newPoster(s.url, map[string]string{"Accept": both}, []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`), `"tools"`)
	defer churn.close()
	var weights []float64
	for turn := range 7 {
		for range 120 { // some 40 MB of garbage
			if _, err := churn.post(ctx); err != nil {
				return nil, err
			}
		}
		if turn < 2 {
			continue
		}
		m, err := s.memory()
		if err != nil {
			return nil, err
		}
		weights = append(weights, float64(m.PSS))
	}
	return weights, nil
}
