package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// ttyEnv makes the test binary start a program from a process that has a controlling
// terminal. Its value is the file for the program's report.
const ttyEnv = "CHILD_TEST_TTY"

// startFromTerminal is the process with the terminal. It exits with 0 if it could open
// the terminal itself and the program has ended.
func startFromTerminal(report string) int {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the test has no terminal:", err)
		return 1
	}
	tty.Close()
	c := sh(`(exec 3<>/dev/tty) 2>"$REPORT.part"; echo "status $?" >>"$REPORT.part"; mv "$REPORT.part" "$REPORT"; cat`)
	c.Env = append(c.Env, "REPORT="+report)
	conn, err := c.Connect(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for range 1000 {
		if _, err := os.Stat(report); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	conn.Close()
	return 0
}

// A program that opens the user's terminal could read what the user types, and write
// there in the name of this program.
func TestConnect_HasNoTerminal(t *testing.T) {
	master, slave := openTerminal(t)
	report := filepath.Join(t.TempDir(), "report")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), ttyEnv+"="+report)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	if err := cmd.Wait(); err != nil {
		said := make([]byte, 1<<10)
		n, _ := master.Read(said)
		t.Fatalf("%v: %s", err, said[:n])
	}
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(b); !strings.Contains(got, "/dev/tty") || !strings.Contains(got, "status ") || strings.Contains(got, "status 0") {
		t.Errorf("the program opens /dev/tty with the report %q, want that it failed", got)
	}
}

// Ctrl-C in the terminal ends this program, which ends the programs that it started.
func TestConnect_InterruptEndsProgram(t *testing.T) {
	master, slave := openTerminal(t)
	report := filepath.Join(t.TempDir(), "report")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), interruptEnv+"="+report)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	var pid int
	polltest.Until(t, 20*time.Second, "the program runs", func() bool {
		b, _ := os.ReadFile(report)
		n, _ := fmt.Sscan(string(b), &pid)
		return n == 1
	})
	if _, err := master.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // ended by the signal
	polltest.Until(t, 20*time.Second, "the program has ended", func() bool {
		// A zombie has ended: not every container has an init that reaps orphans.
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

// interruptEnv is ttyEnv for a process that waits for Ctrl-C.
const interruptEnv = "CHILD_TEST_INTERRUPT"

func waitForInterrupt(report string) int {
	c := sh(`echo $$ >"$REPORT.part"; mv "$REPORT.part" "$REPORT"; exec cat`)
	c.Env = append(c.Env, "REPORT="+report)
	if _, err := c.Connect(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// openTerminal returns both ends of a new terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals: ", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}
