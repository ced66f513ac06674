//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/bench/report"
)

// callScenario measures whole commands that start a server, call a tool and end the
// server: glovebox mcp call beside mcporter call.
func callScenario(ctx context.Context, b *bench) error {
	const id, name = "call.stdio", "mcp call of a program, the whole command"
	program := b.peers.module("@modelcontextprotocol/server-everything", "dist/index.js")
	if _, err := os.Stat(program); err != nil {
		b.add(report.Absent(id, name, "cannot run here: "+err.Error()))
		return nil
	}
	argv := []string{b.peers.node(), program}
	servers, err := b.writeServers("call.json", map[string]entry{"everything": {Command: argv[0], Args: argv[1:]}})
	if err != nil {
		return err
	}
	const said = "Echo: hello"
	ours := func() (float64, error) {
		return timed(ctx, said, b.environment("call"),
			b.binary, "mcp", "--config", servers, "--trust", "call", "everything.echo", "message=hello")
	}
	if _, err := ours(); err != nil { // what it learns of the server, later ones know
		return fmt.Errorf("glovebox mcp call: %w", err)
	}
	client, missing := b.mcporter(servers)
	if missing == nil {
		defer client.close()
	}
	peer := &peer{id: "peer.mcporter", name: "mcporter call, the whole command", once: func(ctx context.Context) (float64, error) {
		if missing != nil {
			return 0, missing
		}
		return timed(ctx, said, client.environment(), client.command("call", "everything.echo", "message=hello")...)
	}}
	beside := alternately(ctx, peer)
	var whole, server []float64
	for range b.n(20, 3) {
		took, err := ours()
		if err != nil {
			return fmt.Errorf("glovebox mcp call: %w", err)
		}
		whole = append(whole, took)
		beside.take(ctx)
		if took, err = answersAfter(ctx, said, argv); err != nil {
			return fmt.Errorf("call the server without a program between: %w", err)
		}
		server = append(server, took)
	}
	other := beside.of(peer)
	b.add(
		report.Measured(id, name, "ms", whole...).Against(other).AtMost(report.Ratio, 0.5),
		report.Measured("call.server", "of which the server, from its start to its answer", "ms", server...).As(report.Part),
		other,
	)
	return nil
}

// answersAfter measures from the start of a server to the answer of its tool echo.
func answersAfter(ctx context.Context, want string, argv []string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	begun := time.Now()
	session, _, err := overStdio(ctx, nil, argv)
	if err != nil {
		return 0, err
	}
	defer session.Close()
	err = says(ctx, session.CallTool, "echo", map[string]any{"message": "hello"}, want)
	return ms(time.Since(begun)), err
}

// overStdio starts a program and connects the SDK's client to it. A nil env stands for
// this program's environment. Closing the session ends the program.
func overStdio(ctx context.Context, env, argv []string) (*mcp.ClientSession, *exec.Cmd, error) {
	return overPatientStdio(ctx, env, argv, time.Second)
}

// overPatientStdio is overStdio for a program that takes up to patience to end.
func overPatientStdio(ctx context.Context, env, argv []string, patience time.Duration) (*mcp.ClientSession, *exec.Cmd, error) {
	cmd := prepare(ctx, argv...)
	cmd.Env = env
	said := &tail{}
	cmd.Stderr = said
	session, err := connectPlainly(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: patience})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w: %s", argv[0], err, said)
	}
	return session, cmd, nil
}
