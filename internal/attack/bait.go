//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// bait is what a run plants on the host for attacks to find: a secret in a file,
// in the environment and the arguments of a process and in the name of a socket,
// and listeners that nothing in a box may reach.
type bait struct {
	secret string // must not appear in what comes from a box
	name   string // of the abstract socket
	dir    string // readable by everyone
	port   int    // of a TCP listener on loopback
	udp    int    // of a UDP socket on loopback

	process *exec.Cmd
	stdin   io.Closer // its end ends process
	open    []io.Closer
	wg      sync.WaitGroup

	mu   sync.Mutex
	hits []string // guarded by mu; what clients of the listeners sent
}

// markDirs are the host's directories in which attacks try to create a file.
var markDirs = []string{"/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/etc/cron.d", "/tmp", "/var/tmp", "/dev/shm", "/run", "/home", "/root", "/opt", "/srv", "/mnt"}

// plant plants the bait below dir, a directory of the caller that everyone can
// read.
func plant(dir string) (_ *bait, err error) {
	b := &bait{secret: "canary-" + newNonce() + newNonce(), name: "glovebox-attack-" + newNonce(), dir: dir}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if err := os.WriteFile(b.file(), []byte(b.secret+"\n"), 0o644); err != nil {
		return nil, fmt.Errorf("plant a secret: %w", err)
	}
	for _, l := range [][2]string{{"tcp", "127.0.0.1:0"}, {"unix", b.socket()}, {"unix", "@" + b.abstract()}} {
		listener, err := net.Listen(l[0], l[1])
		if err != nil {
			return nil, fmt.Errorf("listen for boxes: %w", err)
		}
		if l[0] == "tcp" {
			b.port = listener.Addr().(*net.TCPAddr).Port
		}
		b.open = append(b.open, listener)
		b.wg.Go(func() { b.accept(listener) })
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for boxes: %w", err)
	}
	b.udp = udp.LocalAddr().(*net.UDPAddr).Port
	b.open = append(b.open, udp)
	b.wg.Go(func() { b.receive(udp) })

	b.process = exec.Command("/bin/sh", "-c", "read line # "+b.secret)
	b.process.Env = append(os.Environ(), "GLOVEBOX_ATTACK_SECRET="+b.secret)
	b.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if b.stdin, err = b.process.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a process with a secret: %w", err)
	}
	if err := b.process.Start(); err != nil {
		b.process = nil
		return nil, fmt.Errorf("start a process with a secret: %w", err)
	}
	return b, nil
}

func (b *bait) file() string     { return filepath.Join(b.dir, "secret") }
func (b *bait) socket() string   { return filepath.Join(b.dir, "socket") }
func (b *bait) abstract() string { return b.name }

// args are the arguments that every script gets.
func (b *bait) args(nonce string) map[string]any {
	home, _ := os.UserHomeDir() // empty if there is none
	args := map[string]any{
		"nonce": nonce, "mark": markName(nonce), "mark_dirs": markDirs, "secret_file": b.file(), "socket": b.socket(), "abstract": b.abstract(),
		"port": b.port, "udp": b.udp, "host_pid": os.Getpid(), "home": home,
	}
	if b.process != nil {
		args["secret_pid"] = b.process.Process.Pid
	}
	return args
}

// markName is the name of files that an attack tries to create on the host.
func markName(nonce string) string { return "glovebox-attack-" + nonce }

// check records what the attack reached on the host.
func (b *bait) check(t *trial) {
	mark := markName(t.nonce)
	for _, dir := range append([]string{b.dir}, markDirs...) {
		path := filepath.Join(dir, mark)
		if _, err := os.Lstat(path); err == nil {
			t.broke("the attack created %s on the host", path)
			if err := os.RemoveAll(path); err != nil {
				t.broke("remove %s: %v", path, err)
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, hit := range b.hits {
		if strings.Contains(hit, t.nonce) {
			t.broke("the attack reached a listener of the host: %s", strings.ReplaceAll(hit, t.nonce, "NONCE"))
		}
	}
}

// checkText records a planted secret in text that came from a box.
func (b *bait) checkText(t *trial, what, text string) {
	if strings.Contains(text, b.secret) {
		t.broke("%s contains the secret that was planted on the host", what)
	}
}

// accept records what clients of a listener send, until it is closed.
func (b *bait) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors
			continue
		}
		b.wg.Go(func() {
			defer conn.Close()
			p := make([]byte, 512)
			conn.SetDeadline(time.Now().Add(2 * time.Second)) // cannot fail on an open connection
			n, _ := conn.Read(p)
			b.hit(l.Addr(), p[:n])
			conn.Write([]byte(b.secret + "\n")) // the client may have left
		})
	}
}

// receive records datagrams until the socket is closed.
func (b *bait) receive(c net.PacketConn) {
	p := make([]byte, 512)
	for {
		n, _, err := c.ReadFrom(p)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			b.hit(c.LocalAddr(), p[:n])
		}
	}
}

func (b *bait) hit(at net.Addr, p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.hits) < 10_000 { // other programs of the machine may connect too
		b.hits = append(b.hits, fmt.Sprintf("%s %s: %q", at.Network(), at, p))
	}
}

// close removes what was planted, apart from dir.
func (b *bait) close() {
	for _, c := range b.open {
		c.Close() // nothing was written
	}
	b.wg.Wait()
	if b.process != nil {
		b.stdin.Close()
		if err := b.process.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			return // the shell's exit code for the end of its input
		}
	}
}
