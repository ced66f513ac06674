package pod

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/podlink"
)

const (
	// lifePath is a file that is locked for as long as the helper runs the agent.
	lifePath = socketDir + "/life"
	// logPath takes what the helper and the agent write to standard error.
	logPath = socketDir + "/log"
	// startWait bounds the time until the helper listens: it takes milliseconds, but a
	// second and more where the processor is emulated.
	startWait = 30 * time.Second
	// startPoll is the interval of the checks whether it does.
	startPoll = 10 * time.Millisecond
	// maxWords bounds how much of the log an error repeats.
	maxWords = 1 << 10
)

// start runs the helper's part "run" in the background, in a session of its own, and
// returns when it accepts connections. It fails with the last words of a helper that ends
// before.
func start(args []string) (int, error) {
	if err := os.MkdirAll(socketDir, 0o700); err != nil {
		return 1, err
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 1, err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{"run"}, args...)...)
	cmd.Args[0] = Name // selects the helper in a program that has other parts
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log // no pipe of the execution that ends with start
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	timeout := time.After(startWait)
	for {
		conn, err := net.Dial("unix", socketPath)
		if err == nil {
			conn.Close() // the helper expects nothing of it
			return 0, nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			err = earlyEnd(err, terminationLog, logPath)
			return 0, err
		case <-timeout:
			cmd.Process.Kill() // fails if it has just ended
			return 1, fmt.Errorf("the helper does not listen after %v: %w", startWait, err)
		}
	}
}

// earlyEnd returns why a helper has ended that did not listen yet. It returns nil if it has
// run the agent, whose end wait tells.
func earlyEnd(err error, termination, log string) error {
	b, rerr := os.ReadFile(termination)
	var t podlink.Termination
	if rerr == nil {
		rerr = json.Unmarshal(b, &t)
	}
	switch {
	case rerr == nil && t.Exited != nil:
		return nil
	case rerr == nil && t.Error != "":
		return errors.New(t.Error)
	}
	return fmt.Errorf("the helper has ended: %v; its last words: %s", err, lastWords(log))
}

// lastWords returns the end of a file.
func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxWords {
		f.Seek(-maxWords, io.SeekEnd) // else from the start
	}
	b, err := io.ReadAll(io.LimitReader(f, maxWords))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// lockLife creates a file in dir, which only root may enter, and locks it until it is
// closed.
func lockLife(dir, path string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another helper runs: %w", err)
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// wait returns when the helper that start has started does not run any more, and writes
// its podlink.Termination to standard output, or nothing if it left none.
func wait([]string) (int, error) { return waitFor(lifePath, terminationLog, os.Stdout) }

// maxTermination bounds the message of a helper.
const maxTermination = 4 << 10

func waitFor(life, termination string, w io.Writer) (int, error) {
	f, err := os.Open(life)
	if err != nil {
		return 1, err
	}
	defer f.Close()
	if err := flock(f, unix.LOCK_SH); err != nil {
		return 1, err
	}
	message, err := os.Open(termination)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // something has killed it
	}
	if err != nil {
		return 1, err
	}
	defer message.Close()
	_, err = io.Copy(w, io.LimitReader(message, maxTermination))
	return 0, err
}
