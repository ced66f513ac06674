package stdio

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/mcpserver/envelope"
)

// batch collects the answers of one incoming batch.
type batch struct {
	open    int
	answers []json.RawMessage
}

func (c *conn) takeBatch(data []byte) {
	c.mu.Lock()
	version := c.version
	c.mu.Unlock()
	if version >= envelope.NoBatch {
		c.refuse(nil, &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidRequest,
			Message: "Invalid request: batches are not part of protocol revision " + version,
		})
		return
	}
	elements, refused := envelope.Split(data)
	if refused != nil {
		c.refuse(nil, refused)
		return
	}
	b := &batch{}
	var ms []jsonrpc.Message
	for _, element := range elements {
		env, m, refused := parse(element)
		if refused != nil {
			b.answers = append(b.answers, envelope.ErrorReply(env.ID, refused))
			continue
		}
		if env.Kind == envelope.Request {
			b.open++
		}
		ms = append(ms, m)
	}
	for _, m := range ms {
		c.enqueue(m, b)
	}
	if b.open == 0 && len(b.answers) > 0 {
		c.writeBatch(b)
	}
}

func (c *conn) writeBatch(b *batch) error {
	data, err := json.Marshal(b.answers)
	if err != nil {
		return err
	}
	return c.writeLine(data)
}
