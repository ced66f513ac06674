//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// wire is a hand-written HTTP connection, for clients that no library provides.
type wire struct {
	*net.TCPConn
	host, path string
}

// dial connects to a server's endpoint. The connection ends with ctx.
func dial(ctx context.Context, endpoint string) (*wire, error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", at.Host)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { c.Close() })
	return &wire{c.(*net.TCPConn), at.Host, at.Path}, nil
}

// request returns the text of an HTTP request.
func (w *wire) request(method string, header http.Header, body []byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, w.path, w.host)
	for name, values := range header {
		fmt.Fprintf(&b, "%s: %s\r\n", name, strings.Join(values, ", "))
	}
	if body != nil {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + string(body)
}

// writeSlowly sends text in small pieces.
func (w *wire) writeSlowly(ctx context.Context, text string, pause time.Duration) error {
	for piece := range slices.Chunk([]byte(text), 8) {
		if _, err := w.Write(piece); err != nil {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// readSlowly reads small pieces with pauses.
func (w *wire) readSlowly(ctx context.Context, pause time.Duration) error {
	for {
		if _, err := w.Read(make([]byte, 16)); err != nil {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// reset closes the connection with a TCP reset.
func (w *wire) reset() {
	w.SetLinger(0)
	w.Close()
}

// listen opens the stream of a session and reads it until the connection ends.
func (w *wire) listen(header http.Header) error {
	header = header.Clone()
	header.Set("Accept", "text/event-stream")
	header.Del("Content-Type")
	if _, err := io.WriteString(w, w.request(http.MethodGet, header, nil)); err != nil {
		return err
	}
	head := make([]byte, 12)
	if _, err := io.ReadFull(w, head); err != nil {
		return err
	}
	if got := string(head); got != "HTTP/1.1 200" {
		return fmt.Errorf("open a stream: %s", got)
	}
	return nil
}
