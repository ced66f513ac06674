package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

const (
	// defaultGrace is the time between TERM and KILL.
	defaultGrace = 2 * time.Second
	maxGrace     = time.Minute
	// pipeDelay is how long a finished command waits for other processes that hold its
	// output.
	pipeDelay = 200 * time.Millisecond
	// maxArgs bounds the arguments of one command.
	maxArgs = 4096
)

func execCommand(o *op, x protocol.Exec) (any, error) {
	a := o.conn.a
	cfg := a.cfg.Load()
	if x.Background && x.Stdin {
		return nil, failf(protocol.CodeInvalid, "a background process has no standard input")
	}
	if x.Background && x.ToolCalls {
		return nil, failf(protocol.CodeInvalid, "a background process cannot call tools")
	}
	if x.Background && !a.procs.reserve() {
		return nil, failf(protocol.CodeBusy, "%d background processes are already running", maxProcesses)
	}
	var c *callPermit
	if x.ToolCalls {
		var err error
		if c, err = a.permitCalls(o, false); err != nil {
			return nil, err
		}
		defer c.end()
	}
	a.forgetFailedLookups()
	p, err := a.launch(cfg, x, c)
	var nf *notRunnable
	if errors.As(err, &nf) {
		if x.Background {
			a.procs.release()
			return nil, failf(protocol.CodeStart, "%s", nf.text)
		}
		return o.notRunnable(nf, x.Capture)
	}
	if err != nil {
		if x.Background {
			a.procs.release()
		}
		return nil, err
	}
	if x.Background {
		return a.procs.adopt(p, cfg.memory, &a.drains, duration(x.TimeoutMS, 0, maxTimeout), duration(x.GraceMS, defaultGrace, maxGrace)), nil
	}
	return o.foreground(cfg, p, x)
}

// notRunnable is a command that could not be started because of the request.
type notRunnable struct {
	code int
	text string
}

func (e *notRunnable) Error() string { return e.text }

// notRunnable returns the result that a shell would.
func (o *op) notRunnable(nf *notRunnable, c protocol.Capture) (any, error) {
	stderr := newCapture(c, nil, func(b []byte) error { return o.send(protocol.Stderr, b, o.conn.ctx.Done()) })
	stderr.write([]byte(nf.text + "\n"))
	return protocol.ExecResult{Code: nf.code, Stderr: stderr.finish()}, nil
}

// launch starts the process of a command. c may be nil.
func (a *agent) launch(cfg *settings, x protocol.Exec, c *callPermit) (*process, error) {
	argv, err := argvOf(x)
	if err != nil {
		return nil, err
	}
	env := mergeEnv(a.programEnv.Load().environ(cfg.launch.env), x.Env)
	if c != nil {
		env = c.environ(env)
	}
	dir := x.Dir
	if dir == "" {
		dir = cfg.home
	} else if !filepath.IsAbs(dir) {
		dir = filepath.Join(cfg.home, dir)
	}
	if len(dir) > 4096 || strings.IndexByte(dir, 0) >= 0 {
		return nil, failf(protocol.CodeInvalid, "directory %.100q is not a path", dir)
	}
	var path string
	err = cfg.user.Do(func() error {
		if fi, err := os.Stat(dir); err != nil {
			return failf(protocol.CodeNotFound, "enter directory %q: %v", dir, errors.Unwrap(err))
		} else if !fi.IsDir() {
			return failf(protocol.CodeInvalid, "enter directory %q: not a directory", dir)
		}
		path, err = lookPath(argv[0], dir, env)
		return err
	})
	if err != nil {
		return nil, err
	}
	cmd := cfg.launch.command(argv)
	cmd.Path, cmd.Env, cmd.Dir = path, env, dir
	p := &process{cmd: cmd, command: commandLine(x), done: make(chan struct{}), launch: cfg.launch}
	if err := p.start(x.Stdin); err != nil {
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOTDIR):
			return nil, &notRunnable{code: 126, text: fmt.Sprintf("%s: %v", argv[0], errnoOf(err))}
		case errors.Is(err, unix.E2BIG):
			return nil, failf(protocol.CodeTooLarge, "start %.100q: arguments and environment are too long", argv[0])
		case errors.Is(err, unix.EAGAIN):
			return nil, failf(protocol.CodeStart, "start %.100q: limit of processes reached; end background processes or restart the kernel", argv[0])
		}
		return nil, failf(protocol.CodeStart, "start %.100q: %v", argv[0], err)
	}
	if c != nil {
		c.setProcess(p.pid())
	}
	return p, nil
}

func errnoOf(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

func argvOf(x protocol.Exec) ([]string, error) {
	argv := x.Argv
	switch {
	case (len(argv) == 0) == (x.Shell == ""):
		return nil, failf(protocol.CodeInvalid, "a command needs either argv or shell")
	case x.Shell != "":
		argv = []string{shellPath(), "-c", x.Shell}
	case argv[0] == "":
		return nil, failf(protocol.CodeInvalid, "the program name is empty")
	case len(argv) > maxArgs:
		return nil, failf(protocol.CodeTooLarge, "%d arguments, more than %d", len(argv), maxArgs)
	}
	for i, s := range argv {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, failf(protocol.CodeInvalid, "argument %d contains a zero byte", i)
		}
	}
	return argv, nil
}

// shellPath returns the shell for command lines: bash where installed, since people
// write bash.
func shellPath() string {
	if fi, err := os.Stat("/bin/bash"); err == nil && fi.Mode().IsRegular() {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// commandLine returns the command for display.
func commandLine(x protocol.Exec) string {
	s := x.Shell
	if s == "" {
		s = strings.Join(x.Argv, " ")
	}
	if len(s) > maxCommand {
		s = strings.ToValidUTF8(s[:maxCommand], "") + "…"
	}
	return s
}

// lookPath finds a program as the child would: in the PATH of its environment, relative
// to its directory.
func lookPath(name, dir string, env []string) (string, error) {
	check := func(p string) (string, error) {
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		fi, err := os.Stat(p)
		switch {
		case err != nil:
			return "", &notRunnable{code: 127, text: fmt.Sprintf("%s: %v", name, errnoOf(err))}
		case fi.IsDir():
			return "", &notRunnable{code: 126, text: name + ": is a directory"}
		case unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS) != nil && fi.Mode().Perm()&0o111 == 0:
			return "", &notRunnable{code: 126, text: name + ": permission denied"}
		}
		return p, nil
	}
	if strings.Contains(name, "/") {
		return check(name)
	}
	var denied error
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(list) {
			if d == "" {
				d = "."
			}
			p, err := check(filepath.Join(d, name))
			if err == nil {
				return p, nil
			}
			var nf *notRunnable
			if errors.As(err, &nf) && nf.code == 126 && denied == nil {
				denied = err
			}
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &notRunnable{code: 127, text: name + ": command not found"}
}

// duration converts milliseconds from the host.
func duration(ms int64, zero, most time.Duration) time.Duration {
	if ms <= 0 {
		return zero
	}
	return min(time.Duration(min(ms, int64(most/time.Millisecond)))*time.Millisecond, most)
}

// maxTimeout bounds timeouts, so that arithmetic on them cannot overflow.
const maxTimeout = 30 * 24 * time.Hour

// foreground streams the command's input and output and waits for its end.
func (o *op) foreground(cfg *settings, p *process, x protocol.Exec) (any, error) {
	stop := o.conn.ctx.Done()
	captures := [2]*capture{
		newCapture(x.Capture, func() *spoolFile { return cfg.openSpool("stdout") },
			func(b []byte) error { return o.send(protocol.Stdout, b, stop) }),
		newCapture(x.Capture, func() *spoolFile { return cfg.openSpool("stderr") },
			func(b []byte) error { return o.send(protocol.Stderr, b, stop) }),
	}
	if p.killed > 0 {
		captures[1].write(fmt.Appendf(nil, "glovebox: the limit of processes was reached; processes that earlier commands had left behind were killed: %d\n", p.killed))
	}
	var pumps sync.WaitGroup
	for i, r := range p.output {
		pumps.Go(func() { pump(r, captures[i].write) })
	}
	var feeder sync.WaitGroup
	if p.input != nil {
		feeder.Go(func() { o.feed(p.input) })
	}
	cfg.memory.enter()
	defer cfg.memory.leave()
	var res protocol.ExecResult
	res.Stopped = p.supervise(o.ctx, duration(x.TimeoutMS, 0, maxTimeout), duration(x.GraceMS, defaultGrace, maxGrace))
	cancelled := o.ctx.Err() != nil
	p.expire()
	pumps.Wait()
	for _, r := range p.output {
		o.conn.a.drains.add(r)
	}
	o.cancel(nil) // ends the feeder
	feeder.Wait()
	p.describe(&res)
	if cancelled && res.Stopped == "" && res.Code != 0 {
		res.Stopped = "cancelled" // it ended with the error of a call that the cancellation ended
	}
	if cfg.memory.killed(p.pid()) {
		res.Stopped = "oom"
	}
	res.Stdout, res.Stderr = captures[0].finish(), captures[1].finish()
	return res, nil
}

// feed copies input from the host to the process.
func (o *op) feed(w *os.File) {
	defer w.Close()
	stop := context.AfterFunc(o.ctx, func() { w.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := o.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return // it does not read any more
			}
		}
		if err != nil {
			return
		}
	}
}
