package enginetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// isolationTests run in a guest twice: as its user, and as the agent, which hostile code
// may have become.
func isolationTests() []test {
	return append(asBoth([]attack{
		{"sees-nothing-of-the-host", testSeesNothing},
		{"reads-no-secrets-of-the-host", testReadsNoSecrets},
		{"reaches-no-network", testReachesNoNetwork},
		{"gets-no-answer-by-udp", testGetsNoAnswer},
		{"reaches-no-socket-of-the-host", testReachesNoSocket},
		{"writes-nothing-of-the-host", testWritesNothing},
		{"has-no-devices-of-the-host", testNoDevices},
	}), []test{
		{"kernel-is-not-the-hosts", isolated(testKernel)},
		{"hostname-is-the-specs", isolated(testHostname)},
		{"user-is-not-root", isolated(testUserNotRoot)},
		{"user-cannot-escalate", isolated(testUserEscape)},
		{"guests-see-nothing-of-each-other", isolated(testGuestsApart)},
		{"guests-do-not-share-what-they-write", isolated(testGuestsWriteApart)},
		{"guests-cannot-reach-each-other", isolated(testGuestsNetworkApart)},
	}...)
}

// attack is a test that runs with the rights of the user and of the agent.
type attack struct {
	name string
	run  func(t *tester, b *box)
}

func asBoth(attacks []attack) []test {
	var tests []test
	for _, a := range attacks {
		for _, who := range []string{"user", "agent"} {
			tests = append(tests, test{who + "-" + a.name, isolated(func(t *tester) {
				t.Setenv("ENGINETEST_TOKEN", token) // guests must not inherit it
				b := t.create(t.spec())
				hello := b.hello()
				if who == "agent" {
					hello.UID, hello.GID = -1, -1
				}
				t.must("open link", b.tryTalk(hello))
				a.run(t, b.install())
			})})
		}
	}
	return tests
}

// isolated skips a test on engines without isolation.
func isolated(f func(t *tester)) func(t *tester) {
	return func(t *tester) {
		if t.e.Info().Isolation == engine.IsolationNone {
			t.Skip("the engine isolates nothing")
		}
		f(t)
	}
}

// token is a secret that only the host has.
const token = "enginetest-token-5d8a1e"

// testSeesNothing puts a token where guests must not see it: in files, the
// environment, the command line of a process, the name of a socket.
func testSeesNothing(t *tester, b *box) {
	dir := t.TempDir()
	t.must("write", os.WriteFile(filepath.Join(dir, "secret"), []byte(token), 0o644))
	ctx, cancel := context.WithCancel(t.Context())
	process := exec.CommandContext(ctx, "sh", "-c", "read line # "+token)
	in, err := process.StdinPipe()
	t.must("make pipe", err)
	t.must("start process", process.Start())
	t.Cleanup(func() {
		in.Close()
		cancel()
		process.Wait()
	})
	socket, err := net.Listen("unix", "@"+token)
	t.must("listen", err)
	t.Cleanup(func() { socket.Close() })

	if seen := b.look("find", token, dir, "/root", "/home", "/tmp", "/run", "/var/tmp"); len(seen) > 0 {
		t.Errorf("the host's secret is seen in %q", seen)
	}
}

// testReadsNoSecrets compares files of the host that not every user may read with those at
// the same paths in the guest.
func testReadsNoSecrets(t *tester, b *box) {
	planted := filepath.Join(t.TempDir(), "secret")
	t.must("write", os.WriteFile(planted, []byte(token), 0o600))
	names := []string{planted, "/etc/machine-id", "/proc/1/environ", "/proc/1/cmdline"}
	home, _ := os.UserHomeDir() // empty if there is none
	for _, dir := range []string{"/etc", "/root", home, "/boot", "/var/lib", "/var/log"} {
		names = append(names, privateFiles(dir)...)
	}
	host := map[string]string{} // by name
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && len(b) > 0 { // else there is nothing to protect
			host[name] = fmt.Sprintf("%x", sha256.Sum256(b))
		}
	}
	for _, line := range b.look(append([]string{"digest"}, slices.Collect(maps.Keys(host))...)...) {
		if digest, name, _ := strings.Cut(line, " "); digest == host[name] {
			t.Errorf("%s is that of the host", name)
		}
	}
}

// privateFiles returns files in dir that not every user may read, at most three levels deep
// and 64 in all.
func privateFiles(dir string) []string {
	const depth, most, size = 3, 64, 1 << 20
	var found []string
	var walk func(dir string, level int)
	walk = func(dir string, level int) {
		entries, _ := os.ReadDir(dir) // what cannot be listed cannot be compared
		for _, e := range entries {
			info, err := e.Info()
			switch name := filepath.Join(dir, e.Name()); {
			case err != nil || len(found) == most:
			case info.IsDir() && level < depth:
				walk(name, level+1)
			case info.Mode().IsRegular() && info.Size() <= size && info.Mode()&0o004 == 0:
				found = append(found, name)
			}
		}
	}
	if dir != "" {
		walk(dir, 1)
	}
	return found
}

func testReachesNoNetwork(t *tester, b *box) {
	var addresses []string
	listener, err := net.Listen("tcp", ":0")
	t.must("listen", err)
	t.Cleanup(func() { listener.Close() })
	port := fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
	for _, h := range t.hostAddresses() {
		addresses = append(addresses, net.JoinHostPort(h, port))
	}
	addresses = append(addresses,
		"169.254.169.254:80", "[fd00:ec2::254]:80", "1.1.1.1:443", "8.8.8.8:53", "10.0.0.1:80", "192.168.1.1:80", "172.17.0.1:80")
	if reached := b.look(append([]string{"connect", "tcp"}, addresses...)...); len(reached) > 0 {
		t.Errorf("reached %q", reached)
	}
	links := b.look("links")
	if extra := slices.DeleteFunc(links, func(l string) bool { return l == "lo" }); len(extra) > 0 {
		t.Errorf("there are network interfaces %q", extra)
	}
}

// testGetsNoAnswer asks a server on the host, and name servers, by UDP.
func testGetsNoAnswer(t *tester, b *box) {
	server, err := net.ListenPacket("udp", ":0")
	t.must("listen", err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			server.WriteTo(buf[:n], from)
		}
	}()
	t.Cleanup(func() { server.Close(); <-done })
	port := fmt.Sprint(server.LocalAddr().(*net.UDPAddr).Port)
	addresses := []string{"1.1.1.1:53", "8.8.8.8:53", "127.0.0.53:53"}
	for _, h := range t.hostAddresses() {
		addresses = append(addresses, net.JoinHostPort(h, port))
	}
	if answered := b.look(append([]string{"connect", "udp"}, addresses...)...); len(answered) > 0 {
		t.Errorf("answers came from %q", answered)
	}
}

// hostAddresses returns the addresses of this host, loopback included.
func (t *tester) hostAddresses() []string {
	hosts := []string{"127.0.0.1", "::1", "localhost", "0.0.0.0"}
	own, err := net.InterfaceAddrs()
	t.must("list addresses", err)
	for _, a := range own {
		if ip, ok := a.(*net.IPNet); ok {
			hosts = append(hosts, ip.IP.String())
		}
	}
	return hosts
}

func testReachesNoSocket(t *tester, b *box) {
	// Not t.TempDir, which has the name of the test: the address of a socket is short.
	dir, err := os.MkdirTemp("", "enginetest-")
	t.must("make a directory", err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	var addresses []string
	for _, address := range []string{path, "@enginetest-socket"} {
		l, err := net.Listen("unix", address)
		t.must("listen", err)
		t.Cleanup(func() { l.Close() })
		addresses = append(addresses, address)
	}
	addresses = append(addresses, "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
		"/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/notify")
	if reached := b.look(append([]string{"connect", "unix"}, addresses...)...); len(reached) > 0 {
		t.Errorf("reached sockets %q", reached)
	}
}

// testWritesNothing writes wherever the guest allows; nothing must change on the host.
// The attempts are harmless if they succeed.
func testWritesNothing(t *tester, b *box) {
	dirs := []string{"/", "/usr", "/usr/bin", "/etc", "/tmp", "/var/tmp", "/dev/shm", "/run", "/home"}
	tree := t.spec().Root.Tree
	if tree == nil {
		tree = &engine.Tree{Dir: "/"}
	}
	for _, m := range tree.Binds {
		dirs = append(dirs, m.Guest)
	}
	name := "enginetest-" + newID()
	for _, d := range dirs {
		b.exec(protocol.Exec{Argv: []string{"sh", "-c", `echo x > "$1"`, "sh", filepath.Join(d, name)}}, nil)
		for _, host := range []string{filepath.Join(d, name), filepath.Join(tree.Dir, d, name)} {
			if os.Remove(host) == nil {
				t.Errorf("%s was written in the guest and was on the host", host)
			}
		}
	}
	for _, f := range []string{"/usr/bin/env", "/bin/sh", "/etc/passwd", "/etc/hostname"} {
		before, err := os.Stat(f)
		if err != nil {
			continue
		}
		b.exec(protocol.Exec{Argv: []string{"sh", "-c", `touch "$1"`, "sh", f}}, nil)
		if after, err := os.Stat(f); err != nil || !after.ModTime().Equal(before.ModTime()) {
			t.Errorf("%s of the host was touched by the guest", f)
		}
	}
}

func testNoDevices(t *tester, b *box) {
	harmless := []string{"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "fuse", "net", "net/tun", "stdin", "stdout", "stderr"}
	for _, d := range b.look("devices") {
		if !slices.Contains(harmless, d) {
			t.Errorf("the guest has the device %q", d)
		}
	}
}

func testKernel(t *tester) {
	b := t.create(t.spec()).talk().install()
	guest := b.look("kernel")
	cmd := exec.Command(t.probe, "kernel")
	cmd.Env = []string{}
	out, err := cmd.Output()
	t.must("look at the host's kernel", err)
	host := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, what := range []string{"release", "version", "hostname", "boot"} {
		if i < len(guest) && i < len(host) && guest[i] == host[i] {
			t.Errorf("%s of the guest's kernel is the host's: %q", what, guest[i])
		}
	}
}

func testHostname(t *tester) {
	spec := t.spec()
	spec.Hostname = "some-name"
	named := t.create(spec).talk().install()
	if lines := named.look("kernel"); !slices.Contains(lines, "hostname some-name") {
		t.Errorf("hostname of the spec is some-name, the kernel says %q", lines)
	}
	spec.Hostname = ""
	unnamed := t.create(spec).talk().install()
	if lines := unnamed.look("kernel"); !slices.Contains(lines, "hostname "+unnamed.ID()) {
		t.Errorf("the spec has no hostname and the id is %s, the kernel says %q", unnamed.ID(), lines)
	}
}

func testUserNotRoot(t *tester) {
	b := t.create(t.spec()).talk()
	if out := strings.TrimSpace(b.sh("id -u")); out != fmt.Sprint(b.user.UID) || out == "0" {
		t.Errorf("code runs as user %s, want %d", out, b.user.UID)
	}
	status := b.sh("cat /proc/self/status")
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if slices.Contains([]string{"CapEff", "CapPrm", "CapAmb"}, name) && strings.Trim(value, " \t0") != "" {
			t.Errorf("code of the user has capabilities: %s", strings.TrimSpace(line))
		}
	}
}

func testUserEscape(t *tester) {
	b := t.create(t.spec()).talk().install()
	if worked := b.look("escape"); len(worked) > 0 {
		t.Errorf("a user could %q", worked)
	}
}

func testGuestsApart(t *tester) {
	a, b := t.create(t.spec()).talk(), t.create(t.spec()).talk().install()
	a.sh("echo " + token + " > secret; echo " + token + " > /tmp/secret")
	a.start(protocol.Exec{Shell: "exec sleep 1000 # " + token, Env: []string{"X=" + token}})
	if seen := b.look("find", token, b.user.Home, "/tmp", "/home", "/dev/shm"); len(seen) > 0 {
		t.Errorf("another guest's secret is seen in %q", seen)
	}
}

func testGuestsWriteApart(t *tester) {
	a := t.create(t.spec())
	hello := a.hello()
	hello.UID, hello.GID = -1, -1 // may write anywhere in its own guest
	t.must("open link", a.tryTalk(hello))
	name := "enginetest-" + newID()
	dirs := []string{"/", "/usr", "/usr/bin", "/etc", "/tmp", "/home"}
	t.Cleanup(func() {
		for _, d := range dirs {
			os.Remove(filepath.Join(d, name)) // of the host, if the engine is very wrong
		}
	})
	loop := "for d in " + strings.Join(dirs, " ") + "; do "
	a.sh(loop + "echo x > $d/" + name + "; done 2>/dev/null; true")
	if out := a.sh("cat /tmp/" + name); out != "x\n" {
		t.Errorf("a guest cannot read what it wrote: %q", out)
	}
	b := t.create(t.spec()).talk()
	if out := b.sh(loop + "ls -d $d/" + name + "; done 2>/dev/null; true"); out != "" {
		t.Errorf("files that another guest wrote: %q", out)
	}
}

func testGuestsNetworkApart(t *tester) {
	a, b := t.create(t.spec()).talk().install(), t.create(t.spec()).talk().install()
	const address = "127.0.0.1:34567"
	a.startProbe("listen", "tcp", address).says("listening")
	a.startProbe("listen", "unix", "@enginetest-guest").says("listening")
	if reached := a.look("connect", "tcp", address); len(reached) != 1 {
		t.Errorf("a guest cannot reach its own loopback address")
	}
	for network, address := range map[string]string{"tcp": address, "unix": "@enginetest-guest"} {
		if reached := b.look("connect", network, address); len(reached) > 0 {
			t.Errorf("another guest's socket is reached: %q", reached)
		}
	}
}
