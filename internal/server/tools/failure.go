package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// A failer makes the structured content of a call that failed outside of its code, in the shape of
// its results. b has no box if the call found none. For results that are none, it has the required
// fields, empty, and the fields of failedFields.
type failer[In any] interface {
	failed(in In, b target, why failure) any
}

// A failure is why a call failed outside of its code.
type failure struct {
	code, text string
	partial    box.Partial // the output of a program whose box ended while it ran
}

// failedFields are why a call failed, beside the fields of its result. A model that reads only the
// structured content learns it from them.
type failedFields struct {
	Error     string `json:"error,omitempty" jsonschema:"why the call failed"`
	ErrorCode string `json:"error_code,omitempty" jsonschema:"the kind of failure"`
}

// outputOf returns the schema of a tool's results. If the tool is no failer, the schema has the
// failedFields, and blank is the value of each required field in a failed call: a client may
// validate the content of that too.
func outputOf[In, Out any](tool string) (schema json.RawMessage, blank map[string]any) {
	s := inferSchema[Out](tool, nil)
	var out Out
	if _, ok := any(out).(failer[In]); ok {
		return encodeSchema(tool, s), nil
	}
	blank = make(map[string]any)
	empty := map[string]any{"string": "", "integer": 0, "number": 0, "boolean": false, "array": []any{}}
	for _, name := range s.Required {
		value, ok := empty[s.Properties[name].Type]
		if !ok {
			panic(fmt.Errorf("define %s: the required field %s of a failed call has no empty value", tool, name))
		}
		blank[name] = value
	}
	more := inferSchema[failedFields](tool, nil)
	for _, name := range more.PropertyOrder {
		if s.Properties[name] != nil {
			panic(fmt.Errorf("define %s: the field %s of the result is that of a failed call", tool, name))
		}
		if s.Properties == nil {
			s.Properties = make(map[string]*jsonschema.Schema)
		}
		s.Properties[name] = more.Properties[name]
	}
	s.PropertyOrder = slices.Concat(s.PropertyOrder, more.PropertyOrder)
	return encodeSchema(tool, s), blank
}

// answerFailed answers a failed call, with structured content in the shape of the tool's results.
func answerFailed[In, Out any](d info, deps Deps, blank map[string]any, in In, b target, cause error) (*mcp.CallToolResult, error) {
	res, err := d.family.answer(deps, d.name, cause)
	if err != nil {
		return nil, err
	}
	why := failure{}
	if e, ok := errors.AsType[*box.Error](cause); ok && e.Partial != nil {
		why.partial = *e.Partial
	}
	text := res.Content[0].(*mcp.TextContent)
	if coded, ok := res.Meta[metaError].(*jsonrpc.Error); ok {
		var details data
		if json.Unmarshal(coded.Data, &details) == nil { // our own
			why.code = details.ErrorCode
		}
		why.text = text.Text
		text.Text = lines(why.partial.Stdout, why.partial.Stderr, why.text)
	} else {
		var said struct{ Error, Code string }
		if json.Unmarshal([]byte(text.Text), &said) == nil { // our own
			why.code, why.text = said.Code, said.Error
		}
	}
	var out Out
	var structured any
	if f, ok := any(out).(failer[In]); ok {
		structured = f.failed(in, b, why)
	} else {
		fields := maps.Clone(blank)
		fields["error"], fields["error_code"] = why.text, why.code
		structured = fields
	}
	encoded, err := plainjson.Marshal(structured)
	if err != nil {
		return nil, err
	}
	res.StructuredContent = json.RawMessage(encoded)
	return res, nil
}
