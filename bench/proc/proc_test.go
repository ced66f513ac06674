//go:build linux

package proc

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// process is a program that tells by a line that it is ready, and ends with its
// input.
type process struct {
	pid int
	in  io.Writer
	out *bufio.Reader
}

func start(t *testing.T, argv ...string) *process {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	p := &process{cmd.Process.Pid, in, bufio.NewReader(out)}
	p.line(t)
	return p
}

// line waits for a line of output.
func (p *process) line(t *testing.T) {
	t.Helper()
	if _, err := p.out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
}

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		if path, err = exec.LookPath("python3"); err != nil {
			t.Skip("no python3 on this machine")
		}
	}
	return path
}

func TestTree(t *testing.T) {
	shell := start(t, "sh", "-c", "sleep 60 & echo; read line; kill $!")
	tree, err := Tree(shell.pid)
	if err != nil {
		t.Fatal(err)
	}
	if len(tree) != 2 || tree[0] != shell.pid {
		t.Errorf("the tree of a shell with one child is %v, want two, first %d", tree, shell.pid)
	}
	if mine, err := Tree(os.Getpid()); err != nil || !slices.Contains(mine, tree[1]) {
		t.Errorf("the tree of this process is %v (%v), want %d in it", mine, err, tree[1])
	}
}

// TestMemory_Shared measures a process with 64 MiB, shared in three ways.
func TestMemory_Shared(t *testing.T) {
	const size = 64 << 20
	for _, tc := range []struct {
		name               string
		code               string
		pss, shared, whole bool // whether the 64 MiB are in it
	}{
		{"nothing", "", false, false, false},
		{"private", "x = bytes([1]) * size", true, false, true},
		{"forked", "x = bytes([1]) * size\nif os.fork() == 0: print(); sys.stdin.read(); os._exit(0)", true, false, true},
		{"memfd, mapped", "fd = os.memfd_create('x'); os.ftruncate(fd, size); m = mmap.mmap(fd, size); m.write(bytes([1]) * size)", true, true, true},
		{"memfd, mapped by nothing", "fd = os.memfd_create('x')\nfor i in range(64): os.write(fd, bytes([1]) * (1 << 20))", false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, python(t), "-c", "import os, sys, mmap\nsize = 64 << 20\n"+tc.code+"\nprint(flush=True); sys.stdin.read()")
			tree, err := Tree(p.pid)
			if err != nil {
				t.Fatal(err)
			}
			m, err := MemoryOf(tree)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range []struct {
				name string
				got  int64
				in   bool
			}{{"PSS", m.PSS, tc.pss}, {"shared", m.Shared, tc.shared}, {"whole", m.Whole, tc.whole}} {
				lowest, highest := int64(0), int64(size/2)
				if w.in {
					lowest, highest = size, 3*size/2
				}
				if w.got < lowest || w.got > highest {
					t.Errorf("%s is %d, want %d to %d", w.name, w.got, lowest, highest)
				}
			}
		})
	}
}

// TestMemory_SharedAddressSpace measures a process twice: it counts once.
func TestMemory_SharedAddressSpace(t *testing.T) {
	pid := os.Getpid()
	kept, err := distinct([]int{pid, os.Getppid(), pid})
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != 2 {
		t.Errorf("distinct kept %v of a process twice and its parent", kept)
	}
}

func TestMemory_ProcessesHaveEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pids := []int{cmd.Process.Pid}
	if m, err := MemoryOf(pids); err != nil || m != (Memory{}) {
		t.Errorf("memory of a process that ended: %+v, %v", m, err)
	}
	if u, err := UsageOf(pids); err != nil || len(u) != 0 {
		t.Errorf("processor time of a process that ended: %v, %v", u, err)
	}
}

func TestIdentity(t *testing.T) {
	me := Identify([]int{os.Getpid()})
	if len(me) != 1 || !me[0].Alive() {
		t.Fatalf("this process is %v, want one that is alive", me)
	}
	if later := (Process{me[0].PID, me[0].start + "1"}); later.Alive() {
		t.Error("another process of the same number counts as this one")
	}
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	child := Identify([]int{cmd.Process.Pid})
	if len(child) != 1 || !child[0].Alive() {
		t.Errorf("a running process is %v, want one that is alive", child)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(child) == 1 && child[0].Alive() {
		t.Error("a process that ended counts as alive")
	}
}

func TestUsage(t *testing.T) {
	// On a line of input it works until it has used a fifth of a second more.
	p := start(t, python(t), "-c", `
import sys, time
print(flush=True)
for line in sys.stdin:
    until = time.process_time() + 0.2
    while time.process_time() < until: pass
    print(flush=True)
`)
	usage := func() Usage {
		u, err := UsageOf([]int{p.pid})
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := usage()
	if len(before) == 0 {
		t.Fatal("a live process has no thread")
	}
	if used := usage().Since(before); used > 100*time.Millisecond {
		t.Errorf("a process that waits used %v", used)
	}
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		t.Fatal(err)
	}
	p.line(t)
	if used := usage().Since(before); used < 150*time.Millisecond || used > time.Second {
		t.Errorf("a process that worked for 200 ms used %v", used)
	}
}
