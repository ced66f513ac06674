package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// run is one run of the demo.
type run struct {
	begin  time.Time
	count  int
	block  string // printed below the step's line
	csv    []byte
	figure string

	binary   string
	dir      string // temporary
	secret   string // what must not be seen inside
	server   *exec.Cmd
	exited   chan error
	log      *tail
	endpoint string
	session  *mcp.ClientSession
	context  string // the id of the Python context
}

var endpointLine = regexp.MustCompile(`https?://\S+/mcp`)

// start creates the secrets that no box may see, and starts the server.
func (r *run) start(ctx context.Context, binary string) (string, error) {
	var err error
	r.binary = binary
	if r.dir, err = os.MkdirTemp("", "glovebox-demo-"); err != nil {
		return "", err
	}
	r.secret = rand.Text()
	if err := os.WriteFile(filepath.Join(r.dir, "secret.txt"), []byte(r.secret), 0o644); err != nil {
		return "", err
	}
	return r.launch(ctx)
}

// launch starts the server on a free port and waits for its endpoint.
func (r *run) launch(ctx context.Context) (string, error) {
	r.server = exec.Command(r.binary, "serve", "--port", "0", "--state-dir", filepath.Join(r.dir, "state"), "--toolset", "all")
	r.server.Env = append(os.Environ(), "DEMO_SECRET="+r.secret)
	// Its own process group: a Ctrl-C reaches only the demo, which then stops the server.
	r.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := r.server.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := r.server.Start(); err != nil {
		return "", fmt.Errorf("%w (run make build first)", err)
	}
	r.log = &tail{}
	found := make(chan string, 1)
	r.exited = make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			r.log.add(lines.Text())
			if url := endpointLine.FindString(lines.Text()); url != "" {
				select {
				case found <- strings.Trim(url, `",`):
				default:
				}
			}
		}
		io.Copy(io.Discard, stderr)
		r.exited <- r.server.Wait()
	}()
	select {
	case r.endpoint = <-found:
		return r.endpoint, nil
	case err := <-r.exited:
		r.exited <- err
		return "", fmt.Errorf("the server ended: %v", err)
	case <-ctx.Done():
		return "", fmt.Errorf("no endpoint: %w", context.Cause(ctx))
	}
}

// connect opens an MCP session.
func (r *run) connect(ctx context.Context) (string, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "glovebox-demo", Version: "1"}, nil)
	var err error
	r.session, err = client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: r.endpoint}, nil)
	if err != nil {
		return "", err
	}
	tools, err := r.session.ListTools(ctx, nil)
	if err != nil {
		return "", err
	}
	if len(tools.Tools) == 0 {
		return "", errors.New("the server offers no tools")
	}
	info := r.session.InitializeResult()
	return fmt.Sprintf("MCP %s, %d tools", info.ProtocolVersion, len(tools.Tools)), nil
}

// stop stops the server and returns an error unless it exits with 0.
func (r *run) stop() error {
	if r.session != nil {
		r.session.Close()
	}
	if r.server == nil || r.server.Process == nil {
		return nil
	}
	r.server.Process.Signal(syscall.SIGTERM)
	select {
	case exit := <-r.exited:
		r.server = nil
		if exit != nil {
			return fmt.Errorf("the server did not end cleanly: %w", exit)
		}
		return nil
	case <-time.After(30 * time.Second):
		r.server.Process.Kill()
		return errors.New("the server did not end within 30 seconds of SIGTERM")
	}
}

// end stops the server and reports the outcome.
func (r *run) end(err error) error {
	if r.server != nil {
		begin := time.Now()
		err = cmp.Or(err, r.stop())
		if err == nil {
			fmt.Printf("%2d  %-28s%6.2f s\n", r.count+1, "stop the server", time.Since(begin).Seconds())
		}
	}
	if err != nil && r.log != nil {
		err = fmt.Errorf("%w\n\nThe server's last lines:\n%s", err, r.log)
	}
	if r.dir != "" {
		os.RemoveAll(r.dir)
	}
	if err == nil {
		fmt.Printf("\nAll as expected, in %.1f s. The figure is %s\n", time.Since(r.begin).Seconds(), r.figure)
	}
	return err
}

// tail keeps the last lines of a log.
type tail struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines = append(t.lines, line); len(t.lines) > 30 {
		t.lines = t.lines[1:]
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n")
}
