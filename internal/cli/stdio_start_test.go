//go:build linux

package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A slowStart is a glovebox stdio on a fresh state directory whose Python interpreter
// waits for the test.
type slowStart struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner
	log     strings.Builder
	gate    string // the interpreter waits for this file
}

// startSlowly starts one; then is the shell line that the interpreter finally runs.
func startSlowly(t *testing.T, then string) *slowStart {
	t.Helper()
	dir := t.TempDir()
	s := &slowStart{t: t, gate: filepath.Join(dir, "gate")}
	python := filepath.Join(dir, "python3")
	script := fmt.Sprintf("#!/bin/sh\nwhile [ ! -e %s ]; do sleep 0.05; done\n%s\n", s.gate, then)
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = &exec.Cmd{
		Path: exe, Args: []string{"glovebox", "stdio", "--python", python, "--state-dir", filepath.Join(dir, "state"), "--pool-size", "0"},
		Stderr: &s.log, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.answers = bufio.NewScanner(out)
	s.answers.Buffer(nil, 4<<20)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(90*time.Second, func() { s.cmd.Process.Kill() })
	t.Cleanup(func() {
		limit.Stop()
		s.cmd.Process.Kill()
		s.cmd.Wait() // an error if the test has waited
	})
	return s
}

func (s *slowStart) ask(id, method, params string) {
	fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%q,"method":%q,"params":%s}`+"\n", id, method, params)
}

// answer reads the next answer, which must be the one to id.
func (s *slowStart) answer(id string) (result, fault json.RawMessage) {
	s.t.Helper()
	if !s.answers.Scan() {
		s.t.Fatalf("no answer to %s", id)
	}
	var m struct {
		ID            string
		Result, Error json.RawMessage
	}
	if err := json.Unmarshal(s.answers.Bytes(), &m); err != nil || m.ID != id {
		s.t.Fatalf("answer to %s: got %.500s", id, s.answers.Text())
	}
	return m.Result, m.Error
}

func (s *slowStart) openGate() {
	s.t.Helper()
	if err := os.WriteFile(s.gate, nil, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

const (
	discoverParams   = `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}}`
	initializeParams = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`
	callParams       = `{"name":"execute_code","arguments":{"code":"print(6 * 7)"}}`
)

// TestStdio_AnswersBeforeInspectingInterpreters: on a fresh state directory, the server answers
// the first requests of a client before it has inspected the interpreters; a call waits
// for them.
func TestStdio_AnswersBeforeInspectingInterpreters(t *testing.T) {
	const real = "/usr/bin/python3"
	if _, err := os.Stat(real); err != nil {
		t.Skip(err)
	}
	begun := time.Now()
	s := startSlowly(t, "exec "+real+` "$@"`)
	s.ask("discover", "server/discover", discoverParams)
	if _, fault := s.answer("discover"); fault != nil {
		t.Errorf("discover: %s", fault)
	}
	t.Logf("the first answer came after %v", time.Since(begun).Round(time.Millisecond))
	s.ask("initialize", "initialize", initializeParams)
	if _, fault := s.answer("initialize"); fault != nil {
		t.Errorf("initialize: %s", fault)
	}
	fmt.Fprintln(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	s.ask("list", "tools/list", `{}`)
	if list, _ := s.answer("list"); !strings.Contains(string(list), "execute_code") {
		t.Errorf("the tools: got %s", list)
	}
	s.ask("call", "tools/call", callParams)
	s.ask("ping", "ping", `{}`)
	s.answer("ping") // and not the call
	s.openGate()
	if got, fault := s.answer("call"); !strings.Contains(string(got), "42") {
		t.Errorf("the call that waited: got %s %s", got, fault)
	}
	s.in.Close()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the end: %v\n%s", err, s.log.String())
	}
}

// TestStdio_ReportsFailedStart: if the start fails, a waiting call gets the reason, and
// the server exits with it.
func TestStdio_ReportsFailedStart(t *testing.T) {
	s := startSlowly(t, "echo no such thing as a python >&2; exit 3")
	s.ask("initialize", "initialize", initializeParams)
	s.answer("initialize")
	s.ask("call", "tools/call", callParams)
	s.ask("ping", "ping", `{}`)
	s.answer("ping")
	s.openGate()
	result, fault := s.answer("call")
	if got := string(result) + string(fault); !strings.Contains(got, "could not start") || !strings.Contains(got, "python3") {
		t.Errorf("the call that waited: got %s", got)
	}
	for s.answers.Scan() {
		t.Errorf("after the answer: %s", s.answers.Text())
	}
	s.cmd.Wait() // its error is the exit code
	if code := s.cmd.ProcessState.ExitCode(); code != ExitFailure || !strings.Contains(s.log.String(), "python3") {
		t.Errorf("got exit code %d, want %d; log\n%s", code, ExitFailure, s.log.String())
	}
}

// TestStdio_ClientGoneBeforeStart: a client may be gone before there are boxes.
func TestStdio_ClientGoneBeforeStart(t *testing.T) {
	const real = "/usr/bin/python3"
	if _, err := os.Stat(real); err != nil {
		t.Skip(err)
	}
	s := startSlowly(t, "exec "+real+` "$@"`)
	s.ask("initialize", "initialize", initializeParams)
	s.answer("initialize")
	s.in.Close()
	s.openGate()
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the end: %v\n%s", err, s.log.String())
	}
}
