//go:build linux && (amd64 || arm64) && !cgo

package isolated

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/gvisor"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/embed/embedtest"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
	"github.com/glovebox-dev/glovebox/internal/polltest"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

// missing is the reason why there can be no guests here.
var missing error

func TestMain(m *testing.M) {
	gvisor.Main()
	missing = gvisor.Enter(false)
	os.Exit(proctest.Main(m))
}

const (
	pids     = 60
	memoryMB = 256
)

// newConn boots a guest with the host's programs and connects to its agent.
func newConn(t testing.TB) *client.Conn {
	t.Helper()
	return connTo(t, hostRoot(t), map[string]string{"python": "/usr/bin/python3"})
}

// connTo boots a guest of the given root and connects to its agent.
func connTo(t testing.TB, root engine.Root, interpreters map[string]string) *client.Conn {
	t.Helper()
	e, spec := newEngine(t, root)
	g, err := e.Create(t.Context(), "agent", spec)
	if err != nil {
		t.Fatal(err)
	}
	return connectWith(t, g, client.Open, interpreters)
}

// newEngine returns an engine, and the spec of a guest of the given root.
func newEngine(t testing.TB, root engine.Root) (*gvisor.Engine, *engine.Spec) {
	t.Helper()
	if missing != nil {
		t.Skip("guests cannot be isolated here:", missing)
	}
	e, err := gvisor.Open(t.Context(), gvisor.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e, &engine.Spec{
		Root: root, Agent: embedtest.Program(t),
		Limits: engine.Limits{CPUs: 2, MemoryMB: memoryMB + 256, DiskMB: 64, PIDs: pids + 64},
	}
}

// connect connects to a guest's agent with client.Open or client.Resume.
func connect(t testing.TB, g engine.Guest, open func(context.Context, client.Dialer, client.Options) (*client.Conn, error)) *client.Conn {
	t.Helper()
	return connectWith(t, g, open, map[string]string{"python": "/usr/bin/python3"})
}

func connectWith(t testing.TB, g engine.Guest, open func(context.Context, client.Dialer, client.Options) (*client.Conn, error), interpreters map[string]string) *client.Conn {
	t.Helper()
	l, err := open(t.Context(), g, client.Options{Hello: protocol.Hello{
		Home: "/home/user", Scratch: []string{"/tmp"}, UID: 1000, GID: 1000, PIDs: pids, MemoryMB: memoryMB,
		Interpreters: interpreters, Entropy: bytes.Repeat([]byte{7}, 32),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// hostRoot returns a root with the host's programs.
func hostRoot(t testing.TB) engine.Root {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"usr", "etc", "tmp", "root"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	must(t, os.Chmod(dir+"/tmp", 0o777|os.ModeSticky))
	must(t, os.WriteFile(dir+"/etc/passwd", []byte("root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/user:/bin/sh\n"), 0o644))
	must(t, os.WriteFile(dir+"/etc/secret", []byte("secret"), 0o600))
	tree := &engine.Tree{Dir: dir, Binds: []engine.Mount{{Host: "/usr", Guest: "/usr"}}}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if to, err := os.Readlink("/" + name); err == nil {
			must(t, os.Symlink(to, filepath.Join(dir, name)))
		} else if _, err := os.Stat("/" + name); err == nil {
			must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
			tree.Binds = append(tree.Binds, engine.Mount{Host: "/" + name, Guest: "/" + name})
		}
	}
	return engine.Root{Key: "host", Tree: tree}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// record keeps output.
type record struct{ out, err []byte }

func (r *record) Output(ch protocol.Channel, p []byte) {
	if ch == protocol.Stdout {
		r.out = append(r.out, p...)
	} else {
		r.err = append(r.err, p...)
	}
}
func (r *record) Display(protocol.Display) {}

// sh runs a line in the shell.
func sh(t testing.TB, l *client.Conn, line string) (protocol.ExecResult, *record) {
	t.Helper()
	var r record
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := l.Exec(ctx, protocol.Exec{Shell: line}, nil, &r)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return res, &r
}

func python(t testing.TB, l *client.Conn, code string) (protocol.RunResult, *record) {
	t.Helper()
	var r record
	res, err := l.Run(t.Context(), protocol.Run{Kernel: "main", Language: "python", TimeoutMS: 30_000}, []byte(code), &r)
	if err != nil {
		t.Fatalf("run %.40q: %v", code, err)
	}
	return res, &r
}

func code(err error) protocol.Code {
	var we *protocol.Error
	if errors.As(err, &we) {
		return we.Code
	}
	return ""
}

func TestReportedLimits(t *testing.T) {
	l := newConn(t)
	want := map[string]string{"pids": "cgroup", "memory": "watcher", "open_files": "rlimit", "core": "rlimit", "address_space": "rlimit"}
	for k, v := range want {
		if got := l.Hello().Limits[k]; got != v {
			t.Errorf("%s is enforced by %q, want %q", k, got, v)
		}
	}
}

// TestUserPrivileges checks the user's identity and that it cannot affect the agent.
func TestUserPrivileges(t *testing.T) {
	l := newConn(t)
	_, r := sh(t, l, `id -un; id -G; pwd; stat -c '%a %U' .; grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /proc/self/fd | wc -l`)
	if got, want := string(r.out), "ada\n1000\n/home/user\n700 ada\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n4\n"; got != want {
		t.Errorf("got %q, want %q; stderr %q", got, want, r.err)
	}
	for _, attack := range []string{
		"kill -KILL 1", "kill -SEGV 1", "kill -STOP 1", "cat /proc/1/environ", "cat /proc/1/mem", "ls /proc/1/fd/",
		"echo x > /proc/1/fd/1", "cat /etc/secret", "echo x > /usr/bin/true", "mount -t tmpfs none /mnt",
		"echo max > /sys/fs/cgroup/glovebox-user/pids.max", "echo $$ > /sys/fs/cgroup/cgroup.procs",
		"echo 1 > /sys/fs/cgroup/glovebox-agent/cgroup.kill",
	} {
		if res, r := sh(t, l, attack); res.Code == 0 {
			t.Errorf("%s: succeeded: %q", attack, r.out)
		}
	}
	if _, err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestFiles_UseUserRights checks that file operations do not use the agent's
// rights.
func TestFiles_UseUserRights(t *testing.T) {
	l := newConn(t)
	// /tmp is writable for everyone, but files of others in it are not.
	sh(t, l, "mkdir /tmp/mine; chmod 700 /tmp/mine; echo x > /tmp/mine/f; echo x > f; chmod 0 f; mkdir d; echo x > d/f; chmod 555 d")
	fi, err := l.Write(t.Context(), protocol.Write{Path: "/tmp/mine/g"}, strings.NewReader("y"))
	if err != nil || fi.Size != 1 {
		t.Errorf("got %+v, %v", fi, err)
	}
	if _, r := sh(t, l, "stat -c '%U %a' /tmp/mine/g"); string(r.out) != "ada 644\n" {
		t.Errorf("the file belongs to %q", r.out)
	}
	if _, err := l.Read(t.Context(), protocol.Read{Path: "f"}, io.Discard); code(err) != protocol.CodeNotAllowed {
		t.Errorf("read a file of mode 0: got %v", err)
	}
	if err := l.Remove(t.Context(), protocol.Remove{Path: "d/f"}); code(err) != protocol.CodeNotAllowed {
		t.Errorf("remove from a read-only directory: got %v", err)
	}
	if _, err := l.Write(t.Context(), protocol.Write{Path: "d/new"}, strings.NewReader("y")); code(err) != protocol.CodeNotAllowed {
		t.Errorf("write to a read-only directory: got %v", err)
	}
}

// TestFiles_SymlinksOutOfHome checks that no operation follows symbolic links out of the home in
// gVisor, whose open does so with O_NOFOLLOW and O_DIRECTORY.
func TestFiles_SymlinksOutOfHome(t *testing.T) {
	l := newConn(t)
	if res, r := sh(t, l, `set -e
		mkdir -p /dev/shm/out sub && echo secret >/dev/shm/out/f
		ln -s /dev/shm/out direct
		ln -s direct chain
		ln -s sub inside
		echo kept >sub/f`); res.Code != 0 {
		t.Fatalf("links: exit code %d, %s", res.Code, r.err)
	}
	archive := func(entries ...tar.Header) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			must(t, w.WriteHeader(&h))
		}
		must(t, w.Close())
		return &b
	}
	ops := map[string]func(path string) error{
		"read": func(path string) error {
			_, err := l.Read(t.Context(), protocol.Read{Path: path + "/f"}, io.Discard)
			return err
		},
		"write": func(path string) error {
			_, err := l.Write(t.Context(), protocol.Write{Path: path + "/new", Parents: true}, strings.NewReader("x"))
			return err
		},
		"mkdir": func(path string) error {
			_, err := l.Mkdir(t.Context(), protocol.Mkdir{Path: path + "/a/b", Parents: true})
			return err
		},
		"stat":    func(path string) error { _, err := l.Stat(t.Context(), path+"/f"); return err },
		"list":    func(path string) error { _, err := l.List(t.Context(), protocol.List{Path: path}); return err },
		"archive": func(path string) error { return l.Archive(t.Context(), path, io.Discard) },
		"extract": func(path string) error {
			return l.Extract(t.Context(), path, archive(tar.Header{Name: "unpacked", Mode: 0o644}))
		},
		"extract below": func(path string) error {
			return l.Extract(t.Context(), ".", archive(tar.Header{Name: path + "/unpacked", Mode: 0o644}))
		},
		"remove": func(path string) error { return l.Remove(t.Context(), protocol.Remove{Path: path + "/f"}) },
	}
	for name, op := range ops {
		for _, path := range []string{"direct", "chain"} {
			if err := op(path); code(err) != protocol.CodeNotAllowed {
				t.Errorf("%s through %s: got %v, want %q", name, path, err, protocol.CodeNotAllowed)
			}
		}
	}
	// Links from an archive: a stays inside, b leads out, t is a directory with a path
	// longer than permitted, and t/up leads out of it.
	symlink := func(name, target string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	element := strings.Repeat("d", 250)
	deep := strings.Repeat(element+"/", 15) + element
	for name, c := range map[string]struct {
		want    protocol.Code
		entries []tar.Header
	}{
		"file":       {protocol.CodeNotAllowed, []tar.Header{{Name: "b/sub/unpacked", Mode: 0o644}}},
		"hard link":  {protocol.CodeNotAllowed, []tar.Header{{Name: "linked", Typeflag: tar.TypeLink, Linkname: "b/sub/f"}}},
		"many links": {protocol.CodeInvalid, []tar.Header{{Name: strings.Repeat("a/", 300) + "b/sub/unpacked", Mode: 0o644}}},
		"long path": {protocol.CodeInvalid, []tar.Header{
			{Name: deep, Typeflag: tar.TypeDir},
			symlink("s", deep),
			{Name: "s/" + element + "/" + element, Typeflag: tar.TypeDir},
			symlink("t", "s/"+element+"/"+element),
			symlink("t/a", "."),
			symlink("t/"+strings.Repeat("a/", 20)+"up", strings.Repeat("../", 18)+"../sub"),
			{Name: "t/up/unpacked", Mode: 0o644},
		}},
	} {
		entries := append([]tar.Header{symlink("a", "."), symlink("a/b", "..")}, c.entries...)
		if err := l.Extract(t.Context(), "x", archive(entries...)); code(err) != c.want {
			t.Errorf("extract through links of the archive, %s: got %v, want %q", name, err, c.want)
		}
	}
	if _, r := sh(t, l, "ls /dev/shm/out sub; stat -c %h sub/f"); string(r.out) != "/dev/shm/out:\nf\n\nsub:\nf\n1\n" {
		t.Errorf("after all that there is\n%s", r.out)
	}
	for _, name := range []string{"read", "stat", "list", "archive", "write", "extract", "extract below", "mkdir", "remove"} {
		if err := ops[name]("inside"); err != nil {
			t.Errorf("%s through a link inside the home: %v", name, err)
		}
	}
	if err := l.Remove(t.Context(), protocol.Remove{Path: "direct"}); err != nil {
		t.Errorf("remove a link that leads outside: %v", err)
	}
}

func TestDiskFull(t *testing.T) {
	l := newConn(t)
	_, err := l.Write(t.Context(), protocol.Write{Path: "big"}, io.LimitReader(zeros{}, 200<<20))
	if code(err) != protocol.CodeNoSpace {
		t.Errorf("got %v", err)
	}
	if _, r := sh(t, l, "ls -A"); len(r.out) != 0 {
		t.Errorf("left: %q", r.out)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestForkBomb checks that commands can be run after a fork bomb.
func TestForkBomb(t *testing.T) {
	l := newConn(t)
	for _, bomb := range []string{
		":(){ :|:& };:",
		"setsid perl -e 'fork while 1' &",
	} {
		sh(t, l, bomb)
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		res, r := sh(t, l, "echo alive")
		if res.Code != 0 || string(r.out) != "alive\n" {
			t.Errorf("after %q: got %+v, %q, %q", bomb, res, r.out, r.err)
		}
		t.Logf("after %q: %q", bomb, r.err)
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("after %q: took %v", bomb, d)
		}
	}
	res, r := python(t, l, "print('alive')")
	if !res.OK || string(r.out) != "alive\n" {
		t.Errorf("got %+v, %q", res, r.out)
	}
}

// TestForkBomb_LeftByKernel checks that processes left by code cannot prevent the box
// from starting others, and that the kernel keeps its variables.
func TestForkBomb_LeftByKernel(t *testing.T) {
	l := newConn(t)
	res, r := python(t, l, `import subprocess
x = 7
for i in range(10000):
    try: subprocess.Popen(['sleep', '1000'], start_new_session=i % 2 == 0)
    except OSError: break`)
	if !res.OK || res.Ended == 0 {
		t.Fatalf("got %+v, %q", res, r.err)
	}
	t.Logf("%d processes ended", res.Ended)
	res, r = python(t, l, "import subprocess; print(subprocess.run(['echo', 'alive'], capture_output=True).stdout, x)")
	if !res.OK || string(r.out) != "b'alive\\n' 7\n" {
		t.Errorf("got %+v, %q", res, r.out)
	}
	if x, r := sh(t, l, "echo alive"); x.Code != 0 || string(r.out) != "alive\n" || len(r.err) > 0 {
		t.Errorf("got %+v, %q, %q", x, r.out, r.err)
	}
}

// TestMemoryBomb checks that the process that uses too much memory is killed, and no
// other.
func TestMemoryBomb(t *testing.T) {
	l := newConn(t)
	res, _ := python(t, l, "x = []\nwhile True: x.append(bytearray(1 << 20))")
	if res.Lost != "oom" {
		t.Errorf("got %+v", res)
	}
	res, r := python(t, l, "print('alive')")
	if !res.OK || !res.Fresh || string(r.out) != "alive\n" {
		t.Errorf("got %+v, %q", res, r.out)
	}
	res, _ = python(t, l, "x = bytearray(1 << 40)")
	if res.Lost != "" || res.Error == nil || res.Error.Name != "MemoryError" {
		t.Errorf("got %+v", res)
	}
	x, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"}}, nil, nil)
	if err != nil || x.Stopped != "oom" || x.Signal != "KILL" {
		t.Errorf("got %+v, %v", x, err)
	}
	res, _ = python(t, l, "1")
	if !res.OK || res.Fresh {
		t.Errorf("the kernel that was not to blame: got %+v", res)
	}
}

// TestInit_ReapsOrphans checks that the guest's first process reaps orphans.
func TestInit_ReapsOrphans(t *testing.T) {
	l := newConn(t)
	sh(t, l, "for i in $(seq 30); do (setsid sleep 0.1 &); done; sleep 1")
	polltest.Until(t, 10*time.Second, "leak: no zombies are left", func() bool {
		_, r := sh(t, l, "ps -eo stat= | grep -c Z")
		return string(r.out) == "0\n"
	})
}

func TestConcurrentCommands(t *testing.T) {
	l := newConn(t)
	done := make(chan error, 24)
	for i := range cap(done) {
		go func() {
			var r record
			res, err := l.Exec(t.Context(), protocol.Exec{Argv: []string{"cat"}}, strings.NewReader(fmt.Sprint(i)), &r)
			if err == nil && (res.Code != 0 || string(r.out) != fmt.Sprint(i)) {
				err = fmt.Errorf("got %+v, %q, %q", res, r.out, r.err)
			}
			done <- err
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Benchmark measures round trips from the host to the agent and to its kernel.
func Benchmark(b *testing.B) {
	l := newConn(b)
	python(b, l, "1")
	if _, err := exec.LookPath("true"); err != nil {
		b.Skip(err)
	}
	for name, fn := range map[string]func() error{
		"Ping": func() error { _, err := l.Ping(b.Context()); return err },
		"Run": func() error {
			_, err := l.Run(b.Context(), protocol.Run{Kernel: "main", Language: "python"}, []byte("print(1)"), nil)
			return err
		},
		"Stat": func() error { _, err := l.Stat(b.Context(), "."); return err },
		"Exec": func() error {
			_, err := l.Exec(b.Context(), protocol.Exec{Argv: []string{"true"}}, nil, nil)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				if err := fn(); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-µs")
		})
	}
}
