//go:build linux

package attack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// serverTimeout bounds the start of a server, which inspects the interpreters.
	serverTimeout = 90 * time.Second
	// requestTimeout bounds one request of an attack.
	requestTimeout = 20 * time.Second
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 1 << 20
)

// servers are the servers that the trials of a run share, by their arguments.
type servers struct {
	rig *rig
	mu  sync.Mutex
	dir string             // guarded by mu; state directory and files of all servers
	all map[string]*server // guarded by mu
}

// server is a running glovebox serve.
type server struct {
	url    string // of the endpoint
	addr   string // host and port
	cmd    *exec.Cmd
	tokens map[string]string // by owner
	log    *lastLines
	secure *tls.Config // of clients; nil: no TLS
	env    []string    // of the program, beside its own
}

// kind is how a server is configured.
type kind struct{ tokens, tls bool }

// open returns a server without tokens.
func (t *trial) open(ctx context.Context) (*server, error) { return t.rig.server.get(ctx, kind{}) }

// guarded returns a server that requires tokens; alice and bob have one.
func (t *trial) guarded(ctx context.Context) (*server, error) {
	return t.rig.server.get(ctx, kind{tokens: true})
}

// secured is guarded with TLS, and so with HTTP/2.
func (t *trial) secured(ctx context.Context) (*server, error) {
	return t.rig.server.get(ctx, kind{tokens: true, tls: true})
}

func (s *servers) get(ctx context.Context, k kind) (*server, error) {
	if at := s.rig.cfg.target; at != "" {
		return &server{addr: at, tokens: map[string]string{"alice": "a", "bob": "b"}, secure: s.rig.cfg.secure}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fmt.Sprintf("%+v", k)
	if srv := s.all[name]; srv != nil {
		return srv, nil
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	srv, err := s.start(ctx, k)
	if err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	s.all[name] = srv
	return srv, nil
}

func (s *servers) prepare() (err error) {
	if s.rig.cfg.Program == "" {
		return skip("the run has no program to start a server with")
	}
	if s.dir == "" {
		s.all = map[string]*server{}
		s.dir, err = os.MkdirTemp(s.rig.cfg.StateDir, "attack-")
	}
	return err
}

// program returns a command of glovebox with an environment of its own. HOME and the
// state directory are dir.
func (s *servers) program(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.rig.cfg.Program)
	cmd.Args = append([]string{"glovebox"}, args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "LANG=C.UTF-8",
		"GLOVEBOX_STATE_DIR=" + filepath.Join(dir, "state"), "GLOVEBOX_FINISH_TEMPLATES=false", "GLOVEBOX_PRELOAD=none",
		"GLOVEBOX_ONLY_USER=0", // as outside of containers
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// endpoint is what a server prints when it listens.
var endpoint = regexp.MustCompile(`https?://127\.0\.0\.1:\d+/mcp`)

// start starts a server on the state directory that the servers share.
func (s *servers) start(ctx context.Context, k kind) (*server, error) {
	srv := &server{tokens: map[string]string{}}
	var args []string
	if k.tokens {
		file := filepath.Join(s.dir, "tokens.toml")
		for _, name := range []string{"alice", "bob"} {
			out, err := s.program(ctx, s.dir, "token", "new", "--name", name, "--tokens-file", file).Output()
			if err != nil {
				return nil, fmt.Errorf("make a token: %w", err)
			}
			srv.tokens[name] = strings.TrimSpace(string(out))
		}
		args = append(args, "--tokens-file", file)
	}
	if k.tls {
		var err error
		cert, key := filepath.Join(s.dir, "cert.pem"), filepath.Join(s.dir, "key.pem")
		if srv.secure, err = newCertificate(cert, key); err != nil {
			return nil, fmt.Errorf("make a certificate: %w", err)
		}
		args = append(args, "--tls-cert", cert, "--tls-key", key)
	}
	return srv, s.launch(ctx, srv, s.dir, args...)
}

// launch starts a server whose HOME and state directory are in dir, and waits until it
// serves.
func (s *servers) launch(ctx context.Context, srv *server, dir string, args ...string) error {
	args = append([]string{"serve", "--port", "0", "--pool-size", "0", "--toolset", "all", "--pause-after", "never", "--max-sessions", "20"}, args...)
	srv.cmd = s.program(context.WithoutCancel(ctx), dir, args...)
	srv.cmd.Env = append(srv.cmd.Env, srv.env...)
	return srv.begin(ctx)
}

// begin starts the program of a server and waits until it serves.
func (s *server) begin(ctx context.Context) error {
	s.log = &lastLines{}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	found := make(chan string, 1)
	go s.log.follow(stderr, found)
	select {
	case s.url = <-found:
	case <-time.After(serverTimeout):
	case <-ctx.Done():
	}
	if s.url == "" {
		s.stop()
		return fmt.Errorf("no address within %v: %s", serverTimeout, printable(s.log.String()))
	}
	u, err := url.Parse(s.url)
	if err != nil {
		return err
	}
	s.addr = u.Host
	return s.await(ctx)
}

// await waits until the server serves.
func (s *server) await(ctx context.Context) error {
	for end := time.Now().Add(serverTimeout); ; {
		res, err := s.send(ctx, request{method: "GET", path: "/health"})
		if err == nil && res.status == http.StatusOK {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the server does not serve: %d, %v: %s", res.status, err, printable(s.log.String()))
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// stop ends the server and waits for it.
func (s *server) stop() error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(60 * time.Second):
		s.cmd.Process.Kill()
		return errors.Join(errors.New("a server did not end within a minute of SIGTERM"), <-ended)
	}
}

// close ends the servers and removes their files.
func (s *servers) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, srv := range s.all {
		if err := srv.stop(); err != nil {
			errs = append(errs, fmt.Errorf("server %s: %w: %s", name, err, printable(srv.log.String())))
		}
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// lastLines keeps the last lines of a log.
type lastLines struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

// follow reads a log to its end, sends the first address in it, and closes found.
func (l *lastLines) follow(r io.Reader, found chan<- string) {
	defer close(found)
	in := bufio.NewScanner(r)
	for in.Scan() {
		l.mu.Lock()
		l.lines = append(l.lines[max(0, len(l.lines)-50):], in.Text())
		l.mu.Unlock()
		if at := endpoint.FindString(in.Text()); at != "" {
			select {
			case found <- at:
			default:
			}
		}
	}
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// request is one HTTP request of an attack. Empty fields have the values of an honest
// client.
type request struct {
	method, path, body string
	token              string
	host               string
	headers            map[string]string // "" removes one
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a request on a connection of its own.
func (s *server) send(ctx context.Context, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if r.method == "" {
		r.method = http.MethodPost
	}
	if r.path == "" {
		r.path = "/mcp"
	}
	q, err := http.NewRequestWithContext(ctx, r.method, s.scheme()+"://"+s.addr+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	if r.method == http.MethodPost {
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
	}
	if r.token != "" {
		q.Header.Set("Authorization", "Bearer "+r.token)
	}
	for k, v := range r.headers {
		if v == "" {
			q.Header.Del(k)
		} else {
			q.Header.Set(k, v)
		}
	}
	if r.host != "" {
		q.Host = r.host
	}
	res, err := s.client().Do(q)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return answer{res.StatusCode, res.Header, string(body)}, err
}

// client returns a client that uses each connection once and follows no redirect.
func (s *server) client() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.secure},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// initialize is the first message of a client of the revision 2025-06-18.
const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"attack","version":"1"}}}`

// list is a request that needs no session.
const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`

// tool returns the message of a tool call.
func tool(name string, args map[string]any) string {
	b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": map[string]any{"name": name, "arguments": args}})
	return string(b)
}

// session begins an MCP session and returns its id.
func (s *server) session(ctx context.Context, token string) (string, error) {
	res, err := s.send(ctx, request{body: initialize, token: token})
	if err == nil && res.status != http.StatusOK {
		err = fmt.Errorf("initialize: status %d: %s", res.status, printable(res.body))
	}
	return res.header.Get("Mcp-Session-Id"), err
}

// works checks that an honest client is served within a second.
func (s *server) works(ctx context.Context, t *trial, token string) {
	start := time.Now()
	res, err := s.send(ctx, request{body: initialize, token: token})
	took := time.Since(start)
	t.check(err == nil && res.status == http.StatusOK, "an honest client is not served: %d, %v, %s", res.status, err, printable(res.body))
	if took > t.allowed*muchTooLate {
		t.late("an honest client is served after %v", took.Round(time.Millisecond))
	}
}

// raw writes bytes to the server and returns what it answers until it closes the
// connection or wait is over.
func (s *server) raw(ctx context.Context, text string, wait time.Duration) (string, bool, error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return "", false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", false, err
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return "", true, nil // closed already
	}
	var b bytes.Buffer
	_, err = io.Copy(&b, io.LimitReader(conn, maxAnswer))
	var timeout net.Error
	return b.String(), !(errors.As(err, &timeout) && timeout.Timeout()), nil
}
