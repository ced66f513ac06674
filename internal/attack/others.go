//go:build linux

package attack

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// boxOf makes a box of an owner. end stops it.
func (t *trial) boxOf(ctx context.Context, s *server, owner string) (id string, end func(), err error) {
	id = owner + "-" + t.nonce
	res, err := s.send(ctx, request{token: s.tokens[owner], body: tool("execute_command", map[string]any{"session_id": id, "command": "echo " + t.nonce})})
	if err != nil || res.status != http.StatusOK || !strings.Contains(res.body, t.nonce) {
		return id, nil, fmt.Errorf("make a box: %d, %w: %s", res.status, err, printable(res.body))
	}
	return id, func() {
		// The judge notices a box that is left.
		_, _ = s.send(context.WithoutCancel(ctx), request{token: s.tokens[owner], body: tool("stop_session", map[string]any{"session_id": id})})
	}, nil
}

// guardedBox returns a new box of owner on the guarded server, and a function that ends it.
func (t *trial) guardedBox(ctx context.Context, owner string) (s *server, id string, end func(), err error) {
	if s, err = t.guarded(ctx); err != nil {
		return nil, "", nil, err
	}
	id, end, err = t.boxOf(ctx, s, owner)
	return s, id, end, err
}

// othersServed attacks a server and checks that meanwhile /health and a call in a box of
// alice are answered in time, and that the server takes no more than memorySlack. It ends
// the attack when one is not.
func (t *trial) othersServed(ctx context.Context, s *server, attack func(ctx context.Context) error) error {
	id, end, err := t.boxOf(ctx, s, "alice")
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := s.memory()
	attacked := make(chan error, 1)
	go func() { attacked <- attack(ctx) }()
	answers := map[string]func() (answer, error){
		"/health": func() (answer, error) { return s.send(ctx, request{method: http.MethodGet, path: "/health"}) },
		"a call of another owner": func() (answer, error) {
			return s.send(ctx, request{token: s.tokens["alice"], body: tool("execute_command", map[string]any{"session_id": id, "command": "echo " + t.nonce})})
		},
	}
	for running := true; running; {
		select {
		case err = <-attacked:
			running = false // ask once more
		case <-time.After(askEvery):
		}
		for name, ask := range answers {
			if !t.isBroken() {
				t.answersInTime(name, ask)
			}
		}
		if took := s.memory() - before; took > memorySlack {
			t.broke("the server took %d MiB", took>>20)
			before += took
		}
		if t.isBroken() { // what is asked after cancel is not served either
			cancel()
			if running {
				err = <-attacked
			}
			return err
		}
	}
	return err
}

// answersInTime asks and checks that the answer comes in time; a single late answer may be
// due to other programs.
func (t *trial) answersInTime(name string, ask func() (answer, error)) {
	for attempt := 1; ; attempt++ {
		start := time.Now()
		res, err := ask()
		took := time.Since(start)
		switch {
		case err != nil || res.status != http.StatusOK:
			t.broke("%s is not served: %d, %v, %s", name, res.status, err, printable(res.body))
			return
		case took <= t.allowed:
			t.held(1)
			return
		case attempt == 2 || took > muchTooLate*t.allowed:
			t.late("%s is answered after %v; %v are allowed", name, took.Round(time.Millisecond), t.allowed)
			return
		}
	}
}

// memory returns the server's resident bytes; 0 if it is not a process of this run.
func (s *server) memory() int64 {
	if s.cmd == nil {
		return 0
	}
	return statusKB(fmt.Sprint(s.cmd.Process.Pid), "VmRSS") << 10
}
