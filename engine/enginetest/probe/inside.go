//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// inside are the parts that look around in a guest.
var inside = map[string]func(args []string) error{
	"connect": connect, // NETWORK ADDRESS...: which of the addresses answer
	"listen":  listen,  // NETWORK ADDRESS: accepts connections until the end of input
	"find":    find,    // TOKEN DIR...: where the token is seen
	"digest":  digest,  // FILE...: the SHA-256 and the name of each that can be read
	"hold":    hold,    // MIB: takes memory and keeps it until the end of input
	"hog":     hog,     // MIB: takes memory, saying how much
	"spin":    spin,    // N: uses N processors until the end of input
	"fork":    fork,    // N: starts N processes that wait
	"bomb":    bomb,    // DEPTH: a tree of processes, each with two children and a line of output
	"wait":    func([]string) error { waitInput(); return nil },
	"count":   count,   // a number every millisecond
	"kernel":  kernel,  // what kernel this is
	"escape":  escape,  // which of the things that need privileges work
	"pour":    pour,    // MIB: writes as much to standard output, in words that say where they are
	"fill":    fill,    // FILE MIB: writes a file
	"devices": devices, // device files
	"links":   links,   // network interfaces
}

func waitInput() { io.Copy(io.Discard, os.Stdin) }

func connect(args []string) error {
	type answer struct {
		address string
		err     error
	}
	answers := make(chan answer)
	for _, address := range args[1:] {
		go func() {
			conn, err := net.DialTimeout(args[0], address, 2*time.Second)
			if err == nil && args[0] == "udp" { // connecting says nothing yet
				err = ask(conn)
			}
			if err == nil {
				conn.Close()
			}
			answers <- answer{address, err}
		}()
	}
	for range args[1:] {
		if a := <-answers; a.err == nil {
			fmt.Println(a.address)
		}
	}
	return nil
}

func listen(args []string) error {
	l, err := net.Listen(args[0], args[1])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	waitInput()
	return nil
}

// ask sends a question for the root name servers and waits for an answer.
func ask(conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := conn.Write([]byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01")); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 512))
	return err
}

// find looks for the token in the environment, in what /proc tells about
// processes, in the abstract sockets, and in files at most four levels deep.
func find(args []string) error {
	token := []byte(args[0])
	// Its own command line has the token for a good reason.
	self, parent := strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid())
	var files []string
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ", "/proc/[0-9]*/maps"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, name := range more {
			if pid := filepath.Base(filepath.Dir(name)); pid != self && pid != parent {
				files = append(files, name)
			}
		}
	}
	files = append(files, "/proc/self/environ", "/proc/self/mountinfo", "/proc/net/unix", "/proc/mounts")
	for _, dir := range args[1:] {
		files = append(files, dir)
		for range 4 {
			dir += "/*"
			more, err := filepath.Glob(dir)
			if err != nil {
				return err
			}
			files = append(files, more...)
		}
	}
	for _, name := range files {
		if bytes.Contains([]byte(name), token) {
			fmt.Println(name)
			continue
		}
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			continue
		}
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, token) {
			fmt.Println(name)
		}
	}
	return nil
}

func digest(args []string) error {
	for _, name := range args {
		if b, err := os.ReadFile(name); err == nil {
			fmt.Printf("%x %s\n", sha256.Sum256(b), name)
		}
	}
	return nil
}

// take touches n MiB of new memory and calls each after every 16.
func take(n int, each func(mib int)) [][]byte {
	var all [][]byte
	for taken := 0; taken < n; {
		step := min(16, n-taken)
		b := make([]byte, step<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = byte(i>>12) | 1
		}
		all = append(all, b)
		taken += step
		each(taken)
	}
	return all
}

func hold(args []string) error {
	all := take(number(args, 0), func(int) {})
	fmt.Println("ready")
	waitInput()
	fmt.Println(len(all))
	return nil
}

func hog(args []string) error {
	all := take(number(args, 0), func(mib int) {
		fmt.Println(mib)
		time.Sleep(20 * time.Millisecond) // the rate is ours, not the machine's
	})
	fmt.Println("all", len(all))
	return nil
}

func spin(args []string) error {
	for range number(args, 0) {
		go func() {
			for i := 0; ; i++ {
			}
		}()
	}
	fmt.Println("ready")
	waitInput()
	return nil
}

func fork(args []string) error {
	started := 0
	var last error
	for range number(args, 0) {
		cmd := exec.Command("/proc/self/exe", "wait")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			last = err
			break
		}
		defer in.Close()
		started++
	}
	fmt.Println("started", started)
	if last != nil {
		fmt.Println("stopped by", last)
	}
	fmt.Println("ready")
	waitInput()
	return nil
}

// bomb keeps trying, as fork bombs do, but not deeper than the given depth.
func bomb(args []string) error {
	fmt.Println("ready")
	if depth := number(args, 0); depth > 0 {
		for started := 0; started < 2; {
			child := exec.Command("/proc/self/exe", "bomb", strconv.Itoa(depth-1))
			child.Stdout = os.Stdout
			if child.Start() == nil {
				started++
			}
		}
	}
	time.Sleep(time.Hour)
	return nil
}

func count([]string) error {
	for i := 1; ; i++ {
		if _, err := fmt.Println(i); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func kernel([]string) error {
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return err
	}
	fmt.Println("release", text(u.Release[:]))
	fmt.Println("version", text(u.Version[:]))
	fmt.Println("hostname", text(u.Nodename[:]))
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		fmt.Println("boot", string(bytes.TrimSpace(b)))
	}
	return nil
}

func text(b []int8) string {
	var s []byte
	for _, c := range b {
		if c == 0 {
			break
		}
		s = append(s, byte(c))
	}
	return string(s)
}

// escape prints what works that must not. All of it does no harm if it works: the
// machine that runs the suite must survive an engine that is wrong.
func escape([]string) error {
	try := func(what string, err error) {
		if err == nil {
			fmt.Println(what)
		}
	}
	open := func(name string, flag int) error {
		f, err := os.OpenFile(name, flag, 0o600)
		if err == nil {
			f.Close()
		}
		return err
	}
	try("become root", syscall.Setuid(0))
	try("become root's group", syscall.Setgid(0))
	dir, err := os.MkdirTemp("", "probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := syscall.Mount("none", dir, "tmpfs", 0, ""); err == nil {
		syscall.Unmount(dir, 0)
		fmt.Println("mount")
	}
	try("make a device", syscall.Mknod(filepath.Join(dir, "device"), syscall.S_IFBLK|0o600, 8<<8))
	var u syscall.Utsname
	try("change the host name", errors.Join(syscall.Uname(&u), syscall.Sethostname([]byte(text(u.Nodename[:])))))
	try("kill the agent", syscall.Kill(1, 0))
	try("trace the agent", syscall.PtraceAttach(1))
	try("open the agent's input", open("/proc/1/fd/0", os.O_WRONLY))
	try("open the agent's output", open("/proc/1/fd/1", os.O_WRONLY))
	try("open the agent's memory", open("/proc/1/mem", os.O_RDWR))
	try("open the host's memory", open("/dev/mem", os.O_RDONLY))
	try("open the host's kernel log", open("/dev/kmsg", os.O_RDONLY))
	try("change the kernel", open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
	try("trigger the kernel", open("/proc/sysrq-trigger", os.O_WRONLY))
	try("open a raw socket", rawSocket())
	return nil
}

func rawSocket() error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

func pour(args []string) error {
	b := make([]byte, 64<<10)
	for i := range number(args, 0) * 16 {
		for at := 0; at < len(b); at += 8 {
			binary.BigEndian.PutUint64(b[at:], uint64(i*len(b)+at))
		}
		if _, err := os.Stdout.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func fill(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	b := make([]byte, 1<<20)
	for range number(args, 1) {
		if _, err := f.Write(b); err != nil {
			fmt.Println(err)
			return err
		}
	}
	return f.Close()
}

func devices([]string) error {
	entries, err := os.ReadDir("/dev")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Type()&os.ModeDevice != 0 {
			fmt.Println(e.Name())
		}
	}
	return err
}

func links([]string) error {
	all, err := net.Interfaces()
	for _, l := range all {
		fmt.Println(l.Name)
	}
	return err
}
