//go:build linux

package attack

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
)

// sessionOfAlice starts a server with tokens and a session of one owner.
func (t *trial) sessionOfAlice(ctx context.Context) (*server, string, error) {
	s, err := t.guarded(ctx)
	if err != nil {
		return nil, "", err
	}
	id, err := s.session(ctx, s.tokens["alice"])
	if err == nil && id == "" {
		err = skip("the server gives no sessions")
	}
	return s, id, err
}

func sessionTheft(ctx context.Context, t *trial) error {
	s, id, err := t.sessionOfAlice(ctx)
	if err != nil {
		return err
	}
	for _, method := range []string{"POST", "GET", "DELETE"} {
		r := request{method: method, token: s.tokens["bob"], headers: map[string]string{"Mcp-Session-Id": id, "Accept": "application/json, text/event-stream"}}
		if method == "POST" {
			r.body = list
		}
		res, err := s.send(ctx, r)
		t.expect(method+" with another owner's session", res, err, 403, 404)
	}
	res, err := s.send(ctx, request{token: s.tokens["alice"], body: list, headers: map[string]string{"Mcp-Session-Id": id}})
	t.check(err == nil && res.status == http.StatusOK, "the owner's session was harmed: %d, %v", res.status, err)
	return nil
}

// resumable is the first message of a client whose streams can be resumed.
var resumable = strings.Replace(initialize, "2025-06-18", "2025-11-25", 1)

// streamTheft takes the stream of a call in which a secret is answered: while the call
// runs, and after it.
func streamTheft(ctx context.Context, t *trial) error {
	s, id, end, err := t.guardedBox(ctx, "alice")
	if err != nil {
		return err
	}
	defer end()
	sessions := map[string]string{}
	for _, owner := range []string{"alice", "bob"} {
		res, err := s.send(ctx, request{body: resumable, token: s.tokens[owner]})
		if err != nil || res.header.Get("Mcp-Session-Id") == "" {
			return fmt.Errorf("begin a session: %d, %w", res.status, err)
		}
		sessions[owner] = res.header.Get("Mcp-Session-Id")
	}
	event, err := s.leaveCall(ctx, sessions["alice"], id, "sleep 2; echo "+t.bait.secret)
	if err != nil {
		return err
	}
	steal := func(when string) {
		for _, session := range []string{sessions["alice"], sessions["bob"], ""} {
			for _, last := range []string{event, strings.TrimSuffix(event, "_0") + "_1", "0", strings.Repeat("9", 1000)} {
				res, err := s.send(ctx, request{method: "GET", token: s.tokens["bob"], headers: map[string]string{
					"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25", "Last-Event-Id": last, "Accept": "text/event-stream"}})
				t.expect("another owner's stream "+when, res, err, 400, 403, 404, 405)
				t.bait.checkText(t, "the answer to another owner", res.body)
			}
		}
	}
	steal("during the call")
	res, err := s.send(ctx, request{method: "GET", token: s.tokens["alice"], headers: map[string]string{
		"Mcp-Session-Id": sessions["alice"], "Mcp-Protocol-Version": "2025-11-25", "Last-Event-Id": event, "Accept": "text/event-stream"}})
	t.check(err == nil && strings.Contains(res.body, t.bait.secret), "the owner cannot resume the stream: %d, %v", res.status, err)
	steal("after the call")
	return nil
}

// leaveCall begins a command in a box of alice as a client that goes away once the
// stream has begun. It returns the id of the first event.
func (s *server) leaveCall(ctx context.Context, session, box, command string) (event string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body := tool("execute_command", map[string]any{"session_id": box, "command": command})
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.scheme()+"://"+s.addr+"/mcp", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + s.tokens["alice"],
		"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25",
	} {
		q.Header.Set(k, v)
	}
	res, err := s.client().Do(q)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", fmt.Errorf("the stream of a call has no event: %d, %w", res.StatusCode, lines.Err())
}

func boxTheft(ctx context.Context, t *trial) error {
	s, err := t.guarded(ctx)
	if err != nil {
		return err
	}
	id := "box-" + t.nonce
	res, err := s.send(ctx, request{token: s.tokens["alice"], body: tool("execute_command", map[string]any{"session_id": id, "command": "echo " + t.bait.secret + " > secret"})})
	if err != nil || res.status != http.StatusOK {
		return fmt.Errorf("make a box: %d, %w: %s", res.status, err, printable(res.body))
	}
	defer s.send(context.WithoutCancel(ctx), request{token: s.tokens["alice"], body: tool("stop_session", map[string]any{"session_id": id})})
	defer s.send(context.WithoutCancel(ctx), request{token: s.tokens["bob"], body: tool("stop_session", map[string]any{"session_id": id})})
	for name, args := range map[string]map[string]any{
		"execute_command":  {"session_id": id, "command": "cat secret; cat /home/user/secret"},
		"download_file":    {"session_id": id, "path": "/home/user/secret"},
		"list_files":       {"session_id": id},
		"get_sessions":     {},
		"fork_session":     {"session_id": id},
		"snapshot_session": {"session_id": id},
		"stop_session":     {"session_id": id},
	} {
		res, err := s.send(ctx, request{token: s.tokens["bob"], body: tool(name, args)})
		if err != nil {
			return err
		}
		t.bait.checkText(t, "the answer to "+name, res.body)
		t.held(1)
	}
	res, err = s.send(ctx, request{token: s.tokens["alice"], body: tool("execute_command", map[string]any{"session_id": id, "command": "cat secret"})})
	t.check(err == nil && strings.Contains(res.body, t.bait.secret), "the owner's box was harmed: %d, %v", res.status, err)
	return nil
}
