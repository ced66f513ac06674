package mcpkit

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// streamTimeout bounds the wait for the response to a GET that opens a stream. Some
// servers respond only with the first event, and the SDK would wait for that.
const streamTimeout = 250 * time.Millisecond

// openStream opens the stream of a session. If there is no response in time, it returns
// an event stream that is silent until the server responds.
func openStream(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	s := &lateStream{ctx: ctx, cancel: cancel, response: make(chan lateResponse, 1)}
	go func() { // ends with ctx, which Close and the end of the session cancel
		res, err := next.RoundTrip(req.WithContext(ctx))
		s.response <- lateResponse{res, err}
	}()
	timer := time.NewTimer(streamTimeout)
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

// A lateStream is the body of a response that may arrive later.
type lateStream struct {
	ctx      context.Context // of the request
	cancel   context.CancelFunc
	response chan lateResponse

	mu     sync.Mutex
	body   io.ReadCloser // guarded by mu: nil until the response arrives
	closed bool          // guarded by mu
}

// Read implements [io.Reader]. A late response that is not an event stream counts as
// silence, because the session does not need the stream.
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
	default: // the request ends with ctx
	}
	return nil
}
