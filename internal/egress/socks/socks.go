// Package socks is the server's side of SOCKS5 (RFC 1928) without authentication, for
// CONNECT only.
package socks

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// A Reply is the answer to a request.
type Reply byte

const (
	Succeeded       Reply = 0
	Failed          Reply = 1
	NotAllowed      Reply = 2
	HostUnreachable Reply = 4
	Refused         Reply = 5
	NoCommand       Reply = 7
	NoAddressType   Reply = 8
)

const (
	version  = 5
	noAuth   = 0
	noMethod = 0xff
	connect  = 1
	typeIPv4 = 1
	typeName = 3
	typeIPv6 = 4
)

// Accept reads the greeting and a request of a client, and answers the greeting. host is
// as the client wrote it, without check, or an address. It reads no byte behind the
// request. After an error it has answered the client as far as the protocol allows. The
// caller sets a deadline.
func Accept(c io.ReadWriter) (host string, port uint16, err error) {
	var b [257]byte
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return "", 0, fmt.Errorf("read the greeting: %w", err)
	}
	if b[0] != version {
		return "", 0, fmt.Errorf("SOCKS version %d; only version 5 is supported", b[0])
	}
	methods := b[:b[1]]
	if _, err := io.ReadFull(c, methods); err != nil {
		return "", 0, fmt.Errorf("read the greeting: %w", err)
	}
	if !strings.Contains(string(methods), "\x00") {
		_, _ = c.Write([]byte{version, noMethod}) // the client is about to be disconnected
		return "", 0, errors.New("the client insists on authentication")
	}
	if _, err := c.Write([]byte{version, noAuth}); err != nil {
		return "", 0, fmt.Errorf("answer the greeting: %w", err)
	}
	if _, err := io.ReadFull(c, b[:4]); err != nil {
		return "", 0, fmt.Errorf("read the request: %w", err)
	}
	if b[0] != version || b[2] != 0 {
		return "", 0, refuse(c, Failed, "the request is malformed")
	}
	command := b[1]
	switch kind := b[3]; kind {
	case typeIPv4, typeIPv6:
		raw := b[:4]
		if kind == typeIPv6 {
			raw = b[:16]
		}
		if _, err := io.ReadFull(c, raw); err != nil {
			return "", 0, fmt.Errorf("read the request: %w", err)
		}
		addr, _ := netip.AddrFromSlice(raw)
		host = addr.String()
	case typeName:
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return "", 0, fmt.Errorf("read the request: %w", err)
		}
		name := b[1 : 1+int(b[0])]
		if _, err := io.ReadFull(c, name); err != nil {
			return "", 0, fmt.Errorf("read the request: %w", err)
		}
		host = string(name)
	default:
		return "", 0, refuse(c, NoAddressType, fmt.Sprintf("address type %d", kind))
	}
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return "", 0, fmt.Errorf("read the request: %w", err)
	}
	port = uint16(b[0])<<8 | uint16(b[1])
	if command != connect {
		return "", 0, refuse(c, NoCommand, fmt.Sprintf("command %d; only CONNECT is supported", command))
	}
	if host == "" || port == 0 || strings.Contains(host, "\x00") {
		return "", 0, refuse(c, NotAllowed, "the request names no host or port")
	}
	return host, port, nil
}

func refuse(c io.Writer, r Reply, why string) error {
	_ = Answer(c, r) // the client is about to be disconnected
	return errors.New(why)
}

// Answer answers the request. The address of the answer is empty: clients ignore it.
func Answer(c io.Writer, r Reply) error {
	if _, err := c.Write([]byte{version, byte(r), 0, typeIPv4, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("answer the request: %w", err)
	}
	return nil
}
