//go:build linux

package attack

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	agentlink "github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// needIsolation are the attacks on calls that hold only in a box: by the kernel of the
// guest, or as its first process.
var needIsolation = []string{"codemode/traced-run", "codemode/forged-call", "codemode/flood"}

// Attacks on calls hold, also where boxes cannot be isolated.
func TestAttacks_Codemode(t *testing.T) {
	attacks, err := Select(All(), []string{"codemode"})
	if err != nil {
		t.Fatal(err)
	}
	attacks = slices.DeleteFunc(attacks, func(a Attack) bool {
		return slices.Contains(needIsolation, a.ID()) || slices.Contains(unmeasured, a.ID())
	})
	report, err := Run(t.Context(), unisolated(t, nil), attacks)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Outcome != Held {
			t.Errorf("%s: %s %q %s", r.ID, r.Outcome, r.Broken, r.Why)
		}
	}
	if len(report.Left) > 0 {
		t.Errorf("left: %q", report.Left)
	}
}

// Attacks on calls succeed against a host that calls whatever it is asked to, and the
// judge notices.
func TestControl_Codemode(t *testing.T) {
	calls := weakCalls{host: func(servers []upstream) agentlink.Host { return &naive{servers: servers} }}
	for id, c := range map[string]struct {
		weak weakCalls
		want string
	}{
		"codemode/stolen-secret":   {weakCalls{together: true}, "called a tool"},
		"codemode/traced-run":      {weakCalls{together: true}, "BROKE"},
		"codemode/call-loop":       {calls, "requests were answered"},
		"codemode/raced-budget":    {calls, "of a budget of"},
		"codemode/shadowed-name":   {calls, "went to"},
		"codemode/rug-pull":        {calls, "the changed tool was called"},
		"codemode/unintended-call": {weakCalls{code: "\ntools.evil.t_then({})"}, "tools were called"},
		"codemode/deceptive-error": {calls, "hidden characters"},
		"codemode/text-as-image":   {calls, "has the text"},
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			cfg := unisolated(t, nil)
			cfg.calls = c.weak
			expectBroken(t, run(t, cfg, id), c.want)
		})
	}
}

// naive calls the first server whose name begins like that of a call. It connects to each
// server once.
type naive struct {
	servers []upstream

	mu      sync.Mutex
	shown   []protocol.Display            // guarded by mu
	clients map[string]*mcp.ClientSession // guarded by mu
}

func (n *naive) Displays() []protocol.Display { return n.shown }

func (n *naive) client(ctx context.Context, u upstream) (*mcp.ClientSession, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.clients[u.name]; c != nil {
		return c, nil
	}
	ctx = context.WithoutCancel(ctx)
	here, there := mcp.NewInMemoryTransports()
	if _, err := u.server.Connect(ctx, there, nil); err != nil {
		return nil, err
	}
	c, err := mcp.NewClient(&mcp.Implementation{Name: "naive", Version: "1"}, nil).Connect(ctx, here, nil)
	if n.clients == nil {
		n.clients = make(map[string]*mcp.ClientSession)
	}
	n.clients[u.name] = c
	return c, err
}

func (n *naive) Call(ctx context.Context, method string, args []byte) ([]byte, error) {
	var in struct {
		Name      string
		Arguments json.RawMessage
	}
	failure := func(message string) ([]byte, error) {
		return json.Marshal(map[string]any{"error": map[string]string{"code": "failed", "message": message}})
	}
	if err := json.Unmarshal(args, &in); err != nil || method != "tool" {
		return failure("no such tool")
	}
	server, tool, _ := strings.Cut(in.Name, ".")
	for _, u := range n.servers {
		if !strings.HasPrefix(u.name, server) {
			continue
		}
		c, err := n.client(ctx, u)
		if err != nil {
			return nil, err
		}
		res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: in.Arguments})
		if err != nil {
			return failure(err.Error())
		}
		value := ""
		for _, content := range res.Content {
			switch content := content.(type) {
			case *mcp.TextContent:
				value += content.Text
			case *mcp.ImageContent:
				n.mu.Lock()
				n.shown = append(n.shown, protocol.Display{Data: map[string]string{content.MIMEType: base64.StdEncoding.EncodeToString(content.Data)}})
				n.mu.Unlock()
			}
		}
		if res.IsError {
			return failure(value)
		}
		return json.Marshal(map[string]string{"value": value})
	}
	return failure("no such server")
}
