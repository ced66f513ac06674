// Package envelope parses the envelopes of JSON-RPC messages: kind, id, method, and the
// members of params that decide how a message is dispatched. It alone decides whether
// bytes from a client are a message. It also renders responses.
package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
)

// maxBatch bounds the messages of one batch. Clients that still batch send a
// handful; each element costs a goroutine.
const maxBatch = 256

// A Kind is the kind of a message.
type Kind int

// The kinds of messages.
const (
	Request Kind = iota + 1
	Notification
	Response
)

// An Envelope is a parsed message, without the contents of its params.
type Envelope struct {
	Kind Kind
	ID   json.RawMessage // the exact bytes; nil without an id
	// Inexact says that the SDK cannot hold the id: a number that is no integer, or
	// too large for a float64.
	Inexact bool
	Method  string // empty for a response

	Tool    string // params.name
	Version string // the revision that params._meta claims

	Params map[string]json.RawMessage // the members of params, of a request or notification
	Meta   map[string]json.RawMessage // the members of params._meta

	raw    json.RawMessage // params, or the result of a response
	failed json.RawMessage // the error of a response
}

// IsModern reports whether the message claims a revision without sessions.
func (e *Envelope) IsModern() bool { return revision.IsModern(e.Version) }

type message struct {
	Version json.RawMessage `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  json.RawMessage `json:"method"`
	Params  params          `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   json.RawMessage `json:"error"`
}

type params struct {
	raw                    json.RawMessage
	present, array, object bool
	members, meta          map[string]json.RawMessage
	name                   string
	version                string
}

func (p *params) UnmarshalJSON(b []byte) error {
	p.raw = bytes.Clone(b)
	p.present = true
	switch b[0] {
	case '[':
		p.array = true
	case 'n':
		p.present = false
	case '{':
		p.object = true
		// Handlers refuse members of the wrong type.
		if json.Unmarshal(p.raw, &p.members) != nil {
			return nil
		}
		get(p.members["name"], &p.name)
		get(p.members["_meta"], &p.meta)
		get(p.meta[mcp.MetaKeyProtocolVersion], &p.version)
	}
	return nil
}

// get decodes a member into v, and leaves v unchanged if the member has another type.
func get[T any](raw json.RawMessage, v *T) {
	var got T
	if len(raw) > 0 && json.Unmarshal(raw, &got) == nil {
		*v = got
	}
}

func refuse(code int64, text string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: code, Message: text}
}

// Parse parses one message. With an error the envelope still has the id, if that is
// valid.
func Parse(data []byte) (Envelope, *jsonrpc.Error) {
	var e Envelope
	if !utf8.Valid(data) {
		return e, refuse(jsonrpc.CodeParseError, "Parse error: the message is not valid UTF-8")
	}
	data = bytes.TrimLeft(data, " \t\r\n")
	if len(data) == 0 {
		return e, refuse(jsonrpc.CodeParseError, "Parse error: empty message")
	}
	if data[0] != '{' {
		if json.Valid(data) {
			return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: Request must be a JSON object")
		}
		return e, refuse(jsonrpc.CodeParseError, "Parse error: Invalid JSON")
	}
	if values(data) > maxValues {
		e.ID = PrefixID(data[:min(len(data), IDPrefix)])
		return e, errValues
	}
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return e, refuse(jsonrpc.CodeParseError, "Parse error: Invalid JSON at byte "+strconv.FormatInt(syntax.Offset, 10))
		}
		return e, refuse(jsonrpc.CodeParseError, "Parse error: Invalid JSON")
	}
	id, exact, ok := usableID(m.ID)
	if ok {
		e.ID, e.Inexact = id, !exact
	}
	if name, found := ambiguous(data); found {
		return e, refuse(jsonrpc.CodeInvalidRequest, fmt.Sprintf("Invalid request: member %q must be there once, and in lower case", name))
	}
	switch {
	case string(m.Version) != `"2.0"`:
		return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: Missing or invalid jsonrpc version (must be '2.0')")
	case !ok:
		return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: id must be a string or a number")
	case m.Method == nil && (m.Result != nil || m.Error != nil):
		if e.ID == nil {
			return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: a response needs an id")
		}
		e.Kind, e.raw, e.failed = Response, m.Result, m.Error
		return e, nil
	case m.Method == nil:
		return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: Missing required 'method' field")
	case m.Method[0] != '"':
		return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: Method must be a string")
	case m.Params.present && !m.Params.object && !m.Params.array:
		return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: Params must be an object or array")
	}
	if json.Unmarshal(m.Method, &e.Method) != nil || e.Method == "" {
		return e, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: Missing required 'method' field")
	}
	e.Kind = Notification
	if e.ID != nil {
		e.Kind = Request
	}
	if m.Params.array {
		return e, refuse(jsonrpc.CodeInvalidParams, "Invalid parameters: Params must be an object")
	}
	if e.Kind == Request && e.Method == "initialize" && !m.Params.object {
		return e, refuse(jsonrpc.CodeInvalidParams, "Invalid parameters: initialize needs params, an object with protocolVersion, capabilities and clientInfo")
	}
	e.Tool, e.Version = m.Params.name, m.Params.version
	e.Params, e.Meta, e.raw = m.Params.members, m.Params.meta, m.Params.raw
	return e, nil
}

// Message returns the message for the SDK, without parsing it again. The id must be
// exact.
func (e *Envelope) Message() (jsonrpc.Message, *jsonrpc.Error) {
	id, err := sdkID(e.ID)
	if err != nil {
		return nil, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: "+err.Error())
	}
	if e.Kind != Response {
		return &jsonrpc.Request{ID: id, Method: e.Method, Params: e.raw}, nil
	}
	r := &jsonrpc.Response{ID: id, Result: e.raw}
	if e.failed != nil {
		failed := new(jsonrpc.Error)
		if err := json.Unmarshal(e.failed, failed); err != nil {
			return nil, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: error must be an object with code and message")
		}
		r.Error = failed
	}
	return r, nil
}

func sdkID(raw json.RawMessage) (jsonrpc.ID, error) {
	var v any
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &v); err != nil {
			return jsonrpc.ID{}, err
		}
	}
	return jsonrpc.MakeID(v)
}

var (
	errValues = refuse(jsonrpc.CodeInvalidRequest, fmt.Sprintf("Invalid request: more than %d values in a message", maxValues))
	errBatch  = refuse(jsonrpc.CodeInvalidRequest, fmt.Sprintf("Invalid request: more than %d messages in a batch", maxBatch))
)

// OverLimit reports whether Parse or Split has refused a body because it has too many values or
// messages.
func OverLimit(refused *jsonrpc.Error) bool { return refused == errValues || refused == errBatch }

// IDPrefix is how many bytes of a message that is not decoded are searched for its id,
// which most clients write first.
const IDPrefix = 4 << 10

// maxNumber bounds the digits of an id that is a number.
const maxNumber = 64

// ErrInexact refuses a message whose id the SDK would change.
var ErrInexact = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: id must be a string or an integer below 2^53"}

// usableID reports whether raw is a valid id, and whether the SDK can hold it exactly. A
// missing id is valid; null belongs to error responses only.
func usableID(raw json.RawMessage) (id json.RawMessage, exact, ok bool) {
	if len(raw) == 0 {
		return nil, true, true
	}
	switch c := raw[0]; {
	case c == '"':
		return raw, true, true
	case (c == '-' || c >= '0' && c <= '9') && len(raw) <= maxNumber:
		f, err := strconv.ParseFloat(string(raw), 64)
		return raw, err == nil && whole(f), true
	}
	return nil, false, false
}

// whole reports whether f is an integer that a float64 holds exactly.
func whole(f float64) bool { return f == math.Trunc(f) && math.Abs(f) < 1<<53 }

// Key returns a string that is the same for equal ids: "a" may be written with an escape,
// 7 as 7.0, and 0 as -0.
func Key(id json.RawMessage) string {
	var v any
	if json.Unmarshal(id, &v) != nil {
		return string(id)
	}
	switch v := v.(type) {
	case string:
		return stringKey(v)
	case float64:
		if !whole(v) {
			break
		}
		return numberKey(v)
	}
	return string(id)
}

func stringKey(s string) string { return `"` + s }

func numberKey(f float64) string {
	if f == 0 {
		return "0" // -0 equals 0, and the SDK holds it as 0
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// CancelledKey returns the [Key] of the request that a notifications/cancelled with
// these params is about; "" if they name none.
func CancelledKey(params json.RawMessage) string {
	var members map[string]json.RawMessage // a struct would also take a member like requestID
	if json.Unmarshal(params, &members) != nil || len(members["requestId"]) == 0 {
		return ""
	}
	return Key(members["requestId"])
}

// SDKKey is [Key] of an id that the SDK holds; "" of no id.
func SDKKey(id jsonrpc.ID) string {
	switch v := id.Raw().(type) {
	case string:
		return stringKey(v)
	case int64:
		return numberKey(float64(v))
	}
	return ""
}

// IsBatch reports whether data is a JSON array.
func IsBatch(data []byte) bool {
	data = bytes.TrimLeft(data, " \t\r\n")
	return len(data) > 0 && data[0] == '['
}

// Split returns the elements of a batch.
func Split(data []byte) ([]json.RawMessage, *jsonrpc.Error) {
	if values(data) > maxValues {
		return nil, errValues
	}
	var elements []json.RawMessage
	switch err := json.Unmarshal(data, &elements); {
	case err != nil || !utf8.Valid(data):
		return nil, refuse(jsonrpc.CodeParseError, "Parse error: Invalid JSON")
	case len(elements) == 0:
		return nil, refuse(jsonrpc.CodeInvalidRequest, "Invalid request: empty batch")
	case len(elements) > maxBatch:
		return nil, errBatch
	}
	return elements, nil
}

// PrefixID finds the id of a message in its first bytes. It returns nil unless the id is
// complete.
func PrefixID(prefix []byte) json.RawMessage {
	dec := json.NewDecoder(bytes.NewReader(prefix))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for {
		key, err := dec.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if _, ok := key.(string); !ok || dec.Decode(&value) != nil {
			return nil
		}
		if dec.InputOffset() >= int64(len(prefix)) {
			return nil // a number may go on
		}
		if key == "id" {
			id, exact, _ := usableID(value)
			if !exact {
				return nil
			}
			return id
		}
	}
}
