//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopDelay is the time between SIGTERM and SIGKILL. podman removes its container
// meanwhile.
const stopDelay = 10 * time.Second

// prepare returns a command that ends with ctx and with this program.
func prepare(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	return cmd
}

// timed runs a program and returns its duration in milliseconds. A nil env stands for this
// program's environment. It returns an error unless the output is want.
func timed(ctx context.Context, want string, env []string, argv ...string) (float64, error) {
	took, got, err := output(ctx, env, argv...)
	if err != nil {
		return 0, err
	}
	if got != want {
		return 0, fmt.Errorf("it printed %.100q, want %q", got, want)
	}
	return took, nil
}

// printed runs a program and returns the number that it prints. A nil env stands for this
// program's environment.
func printed(ctx context.Context, env []string, argv ...string) (float64, error) {
	_, got, err := output(ctx, env, argv...)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(got, 64)
}

// output runs a program and returns its duration in milliseconds and its standard output.
func output(ctx context.Context, env []string, argv ...string) (took float64, stdout string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	cmd := prepare(ctx, argv...)
	cmd.Env = env
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	begun := time.Now()
	err = cmd.Run()
	took = ms(time.Since(begun))
	if err != nil {
		return 0, "", fmt.Errorf("%w: %s", err, lastLine(stderr.String()))
	}
	return took, strings.TrimSpace(out.String()), nil
}

// lastLine returns the last line of a traceback or usage, which names the error.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// dialogue is a program that answers each line of input with a duration in milliseconds.
type dialogue struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr bytes.Buffer
}

func converse(ctx context.Context, argv ...string) (*dialogue, error) {
	d := &dialogue{cmd: prepare(ctx, argv...)}
	// Without it, Debian's kernels warn about frozen modules.
	d.cmd.Env = append(os.Environ(), "PYDEVD_DISABLE_FILE_VALIDATION=1")
	d.cmd.Stderr = &d.stderr
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = bufio.NewScanner(out)
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	return d, nil
}

// ask sends one request and returns the milliseconds of the answer.
func (d *dialogue) ask(request string) (float64, error) {
	_, err := io.WriteString(d.in, request+"\n")
	if err != nil || !d.out.Scan() {
		err = errors.Join(err, d.out.Err(), d.close())
		return 0, fmt.Errorf("it ended: %w: %s", errors.Join(err, io.EOF), lastLine(d.stderr.String()))
	}
	return strconv.ParseFloat(strings.TrimSpace(d.out.Text()), 64)
}

// close closes the program's input and waits for its end.
func (d *dialogue) close() error {
	d.in.Close()
	timer := time.AfterFunc(stopDelay, func() { syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL) })
	defer timer.Stop()
	return d.cmd.Wait()
}
