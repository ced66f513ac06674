package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// info is the part of a tool's definition that types do not determine.
type info struct {
	name, title, description string

	set     Set
	needs   Set  // see Tool
	alias   bool // see Tool, as volumes, code and calls
	volumes bool
	code    bool
	calls   string
	// offline is the part of the description that says that there is no network.
	offline string
	// wordings are the parts of the description that are not true of every server.
	wordings []wording
	family   family // the format of errors

	readOnly    bool
	destructive bool
	idempotent  bool
	long        bool // see Tool
}

// A presenter formats its result. The text of other results is their JSON.
type presenter interface {
	present() presentation
}

type presentation struct {
	text   string
	asJSON bool     // the text is the JSON of the result, without status and notes
	status status   // the line after the text
	notes  []string // lines after the status, each of one or more sentences
	failed bool
	images []box.Image
	meta   mcp.Meta // for programs; hosts do not show it to models
	more   []mcp.Content
}

// Keys of the _meta of results.
const (
	metaSource = "glovebox/source" // how a box started
	metaSHA256 = "glovebox/sha256" // of the written content, in hexadecimal
	metaError  = "glovebox/error"  // why a call failed, as error.data
)

// define returns a constructor of a tool. Schemas, defaults and checks come from the
// types and their tags:
//
//	jsonschema  the description of the field
//	default     the value of an absent argument
//	min, max    bounds of an integer, or of a string's length
//	enum        the allowed values; oneof if the handler accepts others too
//	alias       other accepted names of the argument; the schema omits them
//	online      the schema omits the argument unless boxes have a network
//
// The constructor panics on an invalid definition.
func define[In, Out any](d info, h func(context.Context, *Call, In) (Out, error)) func() Tool {
	return func() Tool { return newTool(d, h) }
}

func newTool[In, Out any](d info, h func(context.Context, *Call, In) (Out, error)) Tool {
	in := inputOf[In](d.name)
	output, blank := outputOf[In, Out](d.name)
	no := false
	def := &mcp.Tool{
		Name: d.name, Title: d.title, Description: d.description,
		InputSchema:  in.offline,
		OutputSchema: output,
		Annotations: &mcp.ToolAnnotations{
			Title: d.title, ReadOnlyHint: d.readOnly, DestructiveHint: &d.destructive,
			IdempotentHint: d.idempotent, OpenWorldHint: &no,
		},
	}
	bind := func(deps Deps) mcp.ToolHandler {
		return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var args In
			if err := in.decode(req.Params.Arguments, &args); err != nil {
				return answerFailed[In, Out](d, deps, blank, args, target{}, err)
			}
			recordFields(ctx, args)
			boxes, err := deps.manager(ctx)
			if err != nil {
				return answerFailed[In, Out](d, deps, blank, args, target{}, err)
			}
			c := &Call{Boxes: boxes, Owner: ownerOf(req.Extra), Links: understandsLinks(req), reserve: deps.Reserve, holdCall: deps.Hold, approver: deps.Approvals}
			c.Client, _ = ctx.Value(clientKey{}).(*Client)
			c.broker = deps.broker(ctx, c.Owner)
			p := startProgress(ctx, req)
			c.progress = p
			do := func(ctx context.Context) (*mcp.CallToolResult, error) {
				if c.expired != nil {
					return answerFailed[In, Out](d, deps, blank, args, target{}, c.expired)
				}
				ctx = c.follow(ctx)
				delivered := false
				defer func() { c.release(delivered && ctx.Value(onlyReadsKey{}) == nil) }()
				out, err := h(ctx, c, args)
				if err != nil {
					if ctx.Err() != nil && box.CodeOf(err) == box.CodeCancelled {
						if !errors.Is(context.Cause(ctx), ErrShutdown) {
							return nil, ctx.Err()
						}
						err = interruptedByStop(err)
					}
					return answerFailed[In, Out](d, deps, blank, args, c.found, err)
				}
				recordFields(ctx, out)
				res, err := present(out)
				if err == nil && deps.Fits != nil {
					// An answer that finds no room delivers nothing that its boxes report once.
					if err = deps.Fits(ctx, sizeOf(res)); err != nil {
						res = nil
					}
				}
				delivered = err == nil && ctx.Err() == nil && hasAnswerWaiter(ctx)
				if ctx.Err() == nil && !delivered {
					c.noteUndelivered()
				}
				return res, err
			}
			defer p.stop() // no progress may follow the answer
			if d.calls != "" {
				return c.approvable(ctx, deps.Approvals, req, do)
			}
			return do(ctx)
		}
	}
	return Tool{Def: def, Set: d.set, Needs: d.needs, Long: d.long, alias: d.alias, volumes: d.volumes, code: d.code, calls: d.calls, offline: d.offline, wordings: d.wordings, online: in.schema, bind: bind}
}

// ownerOf returns the owner of the boxes of a request: the authenticated caller, or
// the local user.
func ownerOf(extra *mcp.RequestExtra) box.Owner {
	if extra == nil || extra.TokenInfo == nil {
		return ""
	}
	return box.Owner(extra.TokenInfo.UserID)
}

// present formats the result of a handler.
func present(out any) (*mcp.CallToolResult, error) {
	data, err := plainjson.Marshal(out)
	if err != nil {
		return nil, err
	}
	p := presentation{asJSON: true}
	if pr, ok := out.(presenter); ok {
		p = pr.present()
	}
	if p.asJSON {
		p.text = indent(data)
	} else {
		p.text = lines(p.text, p.status.line(), strings.Join(p.notes, "\n"))
	}
	res := &mcp.CallToolResult{
		Meta:              p.meta,
		Content:           []mcp.Content{&mcp.TextContent{Text: p.text}},
		StructuredContent: json.RawMessage(data),
		IsError:           p.failed,
	}
	for _, img := range p.images {
		res.Content = append(res.Content, &mcp.ImageContent{Data: img.Data, MIMEType: img.MIME})
	}
	res.Content = append(res.Content, p.more...)
	return res, nil
}

// sizeOf returns about how many bytes a result takes as an answer, seldom too few.
func sizeOf(res *mcp.CallToolResult) int64 {
	structured, _ := res.StructuredContent.(json.RawMessage)
	size := 1<<10 + len(structured)
	for _, c := range res.Content {
		size += 256
		switch c := c.(type) {
		case *mcp.TextContent:
			size += len(c.Text)
			for i := range len(c.Text) {
				switch b := c.Text[i]; {
				case b == '"', b == '\\', b == '\n', b == '\r', b == '\t':
					size++
				case b < ' ':
					size += len(`\u0000`) - 1
				}
			}
		case *mcp.ImageContent:
			size += base64.StdEncoding.EncodedLen(len(c.Data))
		}
	}
	return int64(size)
}

func indent(data []byte) string {
	var buf bytes.Buffer
	buf.Grow(len(data) + len(data)/4)
	if json.Indent(&buf, data, "", "  ") != nil {
		return string(data)
	}
	return buf.String()
}

// schemaOf encodes the schema of a type, without the fields of a struct that omit chooses.
// It is done once; the SDK would do it for every call and list.
func schemaOf[T any](tool string, omit func(reflect.StructField) bool) json.RawMessage {
	return encodeSchema(tool, inferSchema[T](tool, omit))
}

func inferSchema[T any](tool string, omit func(reflect.StructField) bool) *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Errorf("define %s: %w", tool, err))
	}
	applyTags(s, reflect.TypeFor[T]())
	if t := reflect.TypeFor[T](); omit != nil {
		for i := range t.NumField() {
			if f := t.Field(i); omit(f) {
				delete(s.Properties, jsonName(f))
				s.PropertyOrder = slices.DeleteFunc(s.PropertyOrder, func(name string) bool { return name == jsonName(f) })
			}
		}
	}
	return s
}

func encodeSchema(tool string, s *jsonschema.Schema) json.RawMessage {
	data, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Errorf("define %s: %w", tool, err))
	}
	if len(s.Properties) == 0 {
		// The package omits empty properties, and OpenAI's API rejects a function whose
		// parameters have none.
		data = bytes.Replace(data, []byte("{"), []byte(`{"properties":{},`), 1)
	}
	return data
}

// applyTags adds the constraints of the tags to an inferred schema. It also removes
// null from the types of slices: our results have no nil slices.
func applyTags(s *jsonschema.Schema, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	switch t.Kind() {
	case reflect.Slice:
		if s.Items != nil {
			applyTags(s.Items, t.Elem())
		}
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Anonymous { // its fields are properties of s
				applyTags(s, f.Type)
				continue
			}
			p := s.Properties[jsonName(f)]
			if p == nil {
				continue
			}
			applyTags(p, f.Type)
			newRule(f).describe(p)
		}
	}
}
