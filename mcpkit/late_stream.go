package mcpkit

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// streamWait is what a server has to say whether it has a stream for what it tells
// by itself, before the session begins without an answer. Some say nothing before
// they have something to tell, and the SDK waits for them as long as they like.
const streamWait = 250 * time.Millisecond

// openStream asks for the stream of a session. If there is no answer in time it is
// an event stream that is silent until the server has one.
func openStream(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	s := &lateStream{ctx: ctx, cancel: cancel, response: make(chan lateResponse, 1)}
	go func() { // ends with ctx, which Close and the session's end cancel
		res, err := next.RoundTrip(req.WithContext(ctx))
		s.response <- lateResponse{res, err}
	}()
	timer := time.NewTimer(streamWait)
	defer timer.Stop()
	select {
	case h := <-s.response:
		if h.err != nil {
			cancel()
			return nil, h.err
		}
		s.body = h.res.Body
		h.res.Body = s
		return h.res, nil
	case <-timer.C:
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"text/event-stream"}}, ContentLength: -1, Body: s, Request: req,
	}, nil
}

type lateResponse struct {
	res *http.Response
	err error
}

// A lateStream is the body of an answer that may not be there yet.
type lateStream struct {
	ctx      context.Context // of the request
	cancel   context.CancelFunc
	response chan lateResponse

	mu     sync.Mutex
	body   io.ReadCloser // guarded by mu: nil until it is there
	closed bool          // guarded by mu
}

// Read implements [io.Reader]. An answer that is late and no event stream is
// silence: the session does not need one.
func (s *lateStream) Read(p []byte) (int, error) {
	s.mu.Lock()
	body := s.body
	s.mu.Unlock()
	if body != nil {
		return body.Read(p)
	}
	select {
	case h := <-s.response:
		if h.err == nil {
			if h.res.StatusCode == http.StatusOK && mediaType(h.res) == "text/event-stream" && s.setBody(h.res.Body) {
				return s.Read(p)
			}
			h.res.Body.Close()
		}
		<-s.ctx.Done()
	case <-s.ctx.Done():
	}
	return 0, context.Cause(s.ctx)
}

func (s *lateStream) setBody(body io.ReadCloser) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.body = body
	return true
}

// Close implements [io.Closer].
func (s *lateStream) Close() error {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.body != nil {
		return s.body.Close()
	}
	select {
	case h := <-s.response:
		if h.err == nil {
			return h.res.Body.Close()
		}
	default: // its connection ends with ctx
	}
	return nil
}
