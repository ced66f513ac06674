//go:build linux

package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// hup sends a SIGHUP and waits until the log file has another line with each text.
func (s *serverProcess) hup(file string, texts ...string) {
	s.t.Helper()
	before, _ := os.ReadFile(file)
	s.cmd.Process.Signal(syscall.SIGHUP)
	var log, missing string
	complete := func() bool {
		all, _ := os.ReadFile(file)
		log, missing = string(all), ""
		if len(all) >= len(before) {
			log = log[len(before):]
		}
		for _, text := range texts {
			if !strings.Contains(log, text) {
				missing = text
			}
		}
		return missing == ""
	}
	if !polltest.Soon(20*time.Second, complete) {
		s.t.Fatalf("after SIGHUP the log has no %q:\n%s", missing, log)
	}
}

func (s *serverProcess) limit(name string) float64 {
	s.t.Helper()
	_, _, body := s.get("/mcp", "application/json")
	var status map[string]any
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		s.t.Fatal(err)
	}
	n, _ := status[name].(float64)
	return n
}

// On SIGHUP the server applies the settings that can change, names those that need a
// restart, and keeps the old ones if the new ones are invalid.
func TestServe_Reloads(t *testing.T) {
	dir := t.TempDir()
	file, log := filepath.Join(dir, "glovebox.json"), filepath.Join(dir, "log")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"max-sessions": 3}`)
	s := startServer(t, filepath.Join(dir, "state"), "--pool-size", "0", "--config", file, "--log-file", log, "--max-contexts", "5")
	s.awaitReady()
	c := s.connect()
	if out, err := python(t.Context(), c, "a", "x = 42; print(x)"); err != nil || !strings.Contains(out, "42") {
		t.Fatalf("got %q, %v", out, err)
	}

	write(`{"max-sessions": 7, "max-contexts": 9, "drain-timeout": "3s", "log-level": "debug"}`)
	s.hup(log,
		`msg="reload: setting changed" setting=max-sessions from=3 to=7`,
		`msg="reload: setting changed" setting=log-level from=auto to=debug`,
		`msg="reload: setting needs a restart" setting=drain-timeout from=30s to=3s`,
		`msg="reload: file reloaded" file="log file"`)
	if n := s.limit("max_sessions"); n != 7 {
		t.Errorf("max_sessions: got %v, want 7", n)
	}
	if n := s.limit("max_contexts"); n != 5 {
		t.Errorf("max_contexts: got %v, want the flag's 5", n)
	}
	if text, _ := os.ReadFile(log); !strings.Contains(string(text), "level=DEBUG") {
		t.Error("the log has no line of the new level")
	}

	write(`{"max-sessions": "many", "log-level": "loud"}`)
	s.hup(log, `level=ERROR msg="reload: settings unchanged"`, file+": max-sessions must be a valid integer, got 'many'", file+": log-level must be one of")
	write(`{"max-sessions": 1`)
	s.hup(log, `level=ERROR msg="reload: settings unchanged"`, file)
	write(`{"max-sessions": 2, "session-timeout": "30s", "cleanup-interval": "10s"}`)
	s.hup(log, `level=ERROR msg="reload: settings unchanged"`, "MSB_CLEANUP_INTERVAL")
	if n := s.limit("max_sessions"); n != 7 {
		t.Errorf("max_sessions after settings that cannot be used: got %v, want 7", n)
	}
	if out, err := python(t.Context(), c, "a", "print(x)"); err != nil || !strings.Contains(out, "42") {
		t.Errorf("the box: got %q, %v", out, err)
	}

	// As logrotate does.
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	write(`{"max-sessions": 8}`)
	s.hup(log, "setting=max-sessions from=7 to=8", `setting=log-level from=debug to=auto`)

	s.cmd.Process.Signal(syscall.SIGTERM)
	if code, log := s.wait(30 * time.Second); code != 0 {
		t.Errorf("got exit code %d\n%s", code, log)
	}
}

// A server ends when its terminal is closed.
func TestServe_EndsWithTerminal(t *testing.T) {
	master, slave := terminalPair(t)
	defer master.Close()
	file := filepath.Join(t.TempDir(), "log")
	s := launch(t, endpoint, func(cmd *exec.Cmd) {
		cmd.Stdin = slave
		cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	}, "glovebox", "serve", "--port", "0", "--state-dir", t.TempDir(), "--pool-size", "0", "--log-file", file)
	slave.Close()
	s.awaitReady()
	s.hup(file, "reload: no setting changed") // a user's wish
	if status, _, _ := s.get("/ready", "*/*"); status != 200 {
		t.Errorf("after a SIGHUP of a user: got %d", status)
	}
	master.Close() // the end of the terminal
	if code, log := s.wait(30 * time.Second); code != 0 || !strings.Contains(log, "interrupted by SIGHUP") {
		t.Errorf("got exit code %d\n%s", code, log)
	}
}

// A server that uses only standard input and output ends at a SIGHUP.
func TestStdio_EndsAtSIGHUP(t *testing.T) {
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	state := t.TempDir()
	s := launch(t, regexp.MustCompile("server is ready"), func(cmd *exec.Cmd) { cmd.Stdin = in },
		"glovebox", "stdio", "--log-level", "info", "--pool-size", "0", "--state-dir", state)
	in.Close()
	s.cmd.Process.Signal(syscall.SIGHUP)
	if code, log := s.wait(30 * time.Second); code != 0 || !strings.Contains(log, "interrupted by SIGHUP") {
		t.Errorf("got exit code %d\n%s", code, log)
	}
}
