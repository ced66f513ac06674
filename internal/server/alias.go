package server

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The SDK puts a text of its own in place of every error with the code
// MethodNotFound, and drops its data. So such an error goes through the SDK under
// an alias, and gets its code back in the bytes on their way out. The alias is
// drawn anew by every server: nothing else that is sent can hold it but by
// chance.
type alias struct {
	code     int64
	from, to []byte
}

func newAlias() alias {
	code := -1<<52 - rand.Int64N(1<<52)
	return alias{code, fmt.Appendf(nil, `"code":%d`, code), fmt.Appendf(nil, `"code":%d`, jsonrpc.CodeMethodNotFound)}
}

// reveal returns bytes of the SDK as they are to be sent.
func (a *alias) reveal(b []byte) []byte {
	if !bytes.Contains(b, a.from) {
		return b
	}
	return bytes.ReplaceAll(b, a.from, a.to)
}

// disguise goes around all that the SDK is told. A modern error keeps its code,
// from which the SDK makes a status of HTTP.
func (s *Server) disguise(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if e, ok := err.(*jsonrpc.Error); ok && e.Code == jsonrpc.CodeMethodNotFound && !modern(req) {
			err = &jsonrpc.Error{Code: s.alias.code, Message: e.Message, Data: e.Data}
		}
		return res, err
	}
}
