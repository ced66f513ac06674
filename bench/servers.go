//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/glovebox-dev/glovebox/bench/proc"
	"github.com/glovebox-dev/glovebox/bench/report"
)

// manyServers is how many servers are offered as one.
const manyServers = 20

// serversScenario measures the memory of glovebox mcp serve connected to many used
// servers, beside mcporter serve, without the servers themselves.
func serversScenario(ctx context.Context, b *bench) error {
	program, err := b.buildEcho(ctx)
	if err != nil {
		return err
	}
	all := make(map[string]entry)
	for i := range manyServers {
		// The variable tells them apart: each is a definition of its own.
		all[fmt.Sprintf("s%d", i)] = entry{Command: program, Args: []string{"stdio"}, Env: map[string]string{"NUMBER": strconv.Itoa(i)}, Lifecycle: "keep-alive"}
	}
	servers, err := b.writeServers("servers.json", all)
	if err != nil {
		return err
	}
	peer := &peer{id: "peer.mcporter.serve", name: fmt.Sprintf("mcporter serve with %d servers (PSS)", manyServers)}
	var keeps []float64 // of the peer, its daemon alone
	peer.once = func(ctx context.Context) (weight float64, err error) {
		client, err := b.mcporter(servers)
		if err != nil {
			return 0, err
		}
		defer client.close()
		if err := client.keep(ctx); err != nil {
			return 0, err
		}
		front, close, err := b.offer(ctx, client.environment(), client.command("serve", "--stdio"))
		if err != nil {
			return 0, err
		}
		defer close()
		daemon, err := memoryAboveBase(client.daemon, manyServers)
		if err != nil {
			return 0, err
		}
		serve, err := memoryAboveBase(front, 0)
		keeps = append(keeps, daemon)
		return daemon + serve, err
	}
	beside := alternately(ctx, peer)
	var ours []float64
	for range b.n(3, 1) {
		weight, err := func() (float64, error) {
			front, close, err := b.offer(ctx, b.environment("servers"), []string{b.binary, "mcp", "--config", servers, "--trust", "serve"})
			if err != nil {
				return 0, err
			}
			defer close()
			return memoryAboveBase(front, manyServers)
		}()
		if err != nil {
			return fmt.Errorf("glovebox mcp serve: %w", err)
		}
		ours = append(ours, weight)
		beside.take(ctx)
	}
	other := beside.of(peer)
	if other.Missing == "" {
		other.Unit = "MB"
		other = other.Noting("two processes, of which the server-keeping daemon %.1f MB", report.Measured("", "", "", keeps...).P50)
	}
	b.add(report.Measured("servers.serve", fmt.Sprintf("mcp serve with %d servers (PSS)", manyServers), "MB", ours...).Against(other), other)
	return nil
}

// offer starts a program that offers the servers as one over stdio, and uses each server
// once.
func (b *bench) offer(ctx context.Context, env, argv []string) (*exec.Cmd, func() error, error) {
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	session, cmd, err := overStdio(ctx, env, argv)
	if err != nil {
		return nil, nil, err
	}
	used := 0
	for tool, err := range session.Tools(limited, nil) {
		if err == nil {
			err = says(limited, session.CallTool, tool.Name, map[string]any{"text": "hello"}, "hello")
		}
		if err != nil {
			session.Close()
			return nil, nil, err
		}
		used++
	}
	if used != manyServers {
		session.Close()
		return nil, nil, fmt.Errorf("%s offers %d tools of %d servers", argv[0], used, manyServers)
	}
	if err := sleep(ctx, quiet); err != nil {
		session.Close()
		return nil, nil, err
	}
	return cmd, session.Close, nil
}

// memoryAboveBase returns the memory of a process in MB, without its n children. It returns an
// error if their number differs.
func memoryAboveBase(cmd *exec.Cmd, n int) (float64, error) {
	tree, err := proc.Tree(cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	if got := len(tree) - 1; got != n {
		return 0, fmt.Errorf("%s has started %d processes, want %d", cmd.Path, got, n)
	}
	m, err := proc.MemoryOf(tree[:1])
	return float64(m.PSS) / 1e6, err
}
