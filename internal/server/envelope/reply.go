package envelope

import (
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

// Reply renders a response with a result that is encoded already.
func Reply(id, result json.RawMessage) []byte {
	b := make([]byte, 0, len(id)+len(result)+40)
	b = append(append(b, `{"jsonrpc":"2.0","id":`...), id...)
	b = append(append(b, `,"result":`...), result...)
	return append(b, '}')
}

// Limits of an error response, in bytes. The SDK repeats params that it cannot decode in
// the text of its error, however long they are.
const (
	maxErrorMessage = 4 << 10
	maxErrorData    = 64 << 10
)

// ErrorReply renders an error response; id may be nil. It shortens a long message, and
// leaves out data over the limit.
func ErrorReply(id json.RawMessage, e *jsonrpc.Error) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	if len(e.Message) > maxErrorMessage || len(e.Data) > maxErrorData {
		e = &jsonrpc.Error{Code: e.Code, Message: truncate.Bytes(e.Message, maxErrorMessage), Data: e.Data}
		if len(e.Data) > maxErrorData {
			e.Data = nil
		}
	}
	b, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", id, e})
	if err != nil {
		return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}`)
	}
	return b
}

// An opaque error passes through the SDK as it is. The SDK replaces errors whose code is
// MethodNotFound by a text of its own, and drops their data; it finds them with
// [errors.Is], to which an opaque error shows nothing.
type opaque struct{ err *jsonrpc.Error }

func (e opaque) Error() string { return e.err.Message }

// Opaque returns an error for the SDK to carry to a transport of ours, where [WireError]
// opens it.
func Opaque(err error) error {
	if e, ok := err.(*jsonrpc.Error); ok && e.Code == jsonrpc.CodeMethodNotFound {
		return opaque{e}
	}
	return err
}

// WireError returns the error that a client gets. The SDK's own refusals have no code:
// they get that of an internal error.
func WireError(err error) *jsonrpc.Error {
	if s, ok := err.(opaque); ok {
		return s.err
	}
	if e, ok := err.(*jsonrpc.Error); ok && e.Code != 0 {
		return e
	}
	e := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
	if inner, ok := errors.AsType[*jsonrpc.Error](err); ok && inner.Code != 0 {
		e.Code = inner.Code
	}
	return e
}
