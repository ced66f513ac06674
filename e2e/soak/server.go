//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// flags are the server's: boxes leave memory after seconds, so that they are written and
// woken all the time.
var flags = []string{
	"--toolset", "all", "--session-timeout", "8", "--cleanup-interval", "2", "--pause-after", "2", "--max-sessions", "8",
	"--pool-size", "1", "--preload", "none", "--mcp-session-timeout", "20s", "--drain-timeout", "10", "--rate-limit", "0",
	"--snapshot-disk-mb", "2000", "--orphan-cleanup-interval", "10", "--max-connections", "300", "--log-level", "warn", "--audit-log", "/dev/null",
}

// server is the program under test.
type server struct {
	program string
	dir     string // of everything
	tokens  map[string]string
	port    string

	mu       sync.Mutex
	cmd      *exec.Cmd     // guarded by mu
	ended    chan struct{} // guarded by mu; closed when the process has ended
	endpoint string        // guarded by mu
}

func (s *server) state() string { return filepath.Join(s.dir, "state") }

func (s *server) url() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoint
}

// prepare makes the tokens and chooses the port.
func (s *server) prepare(ctx context.Context) error {
	for _, owner := range append([]string{"metrics"}, owners...) {
		args := []string{"token", "new", "--name", owner, "--tokens-file", filepath.Join(s.dir, "tokens.toml")}
		if owner == "metrics" {
			args = append(args, "--scope", "metrics")
		}
		out, err := exec.CommandContext(ctx, s.program, args...).Output()
		if err != nil {
			return fmt.Errorf("make a token for %s: %w (run make build first)", owner, err)
		}
		s.tokens[owner] = strings.TrimSpace(string(out))
	}
	var err error
	s.port, err = freePort()
	return err
}

// freePort returns a port that no connection of another program gets while the server is
// down: the kernel hands out those from 32768.
func freePort() (string, error) {
	var err error
	for range 20 {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			return port, l.Close()
		}
	}
	return "", fmt.Errorf("find a free port: %w", err)
}

var endpointLine = regexp.MustCompile(`http://127\.0\.0\.1:(\d+)/mcp`)

// start starts the server, always on the same port.
func (s *server) start(ctx context.Context) error {
	args := append([]string{"serve", "--port", s.port, "--state-dir", s.state(), "--tokens-file", filepath.Join(s.dir, "tokens.toml")}, flags...)
	cmd := exec.Command(s.program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		log.Close()
		return fmt.Errorf("start the server: %w", err)
	}
	found, ended := make(chan []string, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer log.Close()
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(log, lines.Text())
			if m := endpointLine.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case found <- m:
				default:
				}
			}
		}
		cmd.Wait()
	}()
	s.mu.Lock()
	s.cmd, s.ended = cmd, ended
	s.mu.Unlock()
	select {
	case m := <-found:
		s.mu.Lock()
		s.endpoint = m[0]
		s.mu.Unlock()
		return nil
	case <-ended:
		b, _ := os.ReadFile(log.Name())
		return fmt.Errorf("the server ended at its start: %s", b[max(0, len(b)-2000):])
	case <-time.After(2 * time.Minute):
		return errors.New("the server told no endpoint within two minutes")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop ends the server with a signal, and waits.
func (s *server) stop(sig os.Signal) error {
	s.mu.Lock()
	cmd, ended := s.cmd, s.ended
	s.mu.Unlock()
	cmd.Process.Signal(sig)
	select {
	case <-ended:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("the server has not ended a minute after %v", sig)
	}
}

func (s *server) kill() {
	if err := s.stop(os.Kill); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
}

// dump ends the server and keeps its log, which ends with its goroutines.
func (s *server) dump() {
	err := s.stop(syscall.SIGQUIT)
	var log []byte
	if err == nil {
		log, err = os.ReadFile(filepath.Join(s.dir, "log"))
	}
	var f *os.File
	if err == nil {
		f, err = os.CreateTemp("", "glovebox-soak-*.log")
	}
	if err == nil {
		_, err = f.Write(log)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak: keep the log of the server:", err)
		return
	}
	fmt.Println("the log of the server, with its goroutines at the end:", f.Name())
}

// maxErrors bounds the errors of the server that are printed.
const maxErrors = 20

// printErrors prints what the server logged as an error: clients get only an id of it.
func (s *server) printErrors() {
	b, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak: read the log of the server:", err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "level=ERROR") && n < maxErrors {
			fmt.Print("server: ", line)
			n++
		}
	}
}

// faults kills sentries every few seconds, and the server every few minutes until calm.
func (s *server) faults(ctx context.Context, t *tally, r *rand.Rand, calm time.Time) {
	wait(ctx, firstFault)
	next := time.Now().Add(30 * time.Second)
	for ctx.Err() == nil {
		if time.Now().After(next) && time.Now().Before(calm) {
			sig, what := os.Signal(syscall.SIGTERM), "server stopped"
			if r.IntN(3) > 0 {
				sig, what = os.Kill, "server killed"
			}
			t.fault(what)
			if err := s.stop(sig); err != nil {
				t.lose("%v", err)
				return
			}
			if err := s.start(ctx); err != nil && ctx.Err() == nil {
				t.lose("%v", err)
				return
			}
			t.fault("server started again")
			next = time.Now().Add(60*time.Second + time.Duration(r.IntN(60))*time.Second)
		}
		if sentries := named(s.processes(), sentry); len(sentries) > 0 {
			t.fault("sentry killed")
			syscall.Kill(sentries[r.IntN(len(sentries))], syscall.SIGKILL) // it may have ended
		}
		wait(ctx, 3*time.Second+time.Duration(r.IntN(10_000))*time.Millisecond)
	}
}

// sentry is the name of the process that is a guest's kernel.
const sentry = "runsc-sandbox"

// processes returns the processes of the server, itself first, without those below a
// sentry: it has some for each process of its guest, and they end with it.
func (s *server) processes() []int {
	s.mu.Lock()
	list := []int{s.cmd.Process.Pid}
	s.mu.Unlock()
	for i := 0; i < len(list); i++ {
		if len(named(list[i:i+1], sentry)) > 0 {
			continue
		}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", list[i]))
		for _, task := range tasks {
			b, _ := os.ReadFile(task) // it may have ended
			for _, f := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(f); err == nil {
					list = append(list, pid)
				}
			}
		}
	}
	return list
}

// named returns the processes with that name.
func named(pids []int, name string) (list []int) {
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if bytes.HasPrefix(b, []byte(name+"\x00")) {
			list = append(list, pid)
		}
	}
	return list
}

// commands returns the beginning of the command line of each process, without those that have
// ended.
func commands(pids []int) map[int]string {
	found := make(map[int]string, len(pids))
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		line := strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))
		if line == "" {
			line = "a process that has ended and was not waited for"
		}
		found[pid] = fmt.Sprintf("%.120q", line)
	}
	return found
}

// holdings is what the server holds on this machine.
type holdings struct {
	memory, descriptors, goroutines float64
	mounts                          int
	files                           map[string]int64 // their sizes, by path below the state directory
	processes                       map[int]string   // their command lines, by pid
	unfilled                        int              // boxes that the pool still has to make; it has a process each
	disk                            int64            // bytes in the state directory
}

type row struct {
	name                 string
	before, after, limit int64
	rough                bool // it need not return to the baseline, only to the limit
}

// rows compares holdings, each with the most that it may be.
func (h *holdings) rows(before *holdings) []row {
	return []row{
		// The heap of a Go program grows to about twice what it uses, once.
		{"memory, MiB", int64(before.memory) >> 20, int64(h.memory) >> 20, int64(before.memory)>>20 + 48, true},
		{"descriptors", int64(before.descriptors), int64(h.descriptors), int64(before.descriptors) + 8, false},
		{"goroutines", int64(before.goroutines), int64(h.goroutines), int64(before.goroutines) + 8, false},
		{"processes", int64(len(before.processes)), int64(len(h.processes)), int64(len(before.processes)), false},
		{"mounts", int64(before.mounts), int64(h.mounts), int64(before.mounts), false},
		{"files", int64(len(before.files)), int64(len(h.files)), int64(len(before.files)), false},
		{"disk, MiB", before.disk >> 20, h.disk >> 20, before.disk>>20 + 8, true},
	}
}

// settleTime is how long the server may take to free what it no longer needs. Its own
// sessions of clients that vanished end after 20 s, and it closes idle connections after
// two minutes.
const settleTime = 150 * time.Second

// baseline ends all boxes and returns what the server holds then: once the pool is full and
// that is no more than before, not only within the limits, or, without before, has not
// changed for a while.
func (s *server) baseline(ctx context.Context, before *holdings) (*holdings, error) {
	if err := s.tidy(ctx); err != nil {
		return nil, fmt.Errorf("tidy up: %w", err)
	}
	var h *holdings
	for end := time.Now().Add(settleTime); ; wait(ctx, 3*time.Second) {
		now, err := s.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("measure the server: %w", err)
		}
		same := h != nil && before == nil && now.goroutines == h.goroutines && now.descriptors == h.descriptors && len(now.processes) == len(h.processes) && time.Until(end) < settleTime-30*time.Second
		h = now
		if before != nil {
			same = true
			for _, r := range h.rows(before) {
				same = same && (r.after <= r.before || r.rough && r.after <= r.limit)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case same && h.unfilled == 0:
			return h, nil
		case time.Now().After(end) && h.unfilled != 0:
			return nil, fmt.Errorf("the pool lacks %d boxes %v after all boxes were ended", h.unfilled, settleTime)
		case time.Now().After(end):
			return h, nil
		}
	}
}

// tidy ends all boxes and deletes all snapshots.
func (s *server) tidy(ctx context.Context) error {
	for _, owner := range owners {
		b := &memory{server: s, tally: newTally(), owner: owner}
		for range 20 {
			a, err := b.call(ctx, "get_sessions", map[string]any{})
			if err != nil {
				return err
			}
			list, _ := a.fields["sessions"].([]any)
			if len(list) == 0 {
				break
			}
			for _, item := range list {
				id, _ := item.(map[string]any)["session_id"].(string)
				if _, err := b.call(ctx, "stop_session", map[string]any{"session_id": id}); err != nil {
					fmt.Println("note: stop_session:", err)
				}
			}
		}
		a, err := b.call(ctx, "list_snapshots", map[string]any{})
		if err != nil {
			return err
		}
		list, _ := a.fields["snapshots"].([]any)
		for _, item := range list {
			id, _ := item.(map[string]any)["snapshot_id"].(string)
			if _, err := b.call(ctx, "delete_snapshot", map[string]any{"snapshot_id": id}); err != nil {
				return err
			}
		}
		b.disconnect()
	}
	return nil
}

// measure returns what the server holds now.
func (s *server) measure(ctx context.Context) (*holdings, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.url(), "/mcp")+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.tokens["metrics"])
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
	if err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: status %d, %w", res.StatusCode, err)
	}
	values := map[string]float64{} // by name; summed over the labels
	for line := range strings.Lines(string(body)) {
		if f := strings.Fields(line); len(f) == 2 {
			name, _, _ := strings.Cut(f[0], "{")
			value, _ := strconv.ParseFloat(f[1], 64)
			values[name] += value
		}
	}
	pids := s.processes()
	h := &holdings{
		memory: values["process_resident_memory_bytes"], descriptors: values["process_open_fds"], goroutines: values["go_goroutines"],
		processes: commands(pids), unfilled: int(values["glovebox_pool_wanted"] - values["glovebox_pool_ready"]),
	}
	if values["glovebox_pool_wanted"] == 0 {
		return nil, errors.New("the metrics have no pool")
	}
	if h.goroutines == 0 || h.memory == 0 {
		return nil, errors.New("the metrics have neither goroutines nor memory")
	}
	inner := pids[min(1, len(pids)-1)] // in the server's mount namespace
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", inner))
	if err != nil {
		return nil, err
	}
	h.mounts, h.files = bytes.Count(mounts, []byte("\n")), make(map[string]int64)
	return h, filepath.WalkDir(s.state(), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // it was removed meanwhile
		}
		if info, err := d.Info(); err == nil && d.Type().IsRegular() {
			h.files[strings.TrimPrefix(path, s.state()+"/")] = info.Size()
			h.disk += info.Size()
		}
		return nil
	})
}
