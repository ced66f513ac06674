package podlink

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
)

const (
	magic   = "GBXL"
	version = 1
)

// SessionID identifies a session. It is not a secret.
type SessionID [16]byte

// NewSessionID returns a random id.
func NewSessionID() (id SessionID) {
	rand.Read(id[:]) // never fails
	return id
}

// Hello is the first message of a connection.
type Hello struct {
	Session  SessionID
	Resume   bool   // continue the session; otherwise begin it and end any other
	Received uint64 // bytes that the sender has received in the session
}

const helloSize = len(magic) + 2 + 16 + 8

// Write sends the message.
func (h Hello) Write(w io.Writer) error {
	b := append(make([]byte, 0, helloSize), magic...)
	b = append(b, version, 0)
	if h.Resume {
		b[len(b)-1] = 1
	}
	b = append(b, h.Session[:]...)
	_, err := w.Write(binary.BigEndian.AppendUint64(b, h.Received))
	return err
}

// ReadHello reads the first message of a connection.
func ReadHello(r io.Reader) (Hello, error) {
	var b [helloSize]byte
	var h Hello
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	if err := checkMagic(b[:]); err != nil {
		return h, err
	}
	h.Resume = b[5] == 1
	copy(h.Session[:], b[6:])
	h.Received = binary.BigEndian.Uint64(b[22:])
	return h, nil
}

// Reply is the answer to a Hello.
type Reply struct {
	Superseded bool   // another session has begun; the connection ends
	Received   uint64 // bytes that the sender has received in the session
}

const replySize = len(magic) + 2 + 8

// Write sends the message.
func (r Reply) Write(w io.Writer) error {
	b := append(make([]byte, 0, replySize), magic...)
	b = append(b, version, 0)
	if r.Superseded {
		b[len(b)-1] = 1
	}
	_, err := w.Write(binary.BigEndian.AppendUint64(b, r.Received))
	return err
}

// ReadReply reads the answer to a Hello. It returns ErrSuperseded if the session has
// been superseded.
func ReadReply(r io.Reader) (Reply, error) {
	var b [replySize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Reply{}, err
	}
	if err := checkMagic(b[:]); err != nil {
		return Reply{}, err
	}
	p := Reply{Superseded: b[5] == 1, Received: binary.BigEndian.Uint64(b[6:])}
	if p.Superseded {
		return p, ErrSuperseded
	}
	return p, nil
}

func checkMagic(b []byte) error {
	if string(b[:4]) != magic {
		return fmt.Errorf("%w: the connection begins with %q", ErrFrame, b[:4])
	}
	if b[4] != version || b[5] > 1 {
		return fmt.Errorf("%w: version %d with flag %d, want version %d", ErrFrame, b[4], b[5], version)
	}
	return nil
}
