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
func spawn(cfg Config, argv []string, script []byte) (k *Kernel, err error) {
	var fds []int // closed on return
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	pipe := func() (r, w int, err error) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return 0, 0, fmt.Errorf("make pipe: %w", err)
		}
		fds = append(fds, p[0], p[1])
		return p[0], p[1], nil
	}
	var ends [5][2]int // commands, control, events, stdout, stderr
	for i := range ends {
		if ends[i][0], ends[i][1], err = pipe(); err != nil {
			return nil, err
		}
	}
	mem, err := scriptFile(script)
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	b, shared := &eventBuffer{}, (*os.File)(nil)
	if cfg.Language == Python { // Node.js cannot map memory
		if b, shared, err = newEventBuffer(); err != nil {
			return nil, err
		}
		defer shared.Close()
		defer func() {
			if err != nil {
				b.close()
			}
		}()
	}

	// The agent's ends are non-blocking. Only the read ends of stdout and stderr share
	// their description with the child, which does not want to block either.
	ours := []int{ends[0][1], ends[1][0], ends[2][0], ends[3][0], ends[4][0]}
	for i, fd := range ours {
		if ours[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			err = unix.SetNonblock(ours[i], true)
		}
		if err != nil {
			for _, fd := range ours[:i] {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("prepare pipe: %w", err)
		}
	}
	k = &Kernel{language: cfg.Language, done: make(chan struct{}), buf: make([]byte, readSize), eventBuf: b}
	if k.in, err = rawio.NewWriter(ours[0]); err != nil {
		for _, fd := range ours {
			unix.Close(fd)
		}
		return nil, err
	}
	k.ctl = os.NewFile(uintptr(ours[1]), "kernel control")
	k.events = ours[2]
	k.raw[0] = &rawPipe{file: os.NewFile(uintptr(ours[3]), "kernel stdout"), fd: ours[3], ch: protocol.Stdout}
	k.raw[1] = &rawPipe{file: os.NewFile(uintptr(ours[4]), "kernel stderr"), fd: ours[4], ch: protocol.Stderr}
	unix.FcntlInt(uintptr(k.events), unix.F_SETPIPE_SZ, eventPipe) // a smaller pipe works too

	command := cfg.Command
	if command == nil {
		command = func(argv []string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }
	}
	cmd := command(argv)
	cmd.Env, cmd.Dir = cfg.Env, cfg.Home
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	file := func(fd int) *os.File { return os.NewFile(uintptr(fd), "kernel") }
	theirs := []*os.File{file(ends[0][0]), file(ends[1][1]), file(ends[2][1]), file(ends[3][0]), file(ends[4][0]), mem}
	if shared != nil {
		theirs = append(theirs, shared)
	}
	stdout, stderr := file(ends[3][1]), file(ends[4][1])
	fds = []int{ends[0][1], ends[1][0], ends[2][0]} // the others are files now
	cmd.ExtraFiles, cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, nil, stdout, stderr
	if err = ChownPipes(cmd, stdout, stderr); err == nil {
		err = cmd.Start()
	}
	for _, f := range append(theirs[:5], stdout, stderr) {
		f.Close()
	}
	if err != nil {
		k.closePipes()
		return nil, err
	}
	k.pid = cmd.Process.Pid
	for _, r := range k.raw {
		unix.SetNonblock(r.fd, true) // shared, and passing a file may have changed it
	}
	if k.rc, err = k.ctl.SyscallConn(); err != nil {
		panic(err) // of an open file: cannot fail
	}
	k.wg.Add(1)
	go k.wait(cmd)
	for _, r := range k.raw {
		k.wg.Add(1)
		go k.watch(r)
	}
	return k, nil
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
