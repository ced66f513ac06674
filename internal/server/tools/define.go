package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// info is the part of a definition that is not derived from types.
type info struct {
	name, title, description string

	set     Set
	needs   Set  // see Tool
	alias   bool // see Tool, as volumes
	volumes bool
	family  family // how errors look

	readOnly    bool
	destructive bool
	idempotent  bool
	long        bool // see Tool
}

// A presenter says how its result reads. Without one the text of a result is
// its JSON.
type presenter interface {
	present() presentation
}

type presentation struct {
	text   string
	asJSON bool     // the text is the JSON of the result, and nothing else
	status status   // a line after the text
	notes  []string // lines after that, each a sentence or more
	failed bool
	images []box.Image
	meta   mcp.Meta // what programs may want to know and models need not
	more   []mcp.Content
}

// Keys of the metadata of results. It is not shown to models.
const (
	metaSource = "glovebox/source" // how a box came to be
	metaSHA256 = "glovebox/sha256" // of the content that was written, hexadecimal
	metaError  = "glovebox/error"  // why a call failed, as error.data
)

// define returns what makes an entry of the catalogue. Schemas, defaults and
// checks come from the types and their tags:
//
//	jsonschema  the description of the field
//	default     what an absent argument means
//	min, max    of an integer; of a string's length
//	enum        the allowed values; a handler that is more lenient says oneof
//	alias       other names of the argument, accepted and not published
//
// The making panics on a definition that makes no sense.
func define[In, Out any](d info, h func(context.Context, *Call, In) (Out, error)) func() Tool {
	return func() Tool { return newTool(d, h) }
}

func newTool[In, Out any](d info, h func(context.Context, *Call, In) (Out, error)) Tool {
	in := inputOf[In](d.name)
	no := false
	def := &mcp.Tool{
		Name: d.name, Title: d.title, Description: d.description,
		InputSchema:  in.schema,
		OutputSchema: schemaOf[Out](d.name),
		Annotations: &mcp.ToolAnnotations{
			Title: d.title, ReadOnlyHint: d.readOnly, DestructiveHint: &d.destructive,
			IdempotentHint: d.idempotent, OpenWorldHint: &no,
		},
	}
	bind := func(deps Deps) mcp.ToolHandler {
		return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var args In
			if err := in.decode(req.Params.Arguments, &args); err != nil {
				return d.family.answer(deps, d.name, err)
			}
			recordFields(ctx, args)
			boxes, err := deps.manager(ctx)
			if err != nil {
				return d.family.answer(deps, d.name, err)
			}
			c := &Call{Boxes: boxes, Owner: ownerOf(req.Extra), Links: understandsLinks(req)}
			c.Client, _ = ctx.Value(clientKey{}).(*Client)
			p := startProgress(ctx, req)
			if p != nil {
				c.Progress = p.add
			}
			out, err := h(ctx, c, args)
			p.stop() // before the answer: nothing may follow it
			if err != nil {
				if box.CodeOf(err) == box.CodeCancelled && ctx.Err() != nil {
					return nil, ctx.Err()
				}
				return d.family.answer(deps, d.name, err)
			}
			recordFields(ctx, out)
			return present(out)
		}
	}
	return Tool{Def: def, Set: d.set, Needs: d.needs, Long: d.long, alias: d.alias, volumes: d.volumes, bind: bind}
}

// ownerOf returns the owner of the boxes of a request: the authenticated caller, or
// the local user.
func ownerOf(extra *mcp.RequestExtra) box.Owner {
	if extra == nil || extra.TokenInfo == nil {
		return ""
	}
	return box.Owner(extra.TokenInfo.UserID)
}

// present makes the message of a result.
func present(out any) (*mcp.CallToolResult, error) {
	data, err := encode(out)
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

// encode is JSON for a reader that is no web page: < stays <.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

func indent(data []byte) string {
	var buf bytes.Buffer
	buf.Grow(len(data) + len(data)/4)
	if json.Indent(&buf, data, "", "  ") != nil {
		return string(data)
	}
	return buf.String()
}

// schemaOf renders the schema of a type once; the SDK would do so for every
// call and every list.
func schemaOf[T any](tool string) json.RawMessage {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Errorf("define %s: %w", tool, err))
	}
	applyTags(s, reflect.TypeFor[T]())
	data, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Errorf("define %s: %w", tool, err))
	}
	if len(s.Properties) == 0 {
		// The package leaves out what is empty. OpenAI refuses a function whose
		// parameters have no properties.
		data = bytes.Replace(data, []byte("{"), []byte(`{"properties":{},`), 1)
	}
	return data
}

// applyTags adds what the tags say beyond descriptions. A Go slice is null when
// empty to the inference; ours are not.
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
			p := s.Properties[jsonName(f)]
			if p == nil {
				continue
			}
			applyTags(p, f.Type)
			newRule(f).describe(p)
		}
	}
}
