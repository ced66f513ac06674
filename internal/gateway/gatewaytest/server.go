// Package gatewaytest has what tests of gateways need: a server that requests input
// from its callers, in both eras, and a client that answers.
package gatewaytest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

// A Question is the argument of the tool ask.
type Question struct {
	What string `json:"what"` // form, page, sample or roots
	// Wait delays the request until so many calls wait.
	Wait   int `json:"wait,omitempty"`
	Rounds int `json:"rounds,omitempty"`
	// Hang has the call never end if its question is refused.
	Hang bool `json:"hang,omitempty"`
}

// addQuestions adds tools that request input in both eras, and that log.
func addQuestions(s *mcp.Server, name string) {
	say := func(text string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
	}
	var mu sync.Mutex
	waiting, enough := 0, make(chan struct{})
	mcp.AddTool(s, &mcp.Tool{Name: "ask", Description: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, in Question) (*mcp.CallToolResult, any, error) {
		if in.Wait > 0 {
			mu.Lock()
			if waiting++; waiting == in.Wait {
				close(enough)
			}
			mu.Unlock()
			<-enough
		}
		ask := map[string]mcp.InputRequest{
			"form": &mcp.ElicitParams{Message: "who?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}}},
			"page": &mcp.ElicitParams{Mode: "url", Message: "log in", URL: "https://login.example/1", ElicitationID: "one"},
			"sample": &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{
				{Role: "user", Content: &mcp.TextContent{Text: "say it"}}}},
			"roots": &mcp.ListRootsParams{},
		}[in.What]
		version, _ := r.Params.Meta[mcp.MetaKeyProtocolVersion].(string)
		var answers []string
		if revision.IsModern(version) {
			if r.Params.RequestState != "" {
				var err error
				if answers, err = decode(r.Params.RequestState); err != nil {
					return nil, nil, err
				}
				answers = append(answers, contentOf(r.Params.InputResponses["q"]))
			}
			if len(answers) < max(in.Rounds, 1) {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": ask}, RequestState: encode(answers)}, nil, nil
			}
			return say(strings.Join(answers, " ")), nil, nil
		}
		for range max(in.Rounds, 1) {
			var a mcp.InputResponse
			var err error
			switch q := ask.(type) {
			case *mcp.ElicitParams:
				a, err = r.Session.Elicit(ctx, q)
				if q.ElicitationID != "" && err == nil {
					err = r.Session.NotifyElicitationComplete(ctx, &mcp.ElicitationCompleteParams{ElicitationID: q.ElicitationID})
				}
			case *mcp.CreateMessageParams:
				a, err = r.Session.CreateMessage(ctx, q)
			case *mcp.ListRootsParams:
				a, err = r.Session.ListRoots(ctx, q)
			}
			if err != nil && in.Hang {
				<-ctx.Done()
			}
			if err != nil {
				return nil, nil, err
			}
			answers = append(answers, contentOf(a))
		}
		return say(strings.Join(answers, " ")), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "shout", Description: "log"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Logger: "throat", Data: "hey"})
		return say("shouted"), nil, err
	})
	mcp.AddTool(s, &mcp.Tool{Name: "change", Description: "change a resource"}, func(ctx context.Context, _ *mcp.CallToolRequest, in struct {
		Text string `json:"text"`
	}) (*mcp.CallToolResult, any, error) {
		return say("changed"), nil, s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: in.Text})
	})
	mcp.AddTool(s, &mcp.Tool{Name: "crash", Description: "crash"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		os.Exit(3)
		return nil, nil, nil
	})
	s.AddResourceTemplate(&mcp.ResourceTemplate{Name: "notes", URITemplate: "note://" + name + "/{name}"},
		func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "a note"}}}, nil
		})
	if name == Greedy {
		for _, template := range []string{"{+uri}", "note{+rest}"} {
			s.AddResourceTemplate(&mcp.ResourceTemplate{Name: template, URITemplate: template},
				func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
					return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "taken"}}}, nil
				})
		}
	}
	s.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: []*mcp.PromptArgument{{Name: "who"}}}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "greet " + r.Params.Arguments["who"]}}}}, nil
	})
}

func encode(answers []string) string {
	b, err := json.Marshal(append([]string{}, answers...))
	if err != nil {
		panic(err)
	}
	return string(b)
}

func decode(state string) (answers []string, err error) {
	return answers, json.Unmarshal([]byte(state), &answers)
}

func contentOf(a mcp.InputResponse) string {
	switch a := a.(type) {
	case *mcp.ElicitResult:
		return fmt.Sprint(a.Action, " ", a.Content["name"])
	case *mcp.CreateMessageResult:
		return a.Content.(*mcp.TextContent).Text
	case *mcp.CreateMessageWithToolsResult:
		return a.Content[0].(*mcp.TextContent).Text
	case *mcp.ListRootsResult:
		var uris []string
		for _, r := range a.Roots {
			uris = append(uris, r.URI)
		}
		return strings.Join(uris, ",")
	}
	return fmt.Sprintf("%T", a)
}

// Greedy is the name of a server whose templates match the resources of all others.
const Greedy = "greedy"

// described is the name of the file with the description of the tool say, beside the notes.
const described = "description"

// Describe has servers that start later describe their tool say so; "" takes the tool away.
func Describe(notes, text string) error {
	return os.WriteFile(filepath.Join(filepath.Dir(notes), described), []byte(text), 0o600)
}

// New returns a server with tools, resources and prompts. It notes events in the file
// notes, one a line.
func New(name, notes string) *mcp.Server {
	description, err := os.ReadFile(filepath.Join(filepath.Dir(notes), described))
	if err != nil {
		description = []byte("say")
	}
	s := mcp.NewServer(&mcp.Implementation{Name: name, Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			ref, arg := r.Params.Ref, r.Params.Argument
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{
				strings.TrimPrefix(ref.Type, "ref/") + " " + ref.Name + ref.URI + " " + arg.Name + " " + arg.Value}}}, nil
		},
	})
	mcp.AddTool(s, &mcp.Tool{Name: "say", Description: string(description)}, func(_ context.Context, _ *mcp.CallToolRequest, in struct {
		Text string `json:"text"`
	}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: name + " says " + in.Text}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "learn", Description: "learn"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		mcp.AddTool(s, &mcp.Tool{Name: "new", Description: "new"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "new"}}}, nil, nil
		})
		s.RemoveTools("say")
		return &mcp.CallToolResult{Content: []mcp.Content{}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait", Description: "wait"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1, Message: "here"})
		<-ctx.Done()
		Note(notes, "cancelled")
		return nil, nil, ctx.Err()
	})
	addQuestions(s, name)
	if len(description) == 0 {
		s.RemoveTools("say")
	}
	return s
}

// Note appends a line to a file.
func Note(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(f, line)
	f.Close()
}
