package netdoor

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const (
	// requestTime bounds how long a refused program may take to send its request.
	requestTime = 10 * time.Second
	// maxRequest bounds what is read of a request before it is refused.
	maxRequest = 64 << 10
	// maxReason bounds the text in the status line.
	maxReason = 200
)

// presets are the hosts of package indexes that installers ask, and the preset of each, as
// the operator allows it.
var presets = map[string]string{
	"pypi.org": "pypi", "files.pythonhosted.org": "pypi",
	"registry.npmjs.org": "npm", "registry.yarnpkg.com": "npm",
	"proxy.golang.org": "go", "github.com": "github", "huggingface.co": "huggingface",
}

// remedy says what a user can ask the operator for so that a request succeeds, whose head
// is as the program sent it.
func remedy(head []byte) string {
	_, target, _ := bytes.Cut(head[:min(len(head), maxReason)], []byte(" "))
	target, _, _ = bytes.Cut(target, []byte(" "))
	host := strings.TrimPrefix(string(target), "http://")
	if i := strings.IndexAny(host, ":/"); i >= 0 {
		host = host[:i]
	}
	if preset := presets[strings.ToLower(host)]; preset != "" {
		return "; its operator can allow this with --network " + preset + ", and the build of a template with --net " + preset
	}
	return "; its operator can allow hosts with --network, and the build of a template with --net"
}

// refuseHTTP answers a request to the HTTP proxy. The status line carries the text, since
// clients print that of a failed CONNECT, and not the body.
func refuseHTTP(c *net.TCPConn, notice string) {
	c.SetDeadline(time.Now().Add(requestTime))
	var head []byte
	buf := make([]byte, 4<<10)
	for len(head) < maxRequest && !bytes.Contains(head, []byte("\r\n\r\n")) && !bytes.Contains(head, []byte("\n\n")) {
		n, err := c.Read(buf)
		head = append(head, buf[:n]...)
		if err != nil {
			return
		}
	}
	if notice == defaultNotice {
		notice += remedy(head)
	}
	io.WriteString(c, response("403 "+clean(notice, maxReason), notice))
	linger(c)
}

// response returns a complete response with a text as its body.
func response(status, text string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n%s\n", status, len(text)+1, text)
}

// refuseSOCKS answers a request of SOCKS 5 with "not allowed by ruleset". Other versions
// get no answer.
func refuseSOCKS(c *net.TCPConn) {
	c.SetDeadline(time.Now().Add(requestTime))
	b := make([]byte, 2+255)
	if _, err := io.ReadFull(c, b[:2]); err != nil || b[0] != 5 {
		return
	}
	if _, err := io.ReadFull(c, b[:b[1]]); err != nil { // methods
		return
	}
	if _, err := c.Write([]byte{5, 0}); err != nil { // no authentication
		return
	}
	if _, err := io.ReadFull(c, b[:5]); err != nil { // version, command, 0, address type, first byte
		return
	}
	rest := 0
	switch b[3] {
	case 1:
		rest = 3 + 2
	case 3:
		rest = int(b[4]) + 2
	case 4:
		rest = 15 + 2
	}
	if _, err := io.ReadFull(c, b[:rest]); err != nil {
		return
	}
	c.Write([]byte{5, 2, 0, 1, 0, 0, 0, 0, 0, 0})
	linger(c)
}

// clean returns at most n bytes of s, with a space in place of each character that is not
// visible ASCII.
func clean(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, s)
	return s[:min(n, len(s))]
}
