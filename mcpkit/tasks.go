package mcpkit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// metaTaskSupport is the metadata key under which [Session.Tools] stores a tool's
// execution.taskSupport. The SDK's type has no field for it.
const metaTaskSupport = "glovebox/taskSupport"

// taskRequired is the taskSupport of a tool that can run as a task only.
const taskRequired = "required"

// ErrTaskRequired reports a call of a tool that can run as a task only. This package
// does not create tasks.
var ErrTaskRequired = errors.New("the tool runs as a task only, and tasks are not supported yet")

// RequiresTask reports whether a tool returned by [Session.Tools] can run as a task
// only, so that calling it fails with [ErrTaskRequired]. This information survives
// encoding the tool as JSON.
func RequiresTask(t *mcp.Tool) bool { return t.Meta[metaTaskSupport] == taskRequired }

// taskTools holds the tools of a server that can run as tasks only, according to the
// last list of tools that contained them. The zero value is empty.
type taskTools struct {
	mu       sync.Mutex
	required map[string]bool // guarded by mu, by name; Limits.List entries at most
}

func (t *taskTools) has(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.required[name]
}

// read parses the tools in a result. limit bounds the stored names.
func (t *taskTools) read(result []byte, limit int) {
	if !bytes.Contains(result, []byte(`"inputSchema"`)) { // every listed tool has one
		return
	}
	var list struct {
		Tools []struct {
			Name      string
			Execution struct{ TaskSupport string }
		}
	}
	if json.Unmarshal(result, &list) != nil {
		return // the SDK reports what is wrong with it
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tool := range list.Tools {
		switch {
		case tool.Execution.TaskSupport != taskRequired:
			delete(t.required, tool.Name)
		case len(t.required) < limit:
			if t.required == nil {
				t.required = make(map[string]bool)
			}
			t.required[tool.Name] = true
		}
	}
}

// mark sets the metadata of the tools that can run as tasks only.
func (t *taskTools) mark(tools []*mcp.Tool) {
	for _, tool := range tools {
		if !t.has(tool.Name) || RequiresTask(tool) {
			continue
		}
		if tool.Meta == nil {
			tool.Meta = make(mcp.Meta)
		}
		tool.Meta[metaTaskSupport] = taskRequired
	}
}

// readToolList parses the tools in a result of the server.
func (s *Session) readToolList(result []byte) { s.tasks.read(result, s.m.opts.Limits.List) }

// refuseTask returns an error if the tool can run as a task only.
func (s *Session) refuseTask(tool string) error {
	if s.tasks.has(tool) {
		return fmt.Errorf("call tool %q of mcp server %q: %w", tool, s.def.Name, ErrTaskRequired)
	}
	return nil
}

// toolListTap passes the results of tools/list over HTTP to onResult, because the SDK
// does not decode all members. A result is the body of a POST's response, or an event
// of a stream that a GET opened.
type toolListTap struct {
	next     http.RoundTripper
	max      int // bytes of a message
	onResult func(result []byte)
}

// maxListRequest bounds a request that is searched for its method. A tools/list
// consists of a cursor and metadata.
const maxListRequest = 64 << 10

// RoundTrip implements [http.RoundTripper].
func (t *toolListTap) RoundTrip(req *http.Request) (*http.Response, error) {
	listens := req.Method == http.MethodGet || isToolList(req)
	res, err := t.next.RoundTrip(req)
	if err != nil || !listens {
		return res, err
	}
	res.Body = tap(res, t.max, t.message)
	return res, nil
}

// CloseIdleConnections supports [http.Client.CloseIdleConnections].
func (t *toolListTap) CloseIdleConnections() { closeIdle(t.next) }

func isToolList(req *http.Request) bool {
	if req.GetBody == nil || req.ContentLength > maxListRequest {
		return false
	}
	body, err := req.GetBody()
	if err != nil {
		return false
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, maxListRequest))
	return err == nil && bytes.Contains(b, []byte(`"tools/list"`))
}

// message passes the result in a message to onResult.
func (t *toolListTap) message(b []byte) {
	var response struct{ Result json.RawMessage }
	if json.Unmarshal(b, &response) == nil {
		t.onResult(response.Result)
	}
}
