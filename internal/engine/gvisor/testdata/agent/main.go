// Command agent is the first process of guests in the engine's tests. It reads
// one command a line and answers each with one quoted line.
package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	kept  [][]byte
	files []*os.File
	start = time.Now()
)

func main() {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			os.Exit(0)
		}
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		answer, err := do(f[0], f[1:])
		if err != nil {
			answer += "error: " + err.Error()
		}
		fmt.Println(strconv.Quote(answer))
	}
}

func do(name string, args []string) (string, error) {
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	n, _ := strconv.Atoi(arg(0))
	switch name {
	case "echo":
		return strings.Join(args, " "), nil
	case "exit":
		fmt.Fprintln(os.Stderr, "going away")
		os.Exit(n)
	case "read":
		b, err := os.ReadFile(arg(0))
		return string(b), err
	case "ls":
		entries, err := os.ReadDir(arg(0))
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " "), err
	case "write":
		return "", os.WriteFile(arg(0), []byte(arg(1)), 0o644)
	case "fill":
		mb, _ := strconv.Atoi(arg(1))
		f, err := os.Create(arg(0))
		if err != nil {
			return "", err
		}
		defer f.Close()
		for i := range mb {
			if _, err := f.Write(make([]byte, 1<<20)); err != nil {
				return strconv.Itoa(i), err
			}
		}
		return strconv.Itoa(mb), nil
	case "chown":
		uid, _ := strconv.Atoi(arg(1))
		return "", os.Chown(arg(0), uid, uid)
	case "mkdir":
		return "", os.MkdirAll(arg(0), 0o755)
	case "eat":
		for range n {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		return strconv.Itoa(n), nil
	case "spin":
		start := time.Now()
		for range runtime.NumCPU() {
			go func() {
				for {
				}
			}()
		}
		return start.String(), nil
	case "id":
		host, _ := os.Hostname()
		return fmt.Sprintf("uid=%d host=%s cpus=%d pid=%d", os.Getuid(), host, runtime.NumCPU(), os.Getpid()), nil
	case "env":
		return strings.Join(os.Environ(), " "), nil
	case "dial":
		c, err := net.DialTimeout("tcp", arg(0), 2*time.Second)
		if err == nil {
			c.Close()
		}
		return "", err
	case "loop":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			c.Close()
		}
		return "", err
	case "sh", "shu":
		cmd := exec.Command("/bin/sh", "-c", strings.Join(args, " "))
		if name == "shu" {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		}
		b, err := cmd.CombinedOutput()
		return string(b), err
	case "each": // N COMMAND...: N processes, each of which performs the command and stays
		return each(n, args[1:])
	case "maps": // N: one page, mapped N times with page tables of its own
		return strconv.Itoa(n), maps(n, 2<<20, true)
	case "vmas": // N: pages side by side, mapped one by one and not touched
		return strconv.Itoa(n), maps(n, 8<<10, false)
	case "open": // N: descriptors of as many files of the host
		err := filepath.WalkDir("/usr", func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if len(files) >= n {
				return fs.SkipAll
			}
			f, err := os.Open(path)
			if err == nil {
				files = append(files, f)
			}
			return err
		})
		return strconv.Itoa(len(files)), err
	case "clocks": // wall clock, monotonic clock, and time since start as the vDSO has it
		var ts unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
		return fmt.Sprint(time.Now().UnixNano(), ts.Nano(), time.Since(start).Nanoseconds()), err
	}
	return "", fmt.Errorf("unknown command %q", name)
}

// each performs a command in n new processes, which stay, and returns their answers.
func each(n int, command []string) (string, error) {
	answers := make(chan string, n)
	for range n {
		cmd := exec.Command("/proc/self/exe")
		in, err := cmd.StdinPipe()
		if err != nil {
			return "", err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return "", err
		}
		if err := cmd.Start(); err != nil {
			return "", err
		}
		fmt.Fprintln(in, strings.Join(command, " "))
		go func() {
			answer, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				answer = err.Error()
			}
			answers <- strings.TrimSpace(answer)
		}()
	}
	var all []string
	for range n {
		all = append(all, <-answers)
	}
	return strings.Join(all, " "), nil
}

// maps maps one page n times, step bytes apart.
func maps(n, step int, touch bool) error {
	fd, err := unix.MemfdCreate("page", 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(fd, make([]byte, 4096)); err != nil {
		return err
	}
	for i := range n {
		const base = 0x100000000000
		at, _, errno := unix.Syscall6(unix.SYS_MMAP, base+uintptr(i*step), 4096, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_POPULATE, uintptr(fd), 0)
		if errno != 0 {
			return fmt.Errorf("mapping %d: %w", i, errno)
		}
		if touch { // or the mapping would have no page table
			sum += (*(*[]byte)(unsafe.Pointer(&[3]uintptr{at, 1, 1})))[0]
		}
	}
	return nil
}

var sum byte // keeps reads
