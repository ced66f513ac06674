//go:build linux && (amd64 || arm64) && !cgo

package isolated

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// stub is the host of a guest's network: example.org and its like are allowed, and
// everything is answered by handler.
type stub struct {
	mu      sync.Mutex
	lookups []string
	dials   []protocol.Dial
	serve   func(ctx context.Context, d protocol.Dial, c net.Conn) error
}

func (s *stub) Lookup(_ context.Context, name string) protocol.LookupResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups = append(s.lookups, name)
	switch {
	case strings.HasSuffix(name, ".example.org"), name == "example.org":
		return protocol.LookupResult{Status: protocol.LookupOK, Ports: []int{80, 443, 5432}, TTL: 60}
	case name == "missing.example.com":
		return protocol.LookupResult{Status: protocol.LookupNXDomain}
	case name == "down.example.com":
		return protocol.LookupResult{Status: protocol.LookupFailed}
	}
	return protocol.LookupResult{Status: protocol.LookupRefused}
}

func (s *stub) Serve(ctx context.Context, d protocol.Dial, c net.Conn) error {
	s.mu.Lock()
	s.dials = append(s.dials, d)
	s.mu.Unlock()
	return s.serve(ctx, d, c)
}

// asked returns how often the host was asked.
func (s *stub) asked() (lookups []string, dials []protocol.Dial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookups, s.dials
}

// serveHTTP answers HTTP requests that name their door and target in the answer.
func serveHTTP(_ context.Context, d protocol.Dial, c net.Conn) error {
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return nil
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s %s %s %s %d %d\n", d.Door, req.Method, req.URL, d.Name, d.Port, len(body))
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text); err != nil {
			return err
		}
	}
}

// echo returns every byte.
func echo(_ context.Context, _ protocol.Dial, c net.Conn) error {
	if _, err := io.Copy(c, c); err != nil {
		return err
	}
	return c.(interface{ CloseWrite() error }).CloseWrite()
}

// networked boots a guest that uses the agent's name server. Its network is off unless n
// is set.
func networked(t testing.TB, n *stub) *client.Conn {
	t.Helper()
	l := connTo(t, networkedRoot(t), map[string]string{"python": "/usr/bin/python3"})
	if n != nil {
		l.SetNetwork(n)
		must(t, l.Configure(t.Context(), protocol.Network{On: true}))
	}
	return l
}

// networkedRoot returns a root that uses the agent's name server.
func networkedRoot(t testing.TB) engine.Root {
	t.Helper()
	root := hostRoot(t)
	must(t, os.WriteFile(root.Tree.Dir+"/etc/resolv.conf", []byte("nameserver 127.77.0.1\noptions timeout:10 attempts:2\n"), 0o644))
	must(t, os.WriteFile(root.Tree.Dir+"/etc/nsswitch.conf", []byte("passwd: files\nhosts: files dns\n"), 0o644))
	must(t, os.WriteFile(root.Tree.Dir+"/etc/hosts", []byte("127.0.0.1 localhost\n127.0.1.1 glovebox\n"), 0o644))
	must(t, os.WriteFile(root.Tree.Dir+"/etc/services", []byte("https 443/tcp\nhttp 80/tcp\n"), 0o644))
	root.Key = "networked"
	return root
}

// expect runs a line in the shell and compares its output.
func expect(t testing.TB, l *client.Conn, line, want string) {
	t.Helper()
	res, r := sh(t, l, line)
	if string(r.out) != want {
		t.Errorf("%s: exit code %d, got %q, want %q; stderr %q", line, res.Code, r.out, want, r.err)
	}
}

// TestDNS_RefusedInEachCall checks that the host learns of a refused name in each call of
// the box, whatever the box remembers of the call before.
func TestDNS_RefusedInEachCall(t *testing.T) {
	n := &stub{}
	l := networked(t, n)
	lookUp := "import socket\ntry: socket.getaddrinfo('refused.test', 443)\nexcept OSError: pass\n"
	for i, call := range []func(){
		func() { expect(t, l, "getent hosts refused.test; echo $?", "2\n") },
		func() { python(t, l, lookUp) },
		func() { python(t, l, lookUp) },
		func() { expect(t, l, "getent hosts refused.test; echo $?", "2\n") },
	} {
		before, _ := n.asked()
		call()
		if after, _ := n.asked(); len(after) == len(before) {
			t.Errorf("call %d: the host did not learn of the refused name", i+1)
		}
	}
}

// TestDNS checks what resolvers see.
func TestDNS(t *testing.T) {
	n := &stub{}
	l := networked(t, n)
	for line, want := range map[string]string{
		"getent hosts a.example.org | cut -d. -f1,2":                               "127.80\n",
		"getent hosts other.test; echo $?":                                         "2\n",
		"getent hosts localhost":                                                   "127.0.0.1       localhost\n",
		"getent hosts $(getent hosts example.org | cut -d' ' -f1) | sed 's/.* //'": "example.org\n",
	} {
		expect(t, l, line, want)
	}
	_, r := python(t, l, `
import socket
def resolve(*a, **k):
    try:
        return sorted({x[4][0] for x in socket.getaddrinfo(*a, **k)})
    except OSError as e:
        return type(e).__name__, e.errno
a = resolve('example.org', 443)
print(len(a), a[0].startswith('127.80.'), resolve('example.org', 443) == a, resolve('EXAMPLE.org.', 443) == a)
print(resolve('b.example.org', 443) == a)
print(resolve('other.test', 443), resolve('missing.example.com', 443), resolve('down.example.com', 443), resolve('single', 443))
print(resolve('example.org', 443, flags=socket.AI_ADDRCONFIG) == a, resolve('example.org', 443, family=socket.AF_INET) == a)
print(resolve('example.org', 443, family=socket.AF_INET6))
`)
	want := "1 True True True\nFalse\n('gaierror', -2) ('gaierror', -2) ('gaierror', -3) ('gaierror', -2)\nTrue True\n('gaierror', -5)\n"
	if string(r.out) != want {
		t.Errorf("got\n%swant\n%s%s", r.out, want, r.err)
	}
	lookups, _ := n.asked()
	for _, name := range lookups {
		if !protocol.ValidName(name) {
			t.Errorf("the host was asked for %q", name)
		}
	}
}

// TestDoors checks that bytes pass through each door.
func TestDoors(t *testing.T) {
	n := &stub{serve: serveHTTP}
	l := networked(t, n)
	for line, want := range map[string]string{
		"curl -sS http://example.org/x":                                                                                                                "http GET http://example.org/x  0 0\n",
		"curl -sS --noproxy '*' http://example.org/x":                                                                                                  "tcp GET /x example.org 80 0\n",
		"curl -sS --noproxy '*' http://a.example.org:5432/x":                                                                                           "tcp GET /x a.example.org 5432 0\n",
		"head -c 300000 /dev/zero | curl -sS --noproxy '*' --data-binary @- http://example.org/x":                                                      "tcp POST /x example.org 80 300000\n",
		`python3 -c 'import urllib.request as u; print(u.urlopen("http://example.org/y").read().decode(), end="")'`:                                    "http GET http://example.org/y  0 0\n",
		`python3 -c 'import urllib.request as u; print(u.build_opener(u.ProxyHandler({})).open("http://example.org/y").read().decode(), end="")'`:      "tcp GET /y example.org 80 0\n",
		`node -e 'fetch("http://example.org/z").then(r => r.text()).then(s => process.stdout.write(s.replace("http:", "tcp:").split(" ")[1] + "\n"))'`: "GET\n",
		"curl -sS --noproxy '*' --max-time 5 http://example.org:81/; echo $?":                                                                          "7\n",
	} {
		if strings.HasPrefix(line, "node") {
			if res, _ := sh(t, l, "node --version"); res.Code != 0 {
				t.Log("no node here")
				continue
			}
		}
		expect(t, l, line, want)
	}
}

// TestDoors_OfflineAnswerLocally checks that a guest without a network gets clear answers
// and asks the host nothing: a dial would end the connection.
func TestDoors_OfflineAnswerLocally(t *testing.T) {
	l := networked(t, nil)
	check := func(notice, remedy string) {
		t.Helper()
		refused := notice + remedy
		for line, want := range map[string]string{
			"getent hosts example.org; echo $?":                                                "2\n",
			"curl -s -o /dev/null -w '%{http_code} %{http_connect}\\n' https://example.org/":   "000 403\n",
			"curl -s http://example.org/":                                                      refused + "\n",
			"curl -sS --socks5-hostname 127.77.0.1:1080 --noproxy '' http://example.org/ 2>&1": "curl: (97) Can't complete SOCKS5 connection to example.org. (2)\n",
			`python3 -c 'import urllib.request as u
try: u.urlopen("https://example.org/y")
except OSError as e: print(e)'`: "<urlopen error Tunnel connection failed: 403 " + refused + ">\n",
			"cat /run/glovebox/network": strings.TrimSpace("off "+strings.TrimPrefix(notice, "Glovebox: this box has no network")) + "\n",
		} {
			expect(t, l, line, want)
		}
	}
	check("Glovebox: this box has no network", "; its operator can allow hosts with --network, and the build of a template with --net")
	expect(t, l, "curl -s http://PyPI.org/simple/x/; curl -s http://registry.npmjs.org:80/x",
		"Glovebox: this box has no network; its operator can allow this with --network pypi, and the build of a template with --net pypi\nGlovebox: this box has no network; its operator can allow this with --network npm, and the build of a template with --net npm\n")
	must(t, l.Configure(t.Context(), protocol.Network{Notice: "No network here; ask for --network pypi"}))
	check("No network here; ask for --network pypi", "")
	if _, err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDoors_OnAndOff checks that the settings change at run time.
func TestDoors_OnAndOff(t *testing.T) {
	n := &stub{serve: serveHTTP}
	l := networked(t, n)
	expect(t, l, "curl -sS http://example.org/; cat /run/glovebox/network", "http GET http://example.org/  0 0\non\n")
	must(t, l.Configure(t.Context(), protocol.Network{Notice: "off now"}))
	expect(t, l, "curl -s http://example.org/; getent hosts example.org; cat /run/glovebox/network", "off now\noff off now\n")
	must(t, l.Configure(t.Context(), protocol.Network{On: true}))
	expect(t, l, "curl -sS http://example.org/", "http GET http://example.org/  0 0\n")
}

// TestDoors_HalfClose checks that the end of one direction leaves the other.
func TestDoors_HalfClose(t *testing.T) {
	l := networked(t, &stub{serve: echo})
	_, r := python(t, l, `
import socket
s = socket.create_connection(('example.org', 5432))
data = bytes(range(256)) * 8192
import threading
def send():
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
th = threading.Thread(target=send); th.start()
got = b''
while chunk := s.recv(65536):
    got += chunk
th.join()
print(len(got), got == data)
`)
	if want := "2097152 True\n"; string(r.out) != want {
		t.Errorf("got %q, want %q; %s", r.out, want, r.err)
	}
}

// TestDoors_ManyConnections checks that a flood of connections is refused beyond the
// limit, that the guest works meanwhile, and that places become free.
func TestDoors_ManyConnections(t *testing.T) {
	l := networked(t, &stub{serve: echo})
	_, r := python(t, l, fmt.Sprintf(`
import socket
cs = []
for i in range(%d):
    c = socket.create_connection(('example.org', 5432)); c.settimeout(20); cs.append(c)
ok = 0
for c in cs:
    try:
        c.sendall(b'x')
        ok += c.recv(1) == b'x'
    except OSError:
        pass
print(ok)
p = socket.create_connection(('127.77.0.1', 3128))
print(p.recv(1000).split(b'\r\n')[0].decode())
for c in cs: c.close()
import time
end = time.monotonic() + 20
while time.monotonic() < end:
    c = socket.create_connection(('example.org', 5432)); c.settimeout(20)
    try:
        c.sendall(b'y')
        if c.recv(1) == b'y':
            print('again'); break
    except OSError:
        pass
    c.close(); time.sleep(0.05)
`, protocol.MaxDials+10))
	if want := fmt.Sprintf("%[1]d\nHTTP/1.1 429 Glovebox: this box has %[1]d connections already; close some and try again\nagain\n", protocol.MaxDials); string(r.out) != want {
		t.Errorf("got %q, want %q; %s", r.out, want, r.err)
	}
	if _, err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDoors_HostEnds checks what a program sees when the host ends its connection.
func TestDoors_HostEnds(t *testing.T) {
	l := networked(t, &stub{serve: func(_ context.Context, d protocol.Dial, c net.Conn) error {
		if d.Port == 443 {
			return fmt.Errorf("upstream: %w", syscall.ECONNRESET)
		}
		_, err := c.Write([]byte("bye"))
		return err
	}})
	_, r := python(t, l, `
import socket
for port in 5432, 443:
    s = socket.create_connection(('example.org', port))
    try:
        got = b''
        while chunk := s.recv(10):
            got += chunk
        print(got)
    except OSError as e:
        print(type(e).__name__)
`)
	if want := "b'bye'\nConnectionResetError\n"; string(r.out) != want {
		t.Errorf("got %q, want %q; %s", r.out, want, r.err)
	}
}

// TestDoors_Restored checks that a program that waits for its connection gets the end of
// it, or an error, after its guest was restored from a snapshot.
func TestDoors_Restored(t *testing.T) {
	e, spec := newEngine(t, networkedRoot(t))
	g, err := e.Create(t.Context(), "original", spec)
	must(t, err)
	l := connect(t, g, client.Open)
	l.SetNetwork(&stub{serve: func(ctx context.Context, _ protocol.Dial, c net.Conn) error {
		c.Write([]byte("x"))
		<-ctx.Done()
		return nil
	}})
	must(t, l.Configure(t.Context(), protocol.Network{On: true}))
	sh(t, l, `cat >prog.py <<'END'
import socket
s = socket.create_connection(('example.org', 5432))
s.recv(1)
open('connected', 'w').close()
try:
    print('got', s.recv(1), flush=True)
except OSError as e:
    print('got', type(e).__name__, flush=True)
END
setsid -f python3 prog.py >out 2>&1`)
	expect(t, l, "for i in $(seq 200); do [ -e connected ] && break; sleep 0.05; done; ls connected; cat out", "connected\n")
	dir := t.TempDir()
	if _, err := e.Snapshot(t.Context(), "original", dir); err != nil {
		t.Fatal(err)
	}
	l.Close()
	must(t, g.Destroy(t.Context()))
	g, err = e.Restore(t.Context(), "restored", spec, engine.Snapshot{Dir: dir})
	must(t, err)
	l = connect(t, g, client.Resume)
	_, r := sh(t, l, "for i in $(seq 200); do [ -s out ] && break; sleep 0.05; done; cat out")
	if got := string(r.out); got != "got b''\n" && got != "got ConnectionResetError\n" {
		t.Errorf("got %q, want the end of the connection", got)
	}
}

// BenchmarkDoors_Download measures bytes from the host to a program.
func BenchmarkDoors_Download(b *testing.B) {
	for _, streams := range []int{1, 8} {
		b.Run(fmt.Sprint(streams), func(b *testing.B) {
			const size = 256 << 20
			l := networked(b, &stub{serve: func(_ context.Context, _ protocol.Dial, c net.Conn) error {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return err
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
				buf := make([]byte, 256<<10)
				for n := 0; n < size; n += len(buf) {
					if _, err := c.Write(buf); err != nil {
						return err
					}
				}
				return nil
			}})
			b.SetBytes(size * int64(streams))
			for b.Loop() {
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, r := sh(b, l, fmt.Sprintf("for i in $(seq %d); do curl -sS --noproxy '*' -w '%%{size_download}\\n' -o /dev/null http://example.org/ & done; wait", streams))
					if want := strings.Repeat(fmt.Sprintln(size), streams); string(r.out) != want {
						b.Errorf("got %q, want %q; %s", r.out, want, r.err)
					}
				}()
				var worst, sum time.Duration
				n := 0
				for run := true; run; {
					select {
					case <-done:
						run = false
					case <-time.After(5 * time.Millisecond):
						d, err := l.Ping(b.Context())
						if err != nil {
							b.Fatal(err)
						}
						worst, sum, n = max(worst, d), sum+d, n+1
					}
				}
				b.ReportMetric(float64(worst.Microseconds())/1000, "ping-max-ms")
				b.ReportMetric(float64(sum.Microseconds())/1000/float64(n), "ping-mean-ms")
			}
		})
	}
}
