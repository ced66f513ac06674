//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/glovebox-dev/glovebox/bench/proc"
	"github.com/glovebox-dev/glovebox/bench/report"
)

// listScenario measures the server without boxes: list_contexts over HTTP, alternating
// with the echo tool of plain Go and TypeScript SDK servers and with the same client
// program: without a handshake, in MCP sessions and in the newest revision, with 1 and 32
// callers.
func listScenario(ctx context.Context, b *bench) error {
	s, err := b.servePlain(ctx, plain)
	if err != nil {
		return err
	}
	defer s.stop()
	_, id, _, err := s.create(ctx, "listed")
	if err != nil {
		return err
	}
	goSDK, goErr := b.goEcho(ctx)
	defer goSDK.close()
	tsSDK, tsErr := b.tsEcho(ctx)
	defer tsSDK.close()
	echo := map[string]any{"text": "hello"}
	for _, way := range []struct {
		id, name string
		open     opener
		// The path of the peers, and their callers for older revisions.
		path  string
		theTS opener
	}{
		{"bare", "no handshake", bareCaller, "/bare", bareCaller},
		{"session", "MCP sessions", sessionCaller, "/session", sessionCaller},
		{"modern", "newest revision", modernCaller, "/bare", bareCaller},
	} {
		for _, n := range []int{1, 32} {
			callers := "1 caller"
			if n > 1 {
				callers = fmt.Sprintf("%d callers", n)
			}
			suffix := fmt.Sprintf("%s.%d", way.id, n)
			name := way.name + ", " + callers
			ours, err := connectCrowd(ctx, n, way.open, s.url, "list_contexts", map[string]any{}, id)
			if err != nil {
				return err
			}
			sides := []*side{
				{pid: s.cmd.Process.Pid, crowd: ours},
				{err: goErr, id: "peer.gosdk." + suffix, name: "Go SDK's echo, " + name},
				{err: tsErr, id: "peer.tssdk." + suffix, name: "TypeScript SDK's echo, " + name},
			}
			if goErr == nil {
				sides[1].pid = goSDK.d.cmd.Process.Pid
				sides[1].crowd, sides[1].err = connectCrowd(ctx, n, way.open, goSDK.url+way.path, "echo", echo, `"hello"`)
			}
			if tsErr == nil {
				sides[2].pid = tsSDK.d.cmd.Process.Pid
				sides[2].crowd, sides[2].err = connectCrowd(ctx, n, way.theTS, tsSDK.url+way.path, "echo", echo, `"hello"`)
			}
			err = inTurns(ctx, sides, b.n(5, 2), b.pause(time.Second, 400*time.Millisecond))
			for _, side := range sides {
				side.crowd.close(ctx)
			}
			if err != nil {
				return err
			}
			b.add(listRows(suffix, name, sides[0], sides[1], sides[2])...)
		}
	}
	return s.end(ctx, id)
}

// listRows returns our rows with ratios to both peers, and the peers' rows.
func listRows(suffix, name string, ours, goSDK, tsSDK *side) []report.Figure {
	rate := func(id, name string, s *side) report.Figure {
		if s.err != nil {
			return report.Absent(id, name, "cannot run here: "+s.err.Error())
		}
		return report.Measured(id, name, "calls/s", s.rates...).MoreIsBetter()
	}
	peer := func(s *side) report.Figure {
		f := rate(s.id, s.name, s).As(report.Peer)
		if s.err == nil {
			f = f.Noting("%.2f ms of processor time a call", report.Measured("", "", "", s.cpu...).P50)
		}
		return f
	}
	besideGo, besideTS := peer(goSDK), peer(tsSDK)
	return []report.Figure{
		rate("list."+suffix, "list_contexts, "+name, ours).Against(besideGo).AtLeast(report.Ratio, 1),
		report.Measured("list."+suffix+".call", "of which one call", "ms", ours.took...).As(report.Part),
		report.Measured("list."+suffix+".cpu", "of which processor time of the server", "ms", ours.cpu...).As(report.Part),
		rate("list."+suffix+".ts", "list_contexts, "+name+", beside TypeScript", ours).Against(besideTS).AtLeast(report.Ratio, 3),
		besideGo, besideTS,
	}
}

// opener returns a caller of a tool at an address.
type opener func(ctx context.Context, url, tool string, args map[string]any, want string) (*poster, error)

// crowd is a set of concurrent callers, each with its own connection and, if any, session.
type crowd []*poster

// connectCrowd creates n callers and warms each up with a few calls.
func connectCrowd(ctx context.Context, n int, open opener, url, tool string, args map[string]any, want string) (crowd, error) {
	var c crowd
	for range n {
		p, err := open(ctx, url, tool, args, want)
		if err != nil {
			c.close(ctx)
			return nil, err
		}
		c = append(c, p)
		for range 1 + 200/n {
			if _, err := p.post(ctx); err != nil {
				c.close(ctx)
				return nil, err
			}
		}
	}
	return c, nil
}

// close ends the sessions and closes the connections.
func (c crowd) close(ctx context.Context) {
	for _, p := range c {
		p.end(ctx)
	}
}

func (c crowd) callers() []caller {
	var all []caller
	for _, p := range c {
		all = append(all, p.post)
	}
	return all
}

// side is a crowd with its server and measurements.
type side struct {
	crowd
	id, name string
	pid      int   // of the server
	err      error // it cannot run
	rates    []float64
	took     []float64
	cpu      []float64 // of the server, a call, in each turn
}

// turn runs the crowd for d.
func (s *side) turn(ctx context.Context, d time.Duration) error {
	before, err := usage(s.pid)
	if err != nil {
		return err
	}
	rate, took, err := storm(ctx, s.crowd.callers(), d)
	if err != nil {
		return err
	}
	after, err := usage(s.pid)
	if err != nil {
		return err
	}
	s.rates, s.took = append(s.rates, rate), append(s.took, took...)
	s.cpu = append(s.cpu, ms(after.Since(before))/float64(max(1, len(took))))
	return nil
}

// usage returns the processor time of a process and its descendants.
func usage(pid int) (proc.Usage, error) {
	tree, err := proc.Tree(pid)
	if err != nil {
		return nil, err
	}
	return proc.UsageOf(tree)
}

// inTurns runs each crowd for d in turn, n times.
func inTurns(ctx context.Context, sides []*side, n int, d time.Duration) error {
	for range n {
		for i, s := range sides {
			if s.err != nil {
				continue
			}
			err := s.turn(ctx, d)
			if err != nil && (i == 0 || ctx.Err() != nil) {
				return err
			}
			s.err = err
		}
	}
	return nil
}

// echo is a plain SDK server.
type echo struct {
	d   *dialogue
	url string
}

// buildEcho builds the Go SDK's plain server.
func (b *bench) buildEcho(ctx context.Context) (program string, err error) {
	program = filepath.Join(b.dir, "echo")
	build := prepare(ctx, "go", "build", "-o", program, "./peers/echo")
	build.Dir = b.here
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build peers/echo: %w: %s", err, lastLine(string(text)))
	}
	return program, nil
}

// goEcho builds and starts the Go SDK's plain server.
func (b *bench) goEcho(ctx context.Context) (*echo, error) {
	program, err := b.buildEcho(ctx)
	if err != nil {
		return nil, err
	}
	return startEcho(ctx, program)
}

// tsEcho starts the TypeScript SDK's plain server.
func (b *bench) tsEcho(ctx context.Context) (*echo, error) {
	return startEcho(ctx, b.peers.node(), filepath.Join(b.here, "peers", "echo.mjs"))
}

// startEcho starts a server that prints its address first.
func startEcho(ctx context.Context, argv ...string) (*echo, error) {
	d, err := converse(ctx, argv...)
	if err != nil {
		return nil, err
	}
	if !d.out.Scan() {
		err := errors.Join(d.out.Err(), d.close(), io.EOF)
		return nil, fmt.Errorf("start %s: %w: %s", filepath.Base(argv[0]), err, lastLine(d.stderr.String()))
	}
	return &echo{d: d, url: d.out.Text()}, nil
}

// close ends the server, if any.
func (e *echo) close() {
	if e != nil {
		e.d.close()
	}
}
