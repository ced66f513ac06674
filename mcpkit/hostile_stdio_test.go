package mcpkit

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hostilePrograms are programs that misbehave in a call of "odd".

var hostilePrograms = map[string]func(in *bufio.Scanner, out *bufio.Writer, m message){
	"floods-for-ever": func(_ *bufio.Scanner, out *bufio.Writer, _ message) {
		for {
			if _, err := out.WriteString(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}` + "\n"); err != nil {
				os.Exit(1)
			}
		}
	},
	"writes-noise-for-ever": func(_ *bufio.Scanner, out *bufio.Writer, _ message) {
		for {
			if _, err := out.WriteString("[1,2,\n{}\n\x00\xff\n[]\n"); err != nil {
				os.Exit(1)
			}
		}
	},
	"floods-its-error-stream": func(_ *bufio.Scanner, out *bufio.Writer, m message) {
		text := strings.Repeat("x", 1<<20)
		for range 64 {
			_, _ = io.WriteString(os.Stderr, text)
		}
		answer(out, m, "good")
	},
	"is-deaf":        func(*bufio.Scanner, *bufio.Writer, message) { rest() },
	"closes-its-out": func(*bufio.Scanner, *bufio.Writer, message) { os.Stdout.Close(); rest() },
	"answers-twice": func(_ *bufio.Scanner, out *bufio.Writer, m message) {
		answer(out, m, "good")
		answer(out, m, "bad")
	},
	"answers-in-batches": func(_ *bufio.Scanner, out *bufio.Writer, m message) {
		fmt.Fprintf(out, "[%s{}]\n", strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/x"},`, 5000))
		fmt.Fprintf(out, "[%s]\n", result(m, "good"))
	},
	"nests-deeply": func(_ *bufio.Scanner, out *bufio.Writer, m message) {
		fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, strings.Repeat("[", 200_000)+strings.Repeat("]", 200_000))
	},
	"returns-many-values": func(_ *bufio.Scanner, out *bufio.Writer, m message) {
		fmt.Fprintln(out, manyValues(m))
	},
	"asks-with-many-values": func(in *bufio.Scanner, out *bufio.Writer, m message) {
		fmt.Fprintf(out, `{"jsonrpc":"2.0","id":"q","method":"ping","params":{"_meta":{"x":[%s0]}}}`+"\n", strings.Repeat("{},", 5<<20))
		out.Flush()
		if !in.Scan() {
			os.Exit(1)
		}
		answer(out, m, "good")
	},
	"never-ends-a-line": func(_ *bufio.Scanner, out *bufio.Writer, _ message) {
		for {
			if _, err := out.WriteString("xxxxxxxxxxxxxxxx"); err != nil {
				os.Exit(1)
			}
		}
	},
	"asks-for-more": func(in *bufio.Scanner, out *bufio.Writer, m message) {
		for i, method := range []string{"roots/list", "sampling/createMessage", "elicitation/create", "acme/secrets"} {
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":"q%d","method":%q,"params":{"messages":[],"maxTokens":1,"message":"your password?"}}`+"\n", i, method)
			out.Flush()
			var told message
			if !in.Scan() || json.Unmarshal(in.Bytes(), &told) != nil || told.Error == nil || told.Error.Code != -32601 {
				answer(out, m, method+": "+in.Text())
				return
			}
		}
		answer(out, m, "good")
	},
	"says-nothing": func(in *bufio.Scanner, out *bufio.Writer, m message) {
		for _, params := range []string{``, `,"params":null`, `,"params":{}`} {
			for i, method := range []string{
				"ping", "roots/list", "sampling/createMessage", "elicitation/create", "acme/secrets",
				"notifications/cancelled", "notifications/message", "notifications/progress", "notifications/elicitation/complete",
				"notifications/resources/updated", "notifications/tools/list_changed", "notifications/prompts/list_changed",
				"notifications/resources/list_changed", "notifications/elicitation/complete", "notifications/acme",
			} {
				if strings.HasPrefix(method, "notifications/") {
					fmt.Fprintf(out, `{"jsonrpc":"2.0","method":%q%s}`+"\n", method, params)
					continue
				}
				fmt.Fprintf(out, `{"jsonrpc":"2.0","id":"q%d","method":%q%s}`+"\n", i, method, params)
				out.Flush()
				if !in.Scan() || strings.Contains(in.Text(), "handler failed") {
					answer(out, m, method+params+": "+in.Text())
					return
				}
			}
		}
		answer(out, m, "good")
	},
	"is-stubborn": func(_ *bufio.Scanner, out *bufio.Writer, m message) {
		signal.Ignore(syscall.SIGTERM)
		cmd := exec.Command("sleep", "600")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			answer(out, m, err.Error())
			return
		}
		answer(out, m, fmt.Sprint(cmd.Process.Pid))
		out.Flush()
		rest()
	},
}

// Requests and notifications without params fail no hook and block no later message.
func TestHooks_MissingParams(t *testing.T) {
	var log strings.Builder
	done := make(chan string, 10)
	hooks := Hooks{
		Sampling: func(context.Context, string, *mcp.CreateMessageParams) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{}}, nil
		},
		Elicit: func(_ context.Context, _ string, p *mcp.ElicitParams) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline" + p.Message[:0]}, nil
		},
		ElicitURL:           true,
		Roots:               func(context.Context, string) ([]*mcp.Root, error) { return nil, nil },
		Log:                 func(_ context.Context, _ string, p *mcp.LoggingMessageParams) { _ = p.Level },
		Progress:            func(_ context.Context, _ string, p *mcp.ProgressNotificationParams) { _ = p.Message },
		ListChanged:         func(context.Context, string, string) {},
		ResourceUpdated:     func(context.Context, string, string) {},
		ElicitationComplete: func(_ context.Context, _ string, id string) { done <- id },
	}
	o := Options{Hooks: hooks, Era: Legacy, Log: slog.New(slog.NewTextHandler(&log, nil))}
	m := manager(t, o, program("srv", "says-nothing"))
	s := session(t, m, "srv")
	wantCall(t, s, "odd", nil, "good")
	select { // that of {}, which is the last
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("a notification after one without params is not delivered")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "panic") {
		t.Errorf("the log:\n%.3000s", log.String())
	}
}

// rest sleeps for ever; an empty select would be a deadlock.
func rest() {
	for {
		time.Sleep(time.Hour)
	}
}

func result(m message, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, m.ID, text)
}

func answer(out *bufio.Writer, m message, text string) { fmt.Fprintln(out, result(m, text)) }

// hostileProgram runs a hand-written legacy server of a kind, if that exists.
func hostileProgram(kind string) bool {
	odd := hostilePrograms[kind]
	if odd == nil {
		return false
	}
	in, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var m message
		if json.Unmarshal(in.Bytes(), &m) != nil || m.ID == nil || m.Method == "" {
			continue
		}
		switch {
		case m.Method == "initialize":
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, initialized)
		case m.Method == "tools/call" && m.Params.Name == "odd":
			odd(in, out, m)
		case m.Method == "tools/call":
			answer(out, m, "good")
		default:
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`+"\n", m.ID)
		}
		out.Flush()
	}
	return true
}

func TestD6_HostilePrograms(t *testing.T) {
	nothingLeft(t)
	for kind, want := range map[string]string{ // what the error of the call says
		"floods-for-ever":         "no answer within 3s",
		"writes-noise-for-ever":   "no answer within 3s",
		"floods-its-error-stream": "",
		"is-deaf":                 "no answer within 3s",
		"closes-its-out":          `mcp server "srv" has closed its output`,
		"answers-twice":           "",
		"answers-in-batches":      "",
		"nests-deeply":            "no answer within 3s", // it is no message
		"never-ends-a-line":       "larger than 1048576 bytes",
		"asks-for-more":           "",
		"says-nothing":            "",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			m := manager(t, Options{Limits: limitsFor(want)}, program("srv", kind))
			s := session(t, m, "srv")
			begun := time.Now()
			text, err := call(t, s, "odd", nil)
			if !says(err, want) || err == nil && text != "good" {
				t.Errorf("got %q, %.300v, want %q", text, err, want)
			}
			if want == "" { // a client that gave up keeps its server
				wantCall(t, s, "good", nil, "good")
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > patience {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// If a server does not read its input, the request times out and the next one starts
// another server.
func TestProgram_DoesNotRead(t *testing.T) {
	nothingLeft(t)
	s := session(t, manager(t, Options{Limits: hostile}, program("srv", "is-deaf")), "srv")
	if _, err := call(t, s, "odd", nil); !says(err, "no answer within 3s") {
		t.Errorf("got %v", err)
	}
	if _, err := call(t, s, "good", map[string]any{"text": strings.Repeat("x", 512<<10)}); !says(err, "no answer within 3s") {
		t.Errorf("got %v", err)
	}
	wantCall(t, s, "good", nil, "good")
}

// Closing a server ends all processes that it has started, even if they ignore signals.
func TestD6_Close_EndsProcessTree(t *testing.T) {
	nothingLeft(t)
	limits := hostile
	limits.Grace = 50 * time.Millisecond
	m := manager(t, Options{Limits: limits}, program("srv", "is-stubborn"))
	pid, err := call(t, session(t, m, "srv"), "odd", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	until(t, "leak: process "+pid+" ends", func() bool {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(b), ") Z ")
	})
	// The test program adopts orphans, which are its to reap then.
	if n, err := strconv.Atoi(pid); err != nil {
		t.Error(err)
	} else if p, err := os.FindProcess(n); err == nil {
		_, _ = p.Wait()
	}
}

// A connection made by the caller has the same bounds.
func TestConnectIO_Silent(t *testing.T) {
	nothingLeft(t)
	m := manager(t, Options{Limits: hostile})
	r, w := io.Pipe()
	if _, err := m.ConnectIO(t.Context(), "mine", &silent{r, w}); !says(err, "no answer within 3s") {
		t.Errorf("got %v", err)
	}
}

// silent discards writes and blocks reads until it is closed.
type silent struct {
	*io.PipeReader
	w *io.PipeWriter
}

func (s *silent) Write(p []byte) (int, error) { return len(p), nil }
func (s *silent) Close() error                { s.w.Close(); return s.PipeReader.Close() }
