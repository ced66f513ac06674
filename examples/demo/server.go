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
func (d *run) start(ctx context.Context, binary string) (string, error) {
	var err error
	d.binary = binary
	if d.dir, err = os.MkdirTemp("", "glovebox-demo-"); err != nil {
		return "", err
	}
	d.secret = rand.Text()
	if err := os.WriteFile(filepath.Join(d.dir, "secret.txt"), []byte(d.secret), 0o644); err != nil {
		return "", err
	}
	return d.launch(ctx)
}

// launch starts the server on a free port and waits for its endpoint.
func (d *run) launch(ctx context.Context) (string, error) {
	d.server = exec.Command(d.binary, "serve", "--port", "0", "--state-dir", filepath.Join(d.dir, "state"), "--toolset", "all")
	d.server.Env = append(os.Environ(), "DEMO_SECRET="+d.secret)
	// Its own process group: a Ctrl-C reaches only the demo, which then stops the server.
	d.server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := d.server.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := d.server.Start(); err != nil {
		return "", fmt.Errorf("%w (run make build first)", err)
	}
	d.log = &tail{}
	found := make(chan string, 1)
	d.exited = make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			d.log.add(lines.Text())
			if url := endpointLine.FindString(lines.Text()); url != "" {
				select {
				case found <- strings.Trim(url, `",`):
				default:
				}
			}
		}
		io.Copy(io.Discard, stderr)
		d.exited <- d.server.Wait()
	}()
	select {
	case d.endpoint = <-found:
		return d.endpoint, nil
	case err := <-d.exited:
		d.exited <- err
		return "", fmt.Errorf("the server ended: %v", err)
	case <-ctx.Done():
		return "", fmt.Errorf("no endpoint: %w", context.Cause(ctx))
	}
}

// connect opens an MCP session.
func (d *run) connect(ctx context.Context) (string, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "glovebox-demo", Version: "1"}, nil)
	var err error
	d.session, err = client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: d.endpoint}, nil)
	if err != nil {
		return "", err
	}
	tools, err := d.session.ListTools(ctx, nil)
	if err != nil {
		return "", err
	}
	if len(tools.Tools) == 0 {
		return "", errors.New("the server offers no tools")
	}
	info := d.session.InitializeResult()
	return fmt.Sprintf("MCP %s, %d tools", info.ProtocolVersion, len(tools.Tools)), nil
}

// stop stops the server and returns an error unless it exits with 0.
func (d *run) stop() error {
	if d.session != nil {
		d.session.Close()
	}
	if d.server == nil || d.server.Process == nil {
		return nil
	}
	d.server.Process.Signal(syscall.SIGTERM)
	select {
	case exit := <-d.exited:
		d.server = nil
		if exit != nil {
			return fmt.Errorf("the server did not end cleanly: %w", exit)
		}
		return nil
	case <-time.After(30 * time.Second):
		d.server.Process.Kill()
		return errors.New("the server did not end within 30 seconds of SIGTERM")
	}
}

// end stops the server and reports the outcome.
func (d *run) end(err error) error {
	if d.server != nil {
		begin := time.Now()
		err = cmp.Or(err, d.stop())
		if err == nil {
			fmt.Printf("%2d  %-28s%6.2f s\n", d.count+1, "stop the server", time.Since(begin).Seconds())
		}
	}
	if err != nil && d.log != nil {
		err = fmt.Errorf("%w\n\nThe server's last lines:\n%s", err, d.log)
	}
	if d.dir != "" {
		os.RemoveAll(d.dir)
	}
	if err == nil {
		fmt.Printf("\nAll as expected, in %.1f s. The figure is %s\n", time.Since(d.begin).Seconds(), d.figure)
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
