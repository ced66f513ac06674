package codemode

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A Call is a call of a tool by a model.
type Call struct {
	Server, Tool string
	Arguments    map[string]any
}

// A Caller makes the calls of a Conversation.
type Caller interface {
	// Name returns the name under which the model sees a tool.
	Name(server, tool string) string
	// Call calls a tool.
	Call(ctx context.Context, server, tool string, arguments map[string]any) (*mcp.CallToolResult, error)
}

// A Turn is one round trip: the model asks for calls and reads their results.
type Turn struct {
	Requests, Results string // as text that the model writes and reads
	Calls             int
	Images            int // among the results; not in the text
}

// A Conversation records what passes through a model. It is not safe for concurrent use.
type Conversation struct {
	Caller Caller
	Turns  []Turn
}

// Ask makes one turn of calls, one after another, and returns the text of each result. A
// result that reports an error is an error: no task expects one.
func (c *Conversation) Ask(ctx context.Context, calls ...Call) ([]string, error) {
	t := Turn{Calls: len(calls)}
	var texts []string
	for _, one := range calls {
		request, err := Request(c.Caller.Name(one.Server, one.Tool), one.Arguments)
		if err != nil {
			return nil, err
		}
		r, err := c.Caller.Call(ctx, one.Server, one.Tool, one.Arguments)
		if err != nil {
			return nil, fmt.Errorf("call %s.%s: %w", one.Server, one.Tool, err)
		}
		text, images := textOf(r)
		if r.IsError {
			return nil, fmt.Errorf("call %s.%s: the tool failed: %.500s", one.Server, one.Tool, text)
		}
		t.Requests += request
		t.Results += text + "\n"
		t.Images += images
		texts = append(texts, text)
	}
	c.Turns = append(c.Turns, t)
	return texts, nil
}

// Request returns a call as the text that a model writes, a line of JSON.
func Request(name string, arguments map[string]any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(struct {
		Name      string         `json:"name"`
		Arguments map[string]any `json:"arguments"`
	}{name, arguments}); err != nil {
		return "", fmt.Errorf("encode the arguments of %s: %w", name, err)
	}
	return b.String(), nil
}

// textOf returns the text of a result as clients give it to the model: the content, or the
// structured content if there is no other. Servers repeat structured content as text.
func textOf(r *mcp.CallToolResult) (text string, images int) {
	var parts []string
	for _, c := range r.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			parts = append(parts, c.Text)
		case *mcp.ImageContent:
			images++
		default:
			if b, err := json.Marshal(c); err == nil {
				parts = append(parts, string(b))
			}
		}
	}
	if len(parts) == 0 && images == 0 && r.StructuredContent != nil {
		if b, err := json.Marshal(r.StructuredContent); err == nil {
			parts = append(parts, string(b))
		}
	}
	return strings.Join(parts, "\n"), images
}

// Catalogue returns the text by which a model knows a server: its instructions, and the
// name, description and input schema of each tool as JSON. Clients pass no more of a tool
// to models.
func Catalogue(instructions string, tools []*mcp.Tool) (string, error) {
	type entry struct {
		Name        string `json:"name"`
		Description string `json:"description,omitempty"`
		InputSchema any    `json:"input_schema"`
	}
	var all []entry
	for _, t := range tools {
		all = append(all, entry{t.Name, t.Description, t.InputSchema})
	}
	var b strings.Builder
	if instructions != "" {
		b.WriteString(instructions + "\n")
	}
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(all); err != nil {
		return "", fmt.Errorf("encode the tools: %w", err)
	}
	return b.String(), nil
}

// A Cost is what passes through the model, in tokens.
type Cost struct {
	Catalogue int `json:"catalogue"` // the definitions of the tools
	Requests  int `json:"requests"`  // written by the model
	Results   int `json:"results"`
	Largest   int `json:"context"` // the longest context of the task: all of the above
	Carried   int `json:"carried"` // all that is read and written over all turns, see CostOf
	Turns     int `json:"round_trips"`
	Calls     int `json:"calls"` // that the model makes
}

// Sum returns the tokens of the catalogue, the requests and the results, each once.
func (c Cost) Sum() int { return c.Catalogue + c.Requests + c.Results }

// Add adds the cost of another task. Largest becomes the larger one.
func (c *Cost) Add(other Cost) {
	c.Catalogue += other.Catalogue
	c.Requests += other.Requests
	c.Results += other.Results
	c.Largest = max(c.Largest, other.Largest)
	c.Carried += other.Carried
	c.Turns += other.Turns
	c.Calls += other.Calls
}

// CostOf counts a conversation. catalogue is the text of the tool definitions.
//
// The model is invoked once for each turn and once more for the answer. Carried adds up
// what each invocation reads, which is the catalogue and all turns before, and what it
// writes: what is billed without a cache of prompts. The question and the answer are the
// same whichever way a task is solved, and not in any of the sums.
func CostOf(catalogue string, turns []Turn, tokens func(string) (int, error)) (Cost, error) {
	n, err := tokens(catalogue)
	if err != nil {
		return Cost{}, err
	}
	c := Cost{Catalogue: n, Turns: len(turns), Carried: n}
	for _, t := range turns {
		requests, err := tokens(t.Requests)
		if err != nil {
			return Cost{}, err
		}
		results, err := tokens(t.Results)
		if err != nil {
			return Cost{}, err
		}
		c.Calls += t.Calls
		c.Requests += requests
		c.Results += results
		// Read by the next invocation, with all before; written by this one.
		c.Carried += c.Sum() + requests
	}
	c.Largest = c.Sum()
	return c, nil
}
