package peek

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// clientHello returns the first flight of a real client.
func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		_ = tls.Client(client, config).Handshake() // it fails when the pipe is closed
		client.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// split cuts the message in a record into records of n bytes.
func split(record []byte, n int) (out []byte) {
	for body := record[5:]; len(body) > 0; {
		part := body[:min(n, len(body))]
		out = append(out, record[0], record[1], record[2], byte(len(part)>>8), byte(len(part)))
		out, body = append(out, part...), body[len(part):]
	}
	return out
}

// slowConn delivers its bytes in pieces, and then waits for the deadline.
type slowConn struct {
	net.Conn
	rest  []byte
	piece int
}

func (c *slowConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p[:min(len(p), c.piece)], c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func peekBytes(t testing.TB, in []byte, piece int, wait time.Duration) (Seen, *Conn, error) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	if err := near.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	return Peek(&slowConn{Conn: near, rest: in, piece: piece})
}

func TestPeek(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "Example.org", NextProtos: []string{"h2", "http/1.1"}})
	noName := clientHello(t, &tls.Config{InsecureSkipVerify: true})
	long := clientHello(t, &tls.Config{ServerName: "example.org", NextProtos: slicesOf(strings.Repeat("x", 200), 100)})
	for _, tt := range []struct {
		name string
		in   []byte
		want Seen
		err  string
	}{
		{"TLS", hello, Seen{TLS, "Example.org"}, ""},
		{"TLS in records of 7 bytes", split(hello, 7), Seen{TLS, "Example.org"}, ""},
		{"TLS without a name", noName, Seen{TLS, ""}, ""},
		{"TLS with more bytes", append(bytes.Clone(hello), "early data"...), Seen{TLS, "Example.org"}, ""},
		{"too long a ClientHello", long, Seen{TLS, ""}, "longer than"},
		{"no ClientHello", []byte("\x16\x03\x01\x00\x04\x02\x00\x00\x00"), Seen{TLS, ""}, "ClientHello"},
		{"an empty handshake", append([]byte{0x16, 3, 1, 0, 0}, bytes.Repeat([]byte{0x16, 3, 1, 0, 0}, 40)...), Seen{TLS, ""}, "ClientHello"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), Seen{Protocol: HTTP}, ""},
		{"WebDAV", []byte("UPDATEREDIRECTREF /"), Seen{Protocol: HTTP}, ""},
		{"HTTP/2", []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Seen{}, ""},
		{"SSH", []byte("SSH-2.0-x\r\n"), Seen{}, ""},
		{"a space", []byte(" GET /"), Seen{}, ""},
		{"a long word", []byte(strings.Repeat("A", 30)), Seen{}, ""},
		{"lower case", []byte("get / HTTP/1.1\r\n"), Seen{}, ""},
		{"PostgreSQL", []byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"), Seen{}, ""},
	} {
		for _, piece := range []int{1, 3, 1 << 20} {
			seen, c, err := peekBytes(t, bytes.Clone(tt.in), piece, 5*time.Second)
			if seen != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s, %d bytes at once: got %+v, %v", tt.name, piece, seen, err)
				continue
			}
			if err != nil {
				continue
			}
			again := make([]byte, len(tt.in))
			if _, err := io.ReadFull(c, again); err != nil || !bytes.Equal(again, tt.in) {
				t.Errorf("%s, %d bytes at once: the connection delivers %q, %v", tt.name, piece, again, err)
			}
		}
	}
}

func slicesOf(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}

// TestPeek_TwoNames: a ClientHello with two server names, of which programs and servers
// could choose different ones, is an error.
func TestPeek_TwoNames(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "aaaaaaaaaaaaaaa.example.org"}) // long enough for two
	i := bytes.Index(hello, []byte("aaaaaaaaaaaaaaa.example.org"))
	// Entries: type 0, length, name.
	copy(hello[i-2:], "\x00\x08good.org\x00\x00\x10bad.example.orgx")
	hello = bytes.Clone(hello[:len(hello):len(hello)])
	if seen, _, err := peekBytes(t, hello, 1<<20, 5*time.Second); err == nil {
		t.Errorf("got %+v, want an error", seen)
	}
}

func TestPeek_SilenceEndsAtTheDeadline(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "example.org"})
	for _, in := range [][]byte{nil, hello[:1], hello[:40], []byte("GE")} {
		if _, _, err := peekBytes(t, bytes.Clone(in), 1<<20, 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes: got %v, want the deadline", len(in), err)
		}
	}
}

func FuzzPeek(f *testing.F) {
	hello := clientHello(f, &tls.Config{ServerName: "example.org"})
	f.Add(hello)
	f.Add(split(hello, 10))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		near, far := net.Pipe()
		far.Close() // the input ends
		defer near.Close()
		seen, c, err := Peek(&slowConn{Conn: near, rest: bytes.Clone(in), piece: 1 << 20})
		if err != nil {
			return
		}
		if seen.Protocol == TLS && strings.HasSuffix(seen.ServerName, ".") {
			t.Errorf("server name %q", seen.ServerName)
		}
		again := make([]byte, len(in))
		if _, err := io.ReadFull(c, again); err != nil || !bytes.Equal(again, in) {
			t.Errorf("the connection delivers %q, %v, want %q", again, err, in)
		}
	})
}
