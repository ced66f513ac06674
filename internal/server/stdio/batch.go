package stdio

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/internal/server/envelope"
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
	if version >= revision.NoBatch {
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
	var ms []incoming
	for _, element := range elements {
		env, m, refused := parse(element)
		if refused != nil {
			b.answers = append(b.answers, envelope.ErrorReply(env.ID, refused))
			continue
		}
		if env.Kind == envelope.Request {
			b.open++
		}
		ms = append(ms, incoming{m, modernMessage(&env)})
	}
	for _, m := range ms {
		c.enqueue(m.m, m.modern, b)
	}
	if b.open == 0 && len(b.answers) > 0 {
		c.writeBatch(b)
	}
}

// answerBatch adds an answer to a batch, unless data is nil, and sends the batch when it
// is complete and not empty.
func (c *conn) answerBatch(b *batch, data []byte) error {
	c.mu.Lock()
	if data != nil {
		b.answers = append(b.answers, data)
	}
	b.open--
	complete := b.open == 0 && len(b.answers) > 0
	c.mu.Unlock()
	if !complete {
		return nil
	}
	return c.writeBatch(b)
}

func (c *conn) writeBatch(b *batch) error {
	data, err := json.Marshal(b.answers)
	if err != nil {
		return err
	}
	return c.writeLine(data)
}
