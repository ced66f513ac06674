package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/coder/websocket"
)

// The channels of the protocol: the first byte of each message.
const (
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelError  = 3
)

const (
	// protocolV5 is the protocol of commands since Kubernetes 1.29.
	protocolV5 = "v5.channel.k8s.io"
	// protocolV4 is that of earlier versions, the same but for the end of the input.
	protocolV4 = "v4.channel.k8s.io"
	// maxMessage bounds one message of the cluster.
	maxMessage = 4 << 20
	// maxInput bounds one message to the cluster.
	maxInput = 32<<10 - 1
	// maxStderr bounds the kept part of a command's standard error.
	maxStderr = 4 << 10
)

// Command is a command that runs in a container: Read reads its standard output, Write
// writes to its standard input. Read and Write may be called concurrently, and Close at
// any time.
type Command struct {
	ws *websocket.Conn

	rest   io.Reader // of the current message of the output; belongs to Read
	stderr bytes.Buffer

	writing sync.Mutex
	message []byte // guarded by writing
}

// Exec starts a command in a container. ctx bounds the start only.
func (c *Client) Exec(ctx context.Context, namespace, pod, container string, argv ...string) (*Command, error) {
	u := c.url(pods(namespace, pod, "exec"), url.Values{
		"container": {container}, "command": argv, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"},
	})
	op := "exec in Pod " + pod
	req := &http.Request{Header: http.Header{"User-Agent": {"glovebox"}}}
	if err := c.cluster.Auth.Apply(req.WithContext(ctx)); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	// The connection outlives ctx, whatever the transport does with its context.
	dialling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	ws, res, err := websocket.Dial(dialling, u.String(), &websocket.DialOptions{
		HTTPClient: c.upgrade, HTTPHeader: req.Header, Subprotocols: []string{protocolV5, protocolV4},
	})
	if !stop() && err == nil {
		ws.CloseNow()
		return nil, context.Cause(ctx)
	}
	if err != nil {
		cancel(nil)
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if res != nil && res.StatusCode != http.StatusSwitchingProtocols && res.Body != nil {
			defer res.Body.Close()
			return nil, c.explain(newStatusError(op, res.StatusCode, res.Body))
		}
		return nil, fmt.Errorf("%s: %w", op, unwrapURL(err))
	}
	if p := ws.Subprotocol(); p != protocolV5 && p != protocolV4 {
		ws.CloseNow()
		return nil, fmt.Errorf("%s: the cluster chose no protocol that this program knows; it needs Kubernetes 1.29 or later", op)
	}
	ws.SetReadLimit(maxMessage)
	return &Command{ws: ws, message: make([]byte, 0, maxInput+1)}, nil
}

// Read reads the command's output. At the end of the command it returns io.EOF or, if
// the command failed, an error.
func (c *Command) Read(p []byte) (int, error) {
	for {
		if c.rest != nil {
			n, err := c.rest.Read(p)
			if errors.Is(err, io.EOF) {
				c.rest, err = nil, nil
			}
			if n > 0 || err != nil || len(p) == 0 {
				return n, err
			}
		}
		if err := c.next(); err != nil {
			return 0, err
		}
	}
}

// next reads the head of the next message, and all of it unless it is output.
func (c *Command) next() error {
	_, r, err := c.ws.Reader(context.Background()) // ends with Close
	if err != nil {
		var closed websocket.CloseError
		if errors.As(err, &closed) && closed.Code == websocket.StatusNormalClosure {
			return io.EOF
		}
		return fmt.Errorf("the connection to the cluster broke: %w", err)
	}
	var channel [1]byte
	if _, err := io.ReadFull(r, channel[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // an empty message
		}
		return err
	}
	switch channel[0] {
	case channelStdout:
		c.rest = r
	case channelStderr:
		_, err = io.CopyN(&c.stderr, r, int64(maxStderr-c.stderr.Len()))
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return err
	case channelError:
		b, err := io.ReadAll(io.LimitReader(r, maxStatus))
		if err != nil {
			return err
		}
		return c.ended(b)
	default:
		_, err = io.Copy(io.Discard, r)
		return err
	}
	return nil
}

// ended makes an error of the last message.
func (c *Command) ended(b []byte) error {
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("the command has ended with %q", line(string(b), 200))
	}
	if s.Status == "Success" {
		return io.EOF
	}
	return fmt.Errorf("the command has failed: %s: %s", line(s.Message, 500), line(c.stderr.String(), 500))
}

// Write writes to the command's input.
func (c *Command) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n := 0
	for n < len(p) {
		part := p[n:min(len(p), n+maxInput)]
		c.message = append(append(c.message[:0], channelStdin), part...)
		if err := c.ws.Write(context.Background(), websocket.MessageBinary, c.message); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Close ends the connection, and the cluster the command's input and output. Pending
// calls fail. It may be called repeatedly.
func (c *Command) Close() error {
	c.ws.CloseNow() // fails if it was closed before, or broke
	return nil
}
