//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/internal/codemode"
	agentlink "github.com/glovebox-dev/glovebox/internal/guest/client"
	"github.com/glovebox-dev/glovebox/mcpkit"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
)

// badServer is a malicious server over HTTP with the tools read and live, which only
// read. read does what respond says; id is that of the request.
func badServer(respond func(w http.ResponseWriter, id json.RawMessage)) (*mcpjson.Server, func()) {
	url, done := listener(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		if err != nil || json.Unmarshal(b, &req) != nil || len(req.ID) == 0 {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		answer := func(member string) { fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, req.ID, member) }
		switch {
		case req.Method == "initialize":
			answer(`"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"evil","version":"1"}}`)
		case req.Method == "tools/list":
			const rest = `"inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`
			answer(`"result":{"tools":[{"name":"read",` + rest + `,{"name":"live",` + rest + `]}`)
		case req.Method == "tools/call" && req.Params.Name == "read":
			respond(w, req.ID)
		case req.Method == "tools/call":
			answer(`"result":{"content":[{"type":"text","text":"evil"}]}`)
		default:
			answer(`"error":{"code":-32601,"message":"no such method"}`)
		}
	})
	return &mcpjson.Server{Name: "evil", Transport: mcpjson.TransportHTTP, URL: mcpjson.Literal(url)}, done
}

// overHTTP returns a host of runs that call a server over HTTP.
func (t *trial) overHTTP(def *mcpjson.Server) (agentlink.Host, func()) {
	o := mcpkit.Options{Config: &mcpjson.Config{Servers: []*mcpjson.Server{def}}, Outbound: onLoopback}
	if t.cfg.mcp.options != nil {
		t.cfg.mcp.options(&o)
	}
	return t.broker(o, codemode.Budget{})
}

// hugeResult lets a server stream a result of 1 GiB.
func hugeResult(ctx context.Context, t *trial) error {
	const size = 1 << 30
	var sent atomic.Int64
	def, done := badServer(func(w http.ResponseWriter, id json.RawMessage) {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"`, id)
		chunk := bytes.Repeat([]byte("x"), 64<<10)
		for sent.Load() < size {
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				return // the client has had enough
			}
		}
		io.WriteString(w, `"}]}}`)
	})
	defer done()
	host, end := t.overHTTP(def)
	defer end()
	err := t.keepsMemory(func() error {
		_, err := t.calling(ctx, host, "huge", nil)
		return err
	})
	t.check(sent.Load() > 0, "the server was not called")
	t.check(sent.Load() < size/4, "the host received %d MiB", sent.Load()>>20)
	return err
}

// dyingServer lets a server end its connection in the middle of a result.
func dyingServer(ctx context.Context, t *trial) error {
	def, done := badServer(func(w http.ResponseWriter, id json.RawMessage) {
		w.Header().Set("Content-Length", "1000000")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"half`, id)
		panic(http.ErrAbortHandler)
	})
	defer done()
	host, end := t.overHTTP(def)
	defer end()
	_, err := t.calling(ctx, host, "survive", nil)
	return err
}
