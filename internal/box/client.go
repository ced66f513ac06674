package box

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// A Client identifies one caller over time: an MCP session, or the process at the
// other end of standard input and output. It owns the id of its default context.
// The zero value is ready for use; it must not be copied. All methods may be
// called concurrently.
type Client struct {
	once sync.Once
	id   string // of the default context; set by once
}

// ContextID returns the id of the client's default context, which is the same for
// the life of the client, whether or not the context has been made yet.
func (c *Client) ContextID() string {
	c.once.Do(func() { c.id = newContextID() })
	return c.id
}

func newContextID() string { return "ctx-" + uuid.NewString() }

// DefaultContext returns the default context of a client, and makes it if it is
// not there. No other client gets it, unless it has the id. A nil client stands
// for a caller without an identity: each call makes a new context.
//
// Errors: CodeInvalid if the configuration allows no default context, else as
// Session.
func (m *Manager) DefaultContext(ctx context.Context, owner Owner, client *Client) (*Box, Hold, error) {
	const op = "find context"
	if !m.cfg().DefaultContext {
		return nil, Hold{}, &Error{
			Code: CodeInvalid, Op: op, Msg: "Missing context_id: this server has no default context",
			Hint: "Create a context first and pass its id.", Context: map[string]string{"field": "context_id"},
		}
	}
	id := newContextID()
	if client != nil {
		id = client.ContextID()
	}
	k := key{owner, KindContext, id}
	sp := spec{
		key: k, name: DefaultContextID + "-" + id[len("ctx-"):][:8], desc: "Made for code without a context_id",
		interpreter: InterpreterPython, flavor: m.cfg().DefaultFlavor,
	}
	if client == nil {
		return m.create(ctx, op, sp)
	}
	b, hold, err := m.acquire(ctx, search{op: op, key: k, make: func() spec { return sp }})
	if err != nil {
		return nil, Hold{}, err
	}
	return b.awaitReporting(ctx, op, hold)
}
