//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/bench/proc"
)

// entry is a server in an mcp.json for both Glovebox and mcporter.
type entry struct {
	Command   string            `json:"command"`
	Args      []string          `json:"args"`
	Env       map[string]string `json:"env,omitempty"`
	Lifecycle string            `json:"lifecycle,omitempty"` // mcporter's, which it keeps servers by
}

// writeServers writes an mcp.json.
func (b *bench) writeServers(name string, servers map[string]entry) (string, error) {
	text, err := json.Marshal(map[string]any{"mcpServers": servers, "imports": []string{}}) // of no other client's
	if err != nil {
		return "", err
	}
	path := filepath.Join(b.dir, name)
	return path, os.WriteFile(path, text, 0o600)
}

// mcporter is an mcporter client with its own home directory.
type mcporter struct {
	home   string
	argv   []string // the program, with the file of servers
	daemon *exec.Cmd
	log    tail // of the daemon
}

// mcporter returns a client for an mcp.json. Its home is not below the run's directory
// because the path of its socket must be short.
func (b *bench) mcporter(servers string) (*mcporter, error) {
	program := b.peers.module("mcporter", "dist/cli.js")
	if _, err := os.Stat(program); err != nil {
		return nil, err
	}
	home, err := os.MkdirTemp("", "mcporter-")
	if err != nil {
		return nil, err
	}
	return &mcporter{home: home, argv: []string{b.peers.node(), program, "--config", servers}}, nil
}

// command returns mcporter's command line.
func (m *mcporter) command(words ...string) []string { return slices.Concat(m.argv, words) }

func (m *mcporter) environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "HOME=") || strings.HasPrefix(s, "XDG_") || strings.HasPrefix(s, "MCPORTER_")
	})
	return append(env, "HOME="+m.home)
}

// keep starts mcporter's daemon. Otherwise the first command would start it, and it would
// outlive the run.
func (m *mcporter) keep(ctx context.Context) error {
	m.daemon = prepare(ctx, m.command("daemon", "start", "--foreground")...)
	m.daemon.Env = m.environment()
	m.daemon.Stdout, m.daemon.Stderr = &m.log, &m.log
	if err := m.daemon.Start(); err != nil {
		m.daemon = nil
		return err
	}
	for begun := time.Now(); ; {
		sockets, err := filepath.Glob(filepath.Join(m.home, ".mcporter", "daemon", "*.sock"))
		if err != nil || len(sockets) > 0 {
			return err
		}
		if time.Since(begun) > callLimit {
			return fmt.Errorf("mcporter daemon: no socket after %v: %s", callLimit, &m.log)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// close stops the daemon with its servers and removes the home.
func (m *mcporter) close() error {
	var err error
	if m.daemon != nil {
		var tree []int
		if tree, err = proc.Tree(m.daemon.Process.Pid); err == nil {
			left := proc.Identify(tree)
			m.daemon.Cancel()
			m.daemon.Wait() // ended by a signal
			err = reap(left)
		}
	}
	return errors.Join(err, os.RemoveAll(m.home))
}
