//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// callLimit bounds a call, as a client would.
const callLimit = 90 * time.Second

// memory is a box, and what it should remember. It is used by one goroutine.
type memory struct {
	server   *server
	tally    *tally
	owner    string
	id       string
	language string
	rand     *rand.Rand

	session   *mcp.ClientSession // nil: the next call connects
	transport *http.Transport    // of session
	token     string             // "": whatever comes is right
	n         int
	unsure    int  // counting calls since the last answer whose outcome is unknown
	back      bool // it was told that an earlier state is back
	unheard   bool // a call since the last count had no answer, which may have reported a loss
	good      time.Time
	history   []string // the last calls, the oldest first
}

// historyKept bounds the calls that the report of a loss shows.
const historyKept = 12

// note adds a line to the history.
func (b *memory) note(format string, args ...any) {
	b.history = append(b.history, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if len(b.history) > historyKept {
		b.history = b.history[1:]
	}
}

// lose reports a loss with the calls before it.
func (b *memory) lose(format string, args ...any) {
	b.tally.lose("%s's %s %s\n\t%s", b.owner, b.id, fmt.Sprintf(format, args...), strings.Join(b.history, "\n\t"))
}

// counting is code that counts up, by language.
var counting = map[string]string{
	"python": `
if 'token' not in globals(): token, n = %q, 0
n += 1
try: was = open('count').read()
except FileNotFoundError: was = 'nothing'
with open('count', 'w') as f: f.write(f'{token} {n}')
print(token, n, was)`,
	"javascript": `
if (typeof globalThis.token === 'undefined') { globalThis.token = %q; globalThis.n = 0 }
globalThis.n += 1
const fs = await import('node:fs')
let was = 'nothing'
try { was = fs.readFileSync('count', 'utf8') } catch {}
fs.writeFileSync('count', globalThis.token + ' ' + globalThis.n)
console.log(globalThis.token, globalThis.n, was)`,
}

// work does one thing with the box.
func (b *memory) work(ctx context.Context) {
	var err error
	switch n := b.rand.IntN(100); {
	case n < 50:
		err = b.remember(ctx)
	case n < 65:
		err = b.shell(ctx)
	case n < 80:
		err = b.files(ctx)
	case n < 84:
		err = b.snapshot(ctx)
	case n < 88:
		err = b.fork(ctx)
	case n < 92:
		err = b.cancel(ctx)
	case n < 95:
		b.vanish()
	case n < 98:
		_, err = b.call(ctx, "get_sessions", map[string]any{})
	default:
		wait(ctx, time.Duration(b.rand.IntN(12))*time.Second) // long enough to be paused or hibernated
	}
	if err != nil && ctx.Err() == nil {
		b.tally.count(b.tally.failed, clip(err.Error()))
	}
	wait(ctx, time.Duration(b.rand.IntN(300))*time.Millisecond)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// clip shortens an error to what distinguishes it, without ids.
func clip(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	f := strings.Fields(s)
	return strings.Join(f[:min(len(f), 7)], " ")
}

// remember counts up in the box and checks the count.
func (b *memory) remember(ctx context.Context) error {
	fresh := fmt.Sprintf("%s-%d", b.id, b.rand.Uint32())
	b.unsure++
	a, err := b.call(ctx, "execute_code", map[string]any{"session_id": b.id, "language": b.language, "code": fmt.Sprintf(counting[b.language], fresh), "timeout": 60})
	if err != nil {
		return err
	}
	f := strings.Fields(a.str("stdout"))
	if len(f) < 3 {
		return fmt.Errorf("counting printed %q %q", a.str("stdout"), a.str("stderr"))
	}
	n, _ := strconv.Atoi(f[1])
	switch told := b.token == "" || a.is("state_lost") || b.back || b.unheard && b.tally.faultSince(b.good); {
	case told:
	case f[0] != b.token:
		b.lose("has the variables of %s, want %s, and nothing says why", f[0], b.token)
	case n <= b.n || n > b.n+b.unsure:
		b.lose("has counted to %d, want %d to %d, and nothing says why", n, b.n+1, b.n+b.unsure)
	}
	if was := strings.Join(f[2:], " "); f[0] != fresh && !strings.HasPrefix(was, f[0]+" ") {
		b.lose("has the file %q beside the variables of %s", was, f[0])
	}
	b.token, b.n, b.unsure, b.back, b.unheard, b.good = f[0], n, 0, false, false, time.Now()
	return nil
}

// shell runs a pipeline.
func (b *memory) shell(ctx context.Context) error {
	a, err := b.call(ctx, "execute_command", map[string]any{"session_id": b.id, "language": b.language, "command": "seq 100 | sort -r | head -n 1; date +%s > now; ls | wc -l", "timeout": 60})
	if err == nil && !strings.HasPrefix(a.str("stdout"), "99\n") {
		err = fmt.Errorf("the pipeline printed %q", a.str("stdout"))
	}
	return err
}

// files writes a file and reads it again.
func (b *memory) files(ctx context.Context) error {
	content := make([]byte, 1+b.rand.IntN(64<<10))
	for i := range content {
		content[i] = byte(b.rand.Uint32())
	}
	path := fmt.Sprintf("data-%d.bin", b.rand.IntN(4))
	_, err := b.call(ctx, "upload_file", map[string]any{"session_id": b.id, "path": path, "content": base64.StdEncoding.EncodeToString(content), "encoding": "base64"})
	if err != nil {
		return err
	}
	a, err := b.call(ctx, "execute_command", map[string]any{"session_id": b.id, "language": b.language, "command": "sha256sum " + path, "timeout": 60})
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(content)); !strings.HasPrefix(a.str("stdout"), want) && !a.is("state_lost") && !b.tally.faultSince(b.good) {
		b.lose("has another %s than was written", path)
	}
	_, err = b.call(ctx, "download_file", map[string]any{"session_id": b.id, "path": path})
	return err
}

// snapshot saves a snapshot, counts on, and goes back.
func (b *memory) snapshot(ctx context.Context) error {
	if err := b.remember(ctx); err != nil {
		return err
	}
	token, n := b.token, b.n
	a, err := b.call(ctx, "snapshot_session", map[string]any{"session_id": b.id})
	if err != nil {
		return err
	}
	id := a.str("snapshot_id")
	defer b.call(ctx, "delete_snapshot", map[string]any{"snapshot_id": id})
	if b.back {
		token = "" // the snapshot is of the state that was back, and its answer said so
	}
	if err := b.remember(ctx); err != nil {
		return err
	}
	if _, err := b.call(ctx, "restore_session", map[string]any{"snapshot_id": id, "session_id": b.id}); err != nil {
		b.back = true // unknown
		return err
	}
	// The state of the snapshot, whatever was lost before: that state is given up.
	b.token, b.n, b.unsure, b.back, b.unheard = token, n, 0, false, false
	return b.remember(ctx)
}

// fork forks the box and compares the copy.
func (b *memory) fork(ctx context.Context) error {
	if err := b.remember(ctx); err != nil {
		return err
	}
	a, err := b.call(ctx, "fork_session", map[string]any{"session_id": b.id})
	if err != nil {
		return err
	}
	id := a.str("session_id")
	defer b.call(ctx, "stop_session", map[string]any{"session_id": id})
	if b.back {
		return nil // the copy is of the state that was back, and the answer said so
	}
	code := "print(token, n)"
	if b.language == "javascript" {
		code = "console.log(globalThis.token, globalThis.n)"
	}
	a, err = b.call(ctx, "execute_code", map[string]any{"session_id": id, "language": b.language, "code": code, "timeout": 60})
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%s %d", b.token, b.n); strings.TrimSpace(a.str("stdout")) != want && !a.is("state_lost") {
		b.lose("has a copy with %q, want %q", a.str("stdout"), want)
	}
	return nil
}

// cancel cancels a call.
func (b *memory) cancel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(50+b.rand.IntN(1500))*time.Millisecond)
	defer cancel()
	_, err := b.call(ctx, "execute_command", map[string]any{"session_id": b.id, "language": b.language, "command": "sleep 30"})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// vanish begins a call, and goes away without a word.
func (b *memory) vanish() {
	ctx, cancel := context.WithCancel(context.Background())
	session, transport, err := b.connect(ctx)
	if err == nil {
		// With a language: the call may make the box.
		go session.CallTool(ctx, &mcp.CallToolParams{Name: "execute_command", Arguments: map[string]any{"session_id": b.id, "language": b.language, "command": "sleep 1"}})
		time.Sleep(100 * time.Millisecond)
		transport.CloseIdleConnections()
		b.unheard = true
		b.tally.count(b.tally.calls, "vanished")
		b.note("vanished during a call")
	}
	cancel()
}

// answer is the result of a tool.
type answer struct {
	text   string
	fields map[string]any
}

func (a *answer) str(name string) string { s, _ := a.fields[name].(string); return s }
func (a *answer) is(name string) bool    { v, _ := a.fields[name].(bool); return v }

// otherLanguage is in the answer of a call whose language is not the box's.
const otherLanguage = "has the language"

// remake stops the box if a call failed because it has another language: an upload, which
// names none, has made it in place of one that was lost.
func (b *memory) remake(ctx context.Context, text string, args map[string]any) {
	if args["session_id"] == b.id && strings.Contains(text, otherLanguage) {
		b.token, b.back = "", true
		b.session.CallTool(ctx, &mcp.CallToolParams{Name: "stop_session", Arguments: map[string]any{"session_id": b.id}})
	}
}

// call calls a tool. It connects first if there is no connection.
func (b *memory) call(ctx context.Context, tool string, args map[string]any) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if b.session == nil {
		session, transport, err := b.connect(context.WithoutCancel(ctx))
		if err != nil {
			wait(ctx, 500*time.Millisecond) // the server may be starting again
			return nil, fmt.Errorf("connect: %w", err)
		}
		b.session, b.transport = session, transport
	}
	b.tally.count(b.tally.calls, tool)
	begun := time.Now()
	res, err := b.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		b.unheard = true
		b.note("%s: %v", tool, err)
		b.remake(ctx, err.Error(), args)
		if ctx.Err() == nil || time.Since(begun) >= callLimit {
			b.disconnect()
		}
		if time.Since(begun) >= callLimit {
			b.lose("had no answer of %s after %v", tool, callLimit)
		}
		return nil, err
	}
	a := &answer{fields: map[string]any{}}
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			a.text += c.Text
		}
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err == nil {
		err = json.Unmarshal(raw, &a.fields)
	}
	if err != nil {
		return nil, fmt.Errorf("decode the result of %s: %w", tool, err)
	}
	b.note("%s: %.300q", tool, a.text)
	b.hear(tool, args, a, res)
	if res.IsError {
		b.remake(ctx, a.text, args)
		return nil, errors.New(a.text)
	}
	return a, nil
}

// hear notes what an answer says about lost state.
func (b *memory) hear(tool string, args map[string]any, a *answer, res *mcp.CallToolResult) {
	reason := ""
	if a.is("state_lost") {
		if reason = a.str("lost_reason"); strings.HasPrefix(reason, "stopped") {
			b.token = "" // by the soak, before it began
			return
		}
	}
	if _, has := a.fields["state_lost"]; !has && (strings.Contains(a.text, "after that is lost") || strings.Contains(a.text, "files are gone")) {
		reason = "a note of " + tool
	}
	if e, ok := res.Meta["glovebox/error"].(map[string]any); ok {
		if data, ok := e["data"].(map[string]any); ok {
			reason, _ = data["reason"].(string)
		}
	}
	if reason == "" || args["session_id"] != b.id {
		return
	}
	if !b.tally.faultSince(b.good) {
		b.lose("reports a loss that no fault explains, in an answer of %s", tool)
	}
	b.tally.count(b.tally.told, clip(reason))
	b.token, b.back = "", true
}

// disconnect ends the MCP session and closes its connections. The server would keep idle
// ones for minutes, which would count as what it holds.
func (b *memory) disconnect() {
	b.session.Close()
	b.transport.CloseIdleConnections()
	b.session = nil
}

// connect opens an MCP session.
func (b *memory) connect(ctx context.Context) (*mcp.ClientSession, *http.Transport, error) {
	transport := &http.Transport{}
	client := mcp.NewClient(&mcp.Implementation{Name: "glovebox-soak", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: b.server.url(), HTTPClient: &http.Client{Transport: &bearer{transport, b.server.tokens[b.owner]}}, MaxRetries: -1,
	}, nil)
	return session, transport, err
}

// bearer sends a token with every request.
type bearer struct {
	*http.Transport
	token string
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(req)
}
