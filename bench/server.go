package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// server is the shipped binary, serving HTTP, and a client of it.
type server struct {
	cmd     *exec.Cmd
	url     string
	session *mcp.ClientSession
	start   float64 // milliseconds until it told its endpoint
}

var endpoint = regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`)

func startServer(ctx context.Context, binary, stateDir string, env ...string) (*server, error) {
	cmd := exec.CommandContext(ctx, binary, "serve", "--port", "0")
	cmd.Env = append(os.Environ(), "GLOVEBOX_STATE_DIR="+stateDir)
	cmd.Env = append(cmd.Env, env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd}
	lines := bufio.NewScanner(stderr)
	url := ""
	for url == "" && lines.Scan() {
		url = endpoint.FindString(lines.Text())
	}
	s.start = ms(time.Since(begun))
	if url == "" {
		cmd.Wait()
		return nil, errors.New("start glovebox serve: it ended before it told its endpoint")
	}
	go func() {
		for lines.Scan() {
		}
	}()
	s.url = url
	client := mcp.NewClient(&mcp.Implementation{Name: "glovebox-bench", Version: "1"}, nil)
	s.session, err = client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil)
	return s, err
}

func (s *server) stop() {
	s.session.Close()
	s.cmd.Process.Signal(syscall.SIGTERM)
	s.cmd.Wait()
}

// call calls a tool and returns the milliseconds and its structured content.
func (s *server) call(ctx context.Context, tool string, args map[string]any) (float64, map[string]any, error) {
	begun := time.Now()
	r, err := s.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	took := ms(time.Since(begun))
	if err != nil {
		return took, nil, fmt.Errorf("call %s: %w", tool, err)
	}
	if r.IsError {
		text, _ := json.Marshal(r.Content)
		return took, nil, fmt.Errorf("call %s: %s", tool, text)
	}
	content, _ := r.StructuredContent.(map[string]any)
	return took, content, nil
}

// post calls a tool with a bare POST, without a client library and a handshake,
// and returns the milliseconds. The answer must hold want.
func (s *server) post(ctx context.Context, tool string, args map[string]any, want string) (float64, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": args}})
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	req, err := http.NewRequestWithContext(ctx, "POST", s.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(res.Body)
	res.Body.Close()
	took := ms(time.Since(begun))
	if err != nil || !bytes.Contains(answer, []byte(want)) {
		return 0, fmt.Errorf("post %s: %w: %s", tool, err, answer)
	}
	return took, nil
}

// pss adds up the proportional set sizes of a process and all its descendants,
// in MiB.
func pss(pid int) (float64, error) {
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		text := string(data)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		parent, _ := strconv.Atoi(fields[1])
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		children[parent] = append(children[parent], child)
	}
	total := 0.0
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		queue = append(queue, children[queue[0]]...)
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", queue[0]))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				total += kb / 1024
			}
		}
	}
	return total, nil
}
