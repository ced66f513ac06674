//go:build linux

package attack

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// smuggling sends requests whose end a proxy may see elsewhere, with a second request in
// what may be the body of the first. The server refuses the first or treats both as one:
// it never answers twice.
func smuggling(ctx context.Context, t *trial) error {
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	hidden := "GET /health HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n"
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(list), list)
	length, whole := fmt.Sprintf("Content-Length: %d\r\n", len(list)), fmt.Sprintf("Content-Length: %d\r\n", len(chunked)+len(hidden))
	const coding = "Transfer-Encoding: chunked\r\n"
	var wg sync.WaitGroup
	for name, request := range map[string]struct{ version, headers, body string }{
		"a length and chunks":              {"1.1", whole + coding, chunked},
		"chunks and a length of zero":      {"1.1", coding + "Content-Length: 0\r\n", chunked},
		"chunks only":                      {"1.1", coding, chunked},
		"chunks in HTTP/1.0":               {"1.0", "Connection: keep-alive\r\n" + coding + length, chunked},
		"two lengths":                      {"1.1", "Content-Length: 4\r\n" + length, list},
		"a list of lengths":                {"1.1", fmt.Sprintf("Content-Length: %d, %[1]d\r\n", len(list)), list},
		"a length with a sign":             {"1.1", fmt.Sprintf("Content-Length: +%d\r\n", len(list)), list},
		"a hexadecimal length":             {"1.1", fmt.Sprintf("Content-Length: 0x%x\r\n", len(list)), list},
		"a negative length":                {"1.1", "Content-Length: -1\r\n", list},
		"a huge length":                    {"1.1", "Content-Length: 18446744073709551617\r\n", list},
		"a space after a name":             {"1.1", "Content-Length : 0\r\n", list},
		"a line feed alone":                {"1.1", "X: a\n" + length + "Content-Length: 0\r\n", list},
		"a carriage return alone":          {"1.1", "X: a\rContent-Length: 0\r\n", list},
		"a NUL":                            {"1.1", "X: a\x00\r\nContent-Length: 0\r\n", list},
		"a folded line":                    {"1.1", "Transfer-Encoding:\r\n chunked\r\n" + whole, chunked},
		"another coding":                   {"1.1", "Transfer-Encoding: xchunked\r\n", chunked},
		"two codings":                      {"1.1", "Transfer-Encoding: chunked, identity\r\n", chunked},
		"a coding twice":                   {"1.1", coding + coding, chunked},
		"a coding after a tab":             {"1.1", "Transfer-Encoding: \vchunked\r\n" + length, list},
		"a space after a coding's name":    {"1.1", "Transfer-Encoding : chunked\r\n" + length, list},
		"a chunk that ends in a line feed": {"1.1", coding, fmt.Sprintf("%x;a\n%s\r\n0\r\n\r\n", len(list), list)},
		"a chunk of too many digits":       {"1.1", coding, "fffffffffffffffff\r\n" + list},
		"a chunk with a prefix":            {"1.1", coding, fmt.Sprintf("0x%x\r\n%s\r\n0\r\n\r\n", len(list), list)},
		"a length in a trailer":            {"1.1", coding, fmt.Sprintf("%x\r\n%s\r\n0\r\nContent-Length: 9\r\n\r\n", len(list), list)},
		"two hosts":                        {"1.1", "Host: evil.example\r\n" + length, list},
	} {
		text := "POST /mcp HTTP/" + request.version + "\r\nHost: " + s.addr + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" + request.headers + "\r\n" + request.body
		wg.Go(func() {
			got, ended, err := s.raw(ctx, text+hidden, 3*time.Second)
			answers := strings.Count(got, "HTTP/1.1 ") + strings.Count(got, "HTTP/1.0 ")
			t.check(answers <= 1, "a request with %s is answered %d times: %s", name, answers, printable(got))
			t.check(ended && err == nil, "a request with %s leaves the connection open (%v)", name, err)
		})
	}
	wg.Wait()
	return nil
}
