package socks

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

type stream struct {
	io.Reader
	bytes.Buffer
}

func (s *stream) Read(p []byte) (int, error) { return s.Reader.Read(p) }

func name(s string) string { return string([]byte{5, 1, 0, 3, byte(len(s))}) + s }

func TestAccept(t *testing.T) {
	const greeting = "\x05\x01\x00"
	for _, tt := range []struct {
		in, host string
		port     uint16
		out      string
		err      string
	}{
		{greeting + name("example.org") + "\x01\xbb", "example.org", 443, "\x05\x00", ""},
		{"\x05\x02\x02\x00" + name("Example.org.") + "\x00\x50", "Example.org.", 80, "\x05\x00", ""},
		{greeting + "\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x16", "127.0.0.1", 22, "\x05\x00", ""},
		{greeting + "\x05\x01\x00\x04" + strings.Repeat("\x00", 15) + "\x01\x00\x16", "::1", 22, "\x05\x00", ""},
		{greeting + name(strings.Repeat("a", 255)) + "\x00\x50", strings.Repeat("a", 255), 80, "\x05\x00", ""},
		{greeting + name("a\x00b") + "\x00\x50", "", 0, "\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00", "names no host"},
		{greeting + name("") + "\x00\x50", "", 0, "\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00", "names no host"},
		{greeting + name("example.org") + "\x00\x00", "", 0, "\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00", "names no host"},
		{greeting + "\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x16", "", 0, "\x05\x00\x05\x07\x00\x01\x00\x00\x00\x00\x00\x00", "command 2"},
		{greeting + "\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x16", "", 0, "\x05\x00\x05\x07\x00\x01\x00\x00\x00\x00\x00\x00", "command 3"},
		{greeting + "\x05\x01\x00\x05", "", 0, "\x05\x00\x05\x08\x00\x01\x00\x00\x00\x00\x00\x00", "address type 5"},
		{"\x05\x01\x02", "", 0, "\x05\xff", "authentication"},
		{"\x05\x00", "", 0, "\x05\xff", "authentication"},
		{"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", "", 0, "", "version 4"},
		{"GET / HTTP/1.1\r\n", "", 0, "", "version 71"},
		{greeting + "\x05\x01\x00\x03\x0bexam", "", 0, "\x05\x00", "unexpected EOF"},
	} {
		s := &stream{Reader: strings.NewReader(tt.in + "rest")}
		if tt.err == "unexpected EOF" {
			s.Reader = strings.NewReader(tt.in)
		}
		host, port, err := Accept(s)
		if host != tt.host || port != tt.port || s.String() != tt.out || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: got %q %d %q, %v", tt.in, host, port, s.String(), err)
		}
		if rest, _ := io.ReadAll(s.Reader); tt.err == "" && string(rest) != "rest" {
			t.Errorf("%q: left %q", tt.in, rest)
		}
	}
}

func FuzzAccept(f *testing.F) {
	f.Add([]byte("\x05\x01\x00" + name("example.org") + "\x01\xbb"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x04" + strings.Repeat("\x00", 18)))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &stream{Reader: bytes.NewReader(in)}
		host, port, err := Accept(s)
		if err == nil && (host == "" || port == 0 || len(host) > 255 || strings.Contains(host, "\x00")) {
			t.Errorf("%q: got %q %d", in, host, port)
		}
		if s.Len() > 12 {
			t.Errorf("%q: %d bytes of answers", in, s.Len())
		}
	})
}
