package gatewaytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A Person is a client that answers with its name and records all it receives.
type Person struct {
	*mcp.ClientSession
	Name  string
	mu    sync.Mutex
	heard []string // guarded by mu
}

func (p *Person) hear(format string, a ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, fmt.Sprintf(format, a...))
}

// All returns the records.
func (p *Person) All() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.heard)
}

// Join connects a client of a revision; it is closed with the test. A mute client has
// no capabilities.
func Join(t *testing.T, transport mcp.Transport, name, version string, mute bool) *Person {
	t.Helper()
	p := &Person{Name: name}
	o := &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			p.hear("progress: %v %s", r.Params.ProgressToken, r.Params.Message)
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			p.hear("%s: %v", r.Params.Logger, r.Params.Data)
		},
		ElicitationCompleteHandler: func(_ context.Context, r *mcp.ElicitationCompleteNotificationRequest) {
			p.hear("done: %s", r.Params.ElicitationID)
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			p.hear("updated: %s", r.Params.URI)
		},
		Capabilities: &mcp.ClientCapabilities{},
	}
	if !mute {
		o.Capabilities = &mcp.ClientCapabilities{
			RootsV2:     &mcp.RootCapabilities{ListChanged: true},
			Elicitation: &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}},
		}
		o.ElicitationHandler = func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			p.hear("%s %s", r.Params.Message, r.Params.URL)
			if r.Params.Mode == "url" {
				return &mcp.ElicitResult{Action: "accept"}, nil
			}
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": name}}, nil
		}
		o.CreateMessageHandler = func(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			p.hear("sample: %s", r.Params.Messages[0].Content.(*mcp.TextContent).Text)
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "said by " + name}}, nil
		}
	}
	c := mcp.NewClient(&mcp.Implementation{Name: name, Version: "1"}, o)
	if !mute {
		c.AddRoots(&mcp.Root{URI: "file:///home/" + name})
	}
	var err error
	if p.ClientSession, err = c.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: version}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// Ask calls a tool that requests input, and returns its text.
func (p *Person) Ask(ctx context.Context, tool string, q Question) (string, error) {
	res, err := p.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: q})
	if err != nil {
		return "", err
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if res.IsError {
		return "", errors.New(text)
	}
	return text, nil
}

// Forget clears the records.
func (p *Person) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = nil
}
