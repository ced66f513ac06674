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
func (m *memory) note(format string, args ...any) {
	m.history = append(m.history, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if len(m.history) > historyKept {
		m.history = m.history[1:]
	}
}

// lose reports a loss with the calls before it.
func (m *memory) lose(format string, args ...any) {
	m.tally.lose("%s's %s %s\n\t%s", m.owner, m.id, fmt.Sprintf(format, args...), strings.Join(m.history, "\n\t"))
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
func (m *memory) work(ctx context.Context) {
	var err error
	switch n := m.rand.IntN(100); {
	case n < 50:
		err = m.remember(ctx)
	case n < 65:
		err = m.shell(ctx)
	case n < 80:
		err = m.files(ctx)
	case n < 84:
		err = m.snapshot(ctx)
	case n < 88:
		err = m.fork(ctx)
	case n < 92:
		err = m.cancel(ctx)
	case n < 95:
		m.vanish()
	case n < 98:
		_, err = m.call(ctx, "get_sessions", map[string]any{})
	default:
		wait(ctx, time.Duration(m.rand.IntN(12))*time.Second) // long enough to be paused or hibernated
	}
	if err != nil && ctx.Err() == nil {
		m.tally.count(m.tally.failed, clip(err.Error()))
	}
	wait(ctx, time.Duration(m.rand.IntN(300))*time.Millisecond)
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
func (m *memory) remember(ctx context.Context) error {
	fresh := fmt.Sprintf("%s-%d", m.id, m.rand.Uint32())
	m.unsure++
	a, err := m.call(ctx, "execute_code", map[string]any{"session_id": m.id, "language": m.language, "code": fmt.Sprintf(counting[m.language], fresh), "timeout": 60})
	if err != nil {
		return err
	}
	f := strings.Fields(a.str("stdout"))
	if len(f) < 3 {
		return fmt.Errorf("counting printed %q %q", a.str("stdout"), a.str("stderr"))
	}
	n, _ := strconv.Atoi(f[1])
	switch told := m.token == "" || a.is("state_lost") || m.back || m.unheard && m.tally.faultSince(m.good); {
	case told:
	case f[0] != m.token:
		m.lose("has the variables of %s, want %s, and nothing says why", f[0], m.token)
	case n <= m.n || n > m.n+m.unsure:
		m.lose("has counted to %d, want %d to %d, and nothing says why", n, m.n+1, m.n+m.unsure)
	}
	if was := strings.Join(f[2:], " "); f[0] != fresh && !strings.HasPrefix(was, f[0]+" ") {
		m.lose("has the file %q beside the variables of %s", was, f[0])
	}
	m.token, m.n, m.unsure, m.back, m.unheard, m.good = f[0], n, 0, false, false, time.Now()
	return nil
}

// shell runs a pipeline.
func (m *memory) shell(ctx context.Context) error {
	a, err := m.call(ctx, "execute_command", map[string]any{"session_id": m.id, "language": m.language, "command": "seq 100 | sort -r | head -n 1; date +%s > now; ls | wc -l", "timeout": 60})
	if err == nil && !strings.HasPrefix(a.str("stdout"), "99\n") {
		err = fmt.Errorf("the pipeline printed %q", a.str("stdout"))
	}
	return err
}

// files writes a file and reads it again.
func (m *memory) files(ctx context.Context) error {
	content := make([]byte, 1+m.rand.IntN(64<<10))
	for i := range content {
		content[i] = byte(m.rand.Uint32())
	}
	path := fmt.Sprintf("data-%d.bin", m.rand.IntN(4))
	_, err := m.call(ctx, "upload_file", map[string]any{"session_id": m.id, "path": path, "content": base64.StdEncoding.EncodeToString(content), "encoding": "base64"})
	if err != nil {
		return err
	}
	a, err := m.call(ctx, "execute_command", map[string]any{"session_id": m.id, "language": m.language, "command": "sha256sum " + path, "timeout": 60})
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(content)); !strings.HasPrefix(a.str("stdout"), want) && !a.is("state_lost") && !m.tally.faultSince(m.good) {
		m.lose("has another %s than was written", path)
	}
	_, err = m.call(ctx, "download_file", map[string]any{"session_id": m.id, "path": path})
	return err
}

// snapshot saves a snapshot, counts on, and goes back.
func (m *memory) snapshot(ctx context.Context) error {
	if err := m.remember(ctx); err != nil {
		return err
	}
	token, n := m.token, m.n
	a, err := m.call(ctx, "snapshot_session", map[string]any{"session_id": m.id})
	if err != nil {
		return err
	}
	id := a.str("snapshot_id")
	defer m.call(ctx, "delete_snapshot", map[string]any{"snapshot_id": id})
	if m.back {
		token = "" // the snapshot is of the state that was back, and its answer said so
	}
	if err := m.remember(ctx); err != nil {
		return err
	}
	if _, err := m.call(ctx, "restore_session", map[string]any{"snapshot_id": id, "session_id": m.id}); err != nil {
		m.back = true // unknown
		return err
	}
	// The state of the snapshot, whatever was lost before: that state is given up.
	m.token, m.n, m.unsure, m.back, m.unheard = token, n, 0, false, false
	return m.remember(ctx)
}

// fork forks the box and compares the copy.
func (m *memory) fork(ctx context.Context) error {
	if err := m.remember(ctx); err != nil {
		return err
	}
	a, err := m.call(ctx, "fork_session", map[string]any{"session_id": m.id})
	if err != nil {
		return err
	}
	id := a.str("session_id")
	defer m.call(ctx, "stop_session", map[string]any{"session_id": id})
	if m.back {
		return nil // the copy is of the state that was back, and the answer said so
	}
	code := "print(token, n)"
	if m.language == "javascript" {
		code = "console.log(globalThis.token, globalThis.n)"
	}
	a, err = m.call(ctx, "execute_code", map[string]any{"session_id": id, "language": m.language, "code": code, "timeout": 60})
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%s %d", m.token, m.n); strings.TrimSpace(a.str("stdout")) != want && !a.is("state_lost") {
		m.lose("has a copy with %q, want %q", a.str("stdout"), want)
	}
	return nil
}

// cancel cancels a call.
func (m *memory) cancel(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(50+m.rand.IntN(1500))*time.Millisecond)
	defer cancel()
	_, err := m.call(ctx, "execute_command", map[string]any{"session_id": m.id, "language": m.language, "command": "sleep 30"})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// vanish begins a call, and goes away without a word.
func (m *memory) vanish() {
	ctx, cancel := context.WithCancel(context.Background())
	session, transport, err := m.connect(ctx)
	if err == nil {
		// With a language: the call may make the box.
		go session.CallTool(ctx, &mcp.CallToolParams{Name: "execute_command", Arguments: map[string]any{"session_id": m.id, "language": m.language, "command": "sleep 1"}})
		time.Sleep(100 * time.Millisecond)
		transport.CloseIdleConnections()
		m.unheard = true
		m.tally.count(m.tally.calls, "vanished")
		m.note("vanished during a call")
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
func (m *memory) remake(ctx context.Context, text string, args map[string]any) {
	if args["session_id"] == m.id && strings.Contains(text, otherLanguage) {
		m.token, m.back = "", true
		m.session.CallTool(ctx, &mcp.CallToolParams{Name: "stop_session", Arguments: map[string]any{"session_id": m.id}})
	}
}

// call calls a tool. It connects first if there is no connection.
func (m *memory) call(ctx context.Context, tool string, args map[string]any) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if m.session == nil {
		session, transport, err := m.connect(context.WithoutCancel(ctx))
		if err != nil {
			wait(ctx, 500*time.Millisecond) // the server may be starting again
			return nil, fmt.Errorf("connect: %w", err)
		}
		m.session, m.transport = session, transport
	}
	m.tally.count(m.tally.calls, tool)
	begun := time.Now()
	res, err := m.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		m.unheard = true
		m.note("%s: %v", tool, err)
		m.remake(ctx, err.Error(), args)
		if ctx.Err() == nil || time.Since(begun) >= callLimit {
			m.disconnect()
		}
		if time.Since(begun) >= callLimit {
			m.lose("had no answer of %s after %v", tool, callLimit)
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
	m.note("%s: %.300q", tool, a.text)
	m.hear(tool, args, a, res)
	if res.IsError {
		m.remake(ctx, a.text, args)
		return nil, errors.New(a.text)
	}
	return a, nil
}

// hear notes what an answer says about lost state.
func (m *memory) hear(tool string, args map[string]any, a *answer, res *mcp.CallToolResult) {
	reason := ""
	if a.is("state_lost") {
		if reason = a.str("lost_reason"); strings.HasPrefix(reason, "stopped") {
			m.token = "" // by the soak, before it began
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
	if reason == "" || args["session_id"] != m.id {
		return
	}
	if !m.tally.faultSince(m.good) {
		m.lose("reports a loss that no fault explains, in an answer of %s", tool)
	}
	m.tally.count(m.tally.told, clip(reason))
	m.token, m.back = "", true
}

// disconnect ends the MCP session and closes its connections. The server would keep idle
// ones for minutes, which would count as what it holds.
func (m *memory) disconnect() {
	m.session.Close()
	m.transport.CloseIdleConnections()
	m.session = nil
}

// connect opens an MCP session.
func (m *memory) connect(ctx context.Context) (*mcp.ClientSession, *http.Transport, error) {
	transport := &http.Transport{}
	client := mcp.NewClient(&mcp.Implementation{Name: "glovebox-soak", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: m.server.url(), HTTPClient: &http.Client{Transport: &bearer{transport, m.server.tokens[m.owner]}}, MaxRetries: -1,
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
