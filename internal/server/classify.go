package server

import (
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/server/envelope"
)

const initialize = "initialize"

// known are the methods that the SDK serves.
var known = map[string]bool{
	initialize: true, "ping": true, "server/discover": true,
	"tools/list": true, callTool: true,
	"prompts/list": true, "prompts/get": true, "completion/complete": true,
	"resources/list": true, "resources/templates/list": true, "resources/read": true,
	"resources/subscribe": true, "resources/unsubscribe": true,
	"logging/setLevel": true, methodListen: true,
	"notifications/initialized": true, methodCancelled: true,
	"notifications/progress": true, "notifications/roots/list_changed": true,
}

// A postBody is the body of a POST: one message, or a batch. The envelope of a batch
// stands for all: it is a request if any is, its method is the first that the
// SDK does not know, and its version the newest that is claimed.
type postBody struct {
	envelope.Envelope
	messages []envelope.Envelope
	batch    bool
	calls    int         // requests in it, which count against limits
	session  *mcpSession // that the request names, once it is found
}

// classify parses the envelopes of a body, which decide how it is dispatched. With an error the
// envelope still holds the id that it belongs to, if there was one.
func classify(body []byte) (m postBody, refused *jsonrpc.Error) {
	if !envelope.IsBatch(body) {
		m.Envelope, refused = envelope.Parse(body)
		m.messages, m.calls = []envelope.Envelope{m.Envelope}, 1
		return m, refused
	}
	m.batch = true
	elements, refused := envelope.Split(body)
	if refused != nil {
		return m, refused
	}
	m.Kind = envelope.Notification
	ids := make(map[string]bool, len(elements))
	for _, element := range elements {
		e, refused := envelope.Parse(element)
		switch {
		case refused != nil:
		case e.Inexact:
			refused = envelope.ErrInexact
		case e.Method == initialize, e.Method == methodListen: // each is bounded by a limit of its own
			refused = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: " + e.Method + " must not be part of a batch"}
		case e.Kind == envelope.Request && ids[envelope.Key(e.ID)]:
			refused = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: two requests of the batch have one id"}
		}
		if refused != nil {
			m.ID = e.ID
			return m, refused
		}
		if e.Kind == envelope.Request {
			m.Kind = envelope.Request
			m.calls++
			ids[envelope.Key(e.ID)] = true
		}
		if e.Method != "" && (m.Method == "" || known[m.Method]) {
			m.Method = e.Method
		}
		m.Version = max(m.Version, e.Version)
		m.messages = append(m.messages, e)
	}
	return m, nil
}
