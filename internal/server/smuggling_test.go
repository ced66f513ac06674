package server

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A proxy and this server may see the end of such requests in different places; what
// follows is not taken for a request of another client.
func TestSmuggling(t *testing.T) {
	_, url := serve(t, nil)
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(ping), ping)
	next := "GET /health HTTP/1.1\r\nHost: " + address + "\r\n\r\n"
	for name, c := range map[string]struct {
		version, headers, body string
		answers                int
	}{
		"chunks":              {"1.1", "Transfer-Encoding: chunked\r\n", chunked, 1},
		"length and chunks":   {"1.1", fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n", len(chunked)+len(next)), chunked, 1},
		"chunks and length":   {"1.1", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", chunked, 1},
		"folded chunks":       {"1.1", "Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n", chunked, 1},
		"chunks in HTTP/1.0":  {"1.0", fmt.Sprintf("Connection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n", len(ping)), chunked, 1},
		"two lengths":         {"1.1", fmt.Sprintf("Content-Length: 4\r\nContent-Length: %d\r\n", len(ping)), ping, 1},
		"an honest request":   {"1.1", fmt.Sprintf("Content-Length: %d\r\n", len(ping)), ping, 2}, // connections are kept for these
		"the same length too": {"1.1", fmt.Sprintf("Content-Length: %d\r\nContent-Length: %[1]d\r\n", len(ping)), ping, 2},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			request := "POST /mcp HTTP/" + c.version + "\r\nHost: " + address + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" + c.headers + "\r\n" + c.body
			if c.answers == 2 {
				request += strings.Replace(next, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)
			} else {
				request += next
			}
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if n := strings.Count(string(got), "HTTP/1."); n != c.answers {
				t.Errorf("%d answers, want %d; the connection ended with %v:\n%s", n, c.answers, err, got)
			}
			if c.answers == 1 && !strings.Contains(string(got), "Connection: close") {
				t.Errorf("the answer does not end the connection:\n%s", got)
			}
		})
	}
}
