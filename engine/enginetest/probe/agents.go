//go:build linux

package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// agents are the behaviours of a guest's first process.
var agents = map[string]func(args []string) error{
	"echo":    echo,    // gives back what it reads
	"exit":    exit,    // reads one byte and exits with the code
	"die":     die,     // reads one byte and kills itself with the signal
	"orphans": orphans, // leaves processes everywhere, then echoes
	"storm":   storm,   // starts processes that hide and start others, without end
	"orphan":  orphan,  // a process of the two above

	"gone":    func([]string) error { os.Exit(3); return nil },
	"silent":  func([]string) error { forever(); return nil },
	"mute":    func([]string) error { _, err := io.Copy(io.Discard, os.Stdin); return err },
	"shut":    shut,    // closes its streams and lives on
	"garbage": garbage, // says what is no protocol, then is silent
	"zeros":   func([]string) error { return flood(make([]byte, 64<<10)) },
	"frames":  frames,    // floods with well-formed frames
	"huge":    huge,      // announces four gigabytes
	"half":    half,      // stops in the middle of a frame
	"drip":    drip,      // says a byte of a frame now and then
	"liar":    liar,      // answers every request with something else
	"stopped": stopSelf,  // stops itself as a debugger would
	"chatter": chatter,   // floods its standard error
	"deaf":    ignoreAll, // ignores all signals it can, then echoes
}

func echo([]string) error {
	_, err := io.Copy(os.Stdout, os.Stdin)
	return err
}

// forever is not select {}: the Go runtime ends a deadlocked program.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

func readByte() { os.Stdin.Read(make([]byte, 1)) }

func exit(args []string) error {
	readByte()
	os.Exit(number(args, 0))
	return nil
}

func die(args []string) error {
	readByte()
	if err := syscall.Kill(os.Getpid(), syscall.Signal(number(args, 0))); err != nil {
		return err
	}
	time.Sleep(time.Second)
	os.Exit(99) // the first process of a guest may be immune to signals
	return nil
}

// spawn starts this program in another part, in a session of its own and without
// environment.
func spawn(args ...string) error {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// orphans starts the given number of processes, each of which starts another
// one and ends, so that their parents are gone.
func orphans(args []string) error {
	for range number(args, 0) {
		if err := spawn("agent", "orphan", "1"); err != nil {
			return err
		}
	}
	fmt.Print("ready\n")
	return echo(nil)
}

// orphan starts a process, a level less deep, and ends; at level 0 it sleeps,
// below it just ends.
func orphan(args []string) error {
	switch n := number(args, 0); {
	case n > 0:
		return spawn("agent", "orphan", fmt.Sprint(n-1))
	case n == 0:
		time.Sleep(time.Hour)
	}
	return nil
}

// storm always has some processes on the move. It is no fork bomb: the machine
// that runs the suite must survive an engine that is wrong.
func storm([]string) error {
	go echo(nil)
	fmt.Print("ready\n")
	for i := 0; ; i++ {
		cmd := exec.Command("/proc/self/exe", "agent", "orphan", "3")
		if i >= 40 {
			cmd.Args[3] = "-1" // ends at once
		}
		cmd.Env = []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if cmd.Start() == nil {
			go cmd.Wait()
		}
		time.Sleep(3 * time.Millisecond)
	}
}

func shut([]string) error {
	os.Stdin.Close()
	os.Stdout.Close()
	forever()
	return nil
}

func garbage([]string) error {
	b := make([]byte, 64<<10)
	rand.Read(b)
	b[0] = 0 // no frame begins so
	os.Stdout.Write(b)
	forever()
	return nil
}

func flood(b []byte) error {
	for {
		if _, err := os.Stdout.Write(b); err != nil {
			return err
		}
	}
}

// header is that of a frame, of operation 1.
func header(kind, channel byte, length uint32) []byte {
	b := []byte{0x47, kind, channel, 0, 0, 0, 0, 1}
	return binary.BigEndian.AppendUint32(b, length)
}

func frames([]string) error {
	const data, stdout = 2, 2
	b := append(header(data, stdout, 4096), make([]byte, 4096)...)
	return flood(b)
}

func huge([]string) error {
	const end = 6
	os.Stdout.Write(header(end, 0, 0xffffffff))
	return flood(make([]byte, 64<<10))
}

func half([]string) error {
	const end = 6
	os.Stdout.Write(append(header(end, 0, 1000), `{"result":`...))
	forever()
	return nil
}

func drip([]string) error {
	const end = 6
	for _, c := range append(header(end, 0, 1000), make([]byte, 1000)...) {
		os.Stdout.Write([]byte{c})
		time.Sleep(50 * time.Millisecond)
	}
	forever()
	return nil
}

func liar([]string) error {
	const end = 6
	answer := `{"result":{"version":1,"nonce":"0000000000000000","build":"\u001b[31m","limits":{"x":"y"}}}`
	in := bufio.NewReader(os.Stdin)
	for {
		if _, err := in.ReadByte(); err != nil {
			return err
		}
		in.Discard(in.Buffered())
		if _, err := os.Stdout.Write(append(header(end, 0, uint32(len(answer))), answer...)); err != nil {
			return err
		}
	}
}

func stopSelf([]string) error {
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	forever()
	return nil
}

func chatter([]string) error {
	go echo(nil)
	b := make([]byte, 4096)
	for i := range b {
		b[i] = "\x1b[2J\xff\n%s"[i%8]
	}
	for range 64 << 10 { // 256 MiB; an engine may keep it all in a file
		if _, err := os.Stderr.Write(b); err != nil {
			break
		}
	}
	forever()
	return nil
}

func ignoreAll([]string) error {
	for sig := syscall.Signal(1); sig < 32; sig++ {
		signal.Ignore(sig)
	}
	return echo(nil)
}
