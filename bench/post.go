//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// poster sends one request repeatedly over its own connection, without a client library.
// It is not safe for concurrent use.
type poster struct {
	client *http.Client
	url    string
	header http.Header
	body   []byte
	want   []byte // what every answer must hold
}

// poster returns a poster that calls a tool without a handshake.
func (s *server) poster(tool string, args map[string]any, want string) (*poster, error) {
	body, err := toolCall(tool, args, nil)
	if err != nil {
		return nil, err
	}
	return newPoster(s.url, nil, body, want), nil
}

// newPoster returns a poster without a connection.
func newPoster(url string, header map[string]string, body []byte, want string) *poster {
	p := &poster{
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}, Timeout: callLimit},
		url:    url, header: http.Header{"Content-Type": {"application/json"}}, body: body, want: []byte(want),
	}
	for k, v := range header {
		p.header.Set(k, v)
	}
	return p
}

// post makes one call and returns its duration in milliseconds.
func (p *poster) post(ctx context.Context) (float64, error) {
	begun := time.Now()
	_, answer, err := p.send(ctx, http.MethodPost, p.body)
	took := ms(time.Since(begun))
	if err != nil {
		return 0, err
	}
	if !bytes.Contains(answer, p.want) {
		return 0, fmt.Errorf("post to %s: %.600s", p.url, answer)
	}
	return took, nil
}

// send makes one request and reads the whole answer. It returns an error unless the call
// succeeded.
func (p *poster) send(ctx context.Context, method string, body []byte) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header = p.header
	res, err := p.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, nil, err
	}
	if res.StatusCode >= 300 {
		return nil, nil, fmt.Errorf("%s to %s: %s: %.600s", method, p.url, res.Status, answer)
	}
	return res.Header, answer, nil
}

// end ends the session, if any, and closes the connection.
func (p *poster) end(ctx context.Context) {
	if p.header.Get("Mcp-Session-Id") != "" {
		_, _, _ = p.send(ctx, http.MethodDelete, nil) // what is measured is over
	}
	p.close()
}

func (p *poster) close() { p.client.CloseIdleConnections() }

// Protocol revisions: the newest with sessions and the first without.
const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// both is the Accept header of Streamable HTTP clients.
const both = "application/json, text/event-stream"

// toolCall returns the body of a call. meta may be nil.
func toolCall(tool string, args, meta map[string]any) ([]byte, error) {
	params := map[string]any{"name": tool, "arguments": args}
	if meta != nil {
		params["_meta"] = meta
	}
	return json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
}

// bareCaller is a poster for older revisions without a handshake.
func bareCaller(_ context.Context, url, tool string, args map[string]any, want string) (*poster, error) {
	body, err := toolCall(tool, args, nil)
	if err != nil {
		return nil, err
	}
	return newPoster(url, map[string]string{"Accept": both, "Mcp-Protocol-Version": legacy}, body, want), nil
}

// modernCaller is a poster for the first revision without sessions.
func modernCaller(_ context.Context, url, tool string, args map[string]any, want string) (*poster, error) {
	body, err := toolCall(tool, args, map[string]any{
		"io.modelcontextprotocol/protocolVersion":    modern,
		"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "bench", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{},
	})
	if err != nil {
		return nil, err
	}
	return newPoster(url, map[string]string{
		"Accept": both, "Mcp-Protocol-Version": modern, "Mcp-Method": "tools/call", "Mcp-Name": tool,
	}, body, want), nil
}

// sessionCaller is a poster with its own MCP session.
func sessionCaller(ctx context.Context, url, tool string, args map[string]any, want string) (*poster, error) {
	body, err := toolCall(tool, args, nil)
	if err != nil {
		return nil, err
	}
	p := newPoster(url, map[string]string{"Accept": both}, body, want)
	if err := p.handshake(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// handshake opens a session for all later requests.
func (p *poster) handshake(ctx context.Context) error {
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + legacy + `","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
	header, answer, err := p.send(ctx, http.MethodPost, []byte(hello))
	if err != nil {
		return err
	}
	id := header.Get("Mcp-Session-Id")
	if id == "" {
		return fmt.Errorf("initialize at %s: no session: %.600s", p.url, answer)
	}
	p.header.Set("Mcp-Session-Id", id)
	p.header.Set("Mcp-Protocol-Version", legacy)
	_, _, err = p.send(ctx, http.MethodPost, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return err
}
