package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/rawio"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Start starts an interpreter and returns when it is ready for code, or when ctx is
// done or 30 seconds have passed. The caller must Close the kernel.
func Start(ctx context.Context, cfg Config) (*Kernel, error) {
	var script []byte
	var argv []string
	switch cfg.Language {
	case Python:
		script, argv = pythonScript(), []string{cfg.Interpreter, "-X", "utf8", "-c", pythonBoot}
	case JavaScript:
		script, argv = nodeScript(), []string{cfg.Interpreter, "-e", nodeBoot}
	default:
		return nil, fmt.Errorf("start kernel: unknown language %q", cfg.Language)
	}
	k, err := spawn(cfg, argv, script)
	if err != nil {
		return nil, fmt.Errorf("start %s kernel %s: %w", cfg.Language, cfg.Interpreter, err)
	}
	if err := k.ready(ctx, cfg.Preload); err != nil {
		k.outMu.Lock()
		k.drainRawLocked(k.raw[1], readSize)
		tail := bytes.TrimSpace(k.raw[1].held)
		k.outMu.Unlock()
		k.Close()
		if len(tail) > stderrTail {
			tail = tail[len(tail)-stderrTail:]
		}
		if len(tail) > 0 {
			err = fmt.Errorf("%w; its stderr: %q", err, tail)
		}
		return nil, fmt.Errorf("start %s kernel %s: %w", cfg.Language, cfg.Interpreter, err)
	}
	return k, nil
}

// spawn starts the process and its watching goroutines.
func spawn(cfg Config, argv []string, script []byte) (*Kernel, error) {
	mem, err := scriptFile(script)
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	events, shared := &eventBuffer{}, (*os.File)(nil)
	if cfg.Language == Python { // Node.js cannot map memory
		if events, shared, err = newEventBuffer(); err != nil {
			return nil, err
		}
		defer shared.Close()
	}
	p, err := newPipes()
	if err != nil {
		events.close()
		return nil, err
	}
	defer p.closeTheirs()
	k, err := newKernel(cfg.Language, p, events)
	if err != nil {
		p.closeOurs()
		events.close()
		return nil, err
	}
	cmd := newCommand(cfg, argv)
	cmd.ExtraFiles = append(p.theirs[:], mem)
	if shared != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, shared)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, p.stdout, p.stderr
	if err = ChownPipes(cmd, p.stdout, p.stderr); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		k.closePipes()
		return nil, err
	}
	k.pid = cmd.Process.Pid
	for _, r := range k.raw {
		unix.SetNonblock(r.fd, true) // shared, and passing a file may have changed it
	}
	p.closeTheirs() // before a goroutine waits for their end
	k.wg.Go(func() { k.wait(cmd) })
	for _, r := range k.raw {
		k.wg.Go(func() { k.watch(r) })
	}
	return k, nil
}

// newKernel returns a kernel without a process, which owns the agent's ends of the pipes and the
// event buffer. After an error the caller owns them still.
func newKernel(language string, p *pipes, events *eventBuffer) (*Kernel, error) {
	in, err := rawio.NewWriter(p.ours[pipeCommands])
	if err != nil {
		return nil, err
	}
	k := &Kernel{language: language, done: make(chan struct{}), buf: make([]byte, readSize), eventBuf: events, in: in, events: p.ours[pipeEvents]}
	k.ctl = os.NewFile(uintptr(p.ours[pipeControl]), "kernel control")
	if k.rc, err = k.ctl.SyscallConn(); err != nil {
		panic(err) // of an open file: cannot fail
	}
	stdout, stderr := p.ours[pipeStdout], p.ours[pipeStderr]
	k.raw[0] = &rawPipe{file: os.NewFile(uintptr(stdout), "kernel stdout"), fd: stdout, ch: protocol.Stdout}
	k.raw[1] = &rawPipe{file: os.NewFile(uintptr(stderr), "kernel stderr"), fd: stderr, ch: protocol.Stderr}
	unix.FcntlInt(uintptr(k.events), unix.F_SETPIPE_SZ, eventPipe) // a smaller pipe works too
	return k, nil
}

// newCommand returns the command of an interpreter.
func newCommand(cfg Config, argv []string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...)
	if cfg.Command != nil {
		cmd = cfg.Command(argv)
	}
	cmd.Env, cmd.Dir = cfg.Env, cfg.Home
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	return cmd
}

// The pipes of a kernel, in the order in which it inherits its ends.
const (
	pipeCommands = iota // to the kernel
	pipeControl         // from it, as all others
	pipeEvents
	pipeStdout // the kernel inherits the end that the agent reads, to ask what is unread
	pipeStderr
	pipeCount
)

// pipes are the pipes of a kernel.
type pipes struct {
	ours           [pipeCount]int // the agent's ends, non-blocking; -1: none
	theirs         [pipeCount]*os.File
	stdout, stderr *os.File // the ends that the kernel writes
}

// newPipes makes the pipes. The caller closes both sides.
func newPipes() (p *pipes, err error) {
	p = &pipes{ours: [pipeCount]int{-1, -1, -1, -1, -1}}
	defer func() {
		if err != nil {
			p.closeOurs()
			p.closeTheirs()
		}
	}()
	for i := range p.ours {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
		r, w := ends[0], ends[1]
		switch i {
		case pipeCommands:
			p.theirs[i], p.ours[i] = kernelFile(r), w
		case pipeControl, pipeEvents:
			p.theirs[i], p.ours[i] = kernelFile(w), r
		default:
			// These two ends share their description, and so are non-blocking for the kernel
			// too, which does not want to block either.
			p.theirs[i] = kernelFile(r)
			if i == pipeStdout {
				p.stdout = kernelFile(w)
			} else {
				p.stderr = kernelFile(w)
			}
			if p.ours[i], err = unix.FcntlInt(uintptr(r), unix.F_DUPFD_CLOEXEC, 0); err != nil {
				p.ours[i] = -1
				return nil, fmt.Errorf("prepare pipe: %w", err)
			}
		}
		if err := unix.SetNonblock(p.ours[i], true); err != nil {
			return nil, fmt.Errorf("prepare pipe: %w", err)
		}
	}
	return p, nil
}

func kernelFile(fd int) *os.File { return os.NewFile(uintptr(fd), "kernel") }

func (p *pipes) closeOurs() {
	for _, fd := range p.ours {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// closeTheirs may be called again.
func (p *pipes) closeTheirs() {
	for _, f := range append(p.theirs[:], p.stdout, p.stderr) {
		f.Close() // of nil, this does nothing
	}
}

// ChownPipes makes the user of cmd the owner of its pipes, so that its programs can
// open them by name: /dev/stdin, /dev/stdout, /dev/stderr. It must be called before cmd
// starts.
func ChownPipes(cmd *exec.Cmd, pipes ...*os.File) error {
	if cmd.SysProcAttr == nil || cmd.SysProcAttr.Credential == nil {
		return nil // they are the user's
	}
	for _, f := range pipes {
		if err := f.Chown(int(cmd.SysProcAttr.Credential.Uid), int(cmd.SysProcAttr.Credential.Gid)); err != nil {
			return fmt.Errorf("chown a pipe: %w", err)
		}
	}
	return nil
}

// scriptFile returns an anonymous file with the script.
func scriptFile(script []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("glovebox-kernel", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kernel script")
	if _, err = f.Write(script); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write memory file: %w", err)
	}
	return f, nil
}

// ready sets the kernel up and waits for its first message.
func (k *Kernel) ready(ctx context.Context, preload []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready after %v", readyTimeout))
	defer cancel()
	defer context.AfterFunc(ctx, func() { k.ctl.SetReadDeadline(time.Unix(1, 0)) })()
	setup := []byte(strings.Join(preload, "\n"))
	if k.language == Python {
		setup = slices.Concat(setup, []byte{0}, pythonMagics())
	}
	if _, err := k.in.WriteUntil(command(cmdSetup, setup), time.Now().Add(readyTimeout)); err != nil {
		<-waitFor(k.done, time.Second)
		return fmt.Errorf("send set-up: %w", k.why(err))
	}
	typ, payload, err := k.control(nil)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	case err != nil:
		<-waitFor(k.done, time.Second)
		return k.why(err)
	case typ != msgReady:
		return fmt.Errorf("first message is %q", typ)
	}
	var hello struct {
		Version string
		Missing []string
	}
	if err := json.Unmarshal(payload, &hello); err != nil || hello.Version == "" || len(hello.Version) > 64 {
		return fmt.Errorf("first message has no valid version")
	}
	k.version = hello.Version
	if len(preload) > 0 {
		k.drop() // output of imported modules belongs to no run
	}
	k.missing = slices.DeleteFunc(slices.Clone(preload), func(name string) bool { return !slices.Contains(hello.Missing, name) })
	return nil
}

// waitFor returns a channel that is closed with c or after d.
func waitFor(c <-chan struct{}, d time.Duration) <-chan struct{} {
	out := make(chan struct{})
	t := time.NewTimer(d)
	go func() {
		defer close(out)
		defer t.Stop()
		select {
		case <-c:
		case <-t.C:
		}
	}()
	return out
}

// why returns the end of the process rather than the error that it caused.
func (k *Kernel) why(err error) error {
	select {
	case <-k.done:
		_, detail := k.ending()
		return errors.New("process ended: " + detail)
	default:
		return err
	}
}
