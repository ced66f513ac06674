package mcpkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/revision"
	"github.com/glovebox-dev/glovebox/mcpkit/mcpjson"
	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// dialHTTP connects to an endpoint over Streamable HTTP or the older transport.
func (s *Session) dialHTTP(ctx context.Context, r *mcpjson.Resolved, trust Trust) (*connection, error) {
	policy := s.policy(trust)
	hc := outbound.NewClient(s.def.Name, policy, int64(s.m.opts.Limits.Message))
	if r.Socket != "" {
		hc = outbound.NewSocketClient(s.def.Name, r.Socket, int64(s.m.opts.Limits.Message))
	}
	l := &connState{
		onClose: []func(){hc.CloseIdleConnections}, origins: originsOf(r.URL, r.SSEURL),
		maxValues: s.m.opts.Limits.Values, maxArriving: maxArriving * int64(s.m.opts.Limits.Message),
	}
	if w := s.openTrace(l, r); w != nil {
		hc.Transport = &httpTracer{hc.Transport, w, s.m.opts.Limits.Message}
	}
	hc.Transport = &admissionTransport{hc.Transport, l, &outbound.TooLargeError{Server: s.def.Name, Limit: int64(s.m.opts.Limits.Message)}}
	hc.Transport = &toolListTap{hc.Transport, s.m.opts.Limits.Message, s.readToolList}
	login, err := s.newLogin(r, policy)
	var with *authTransport
	if err == nil && login != nil {
		l.onClose = append(l.onClose, func() { closeLogin(login) })
		with, err = newAuthTransport(hc.Transport, login, r.URL)
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("connect mcp server %q: %w", s.def.Name, l.safe(err))
	}
	if with != nil {
		hc.Transport = with
	}
	h := &headerTransport{server: s.def.Name, next: hc.Transport, headers: r.Headers, origins: l.origins, streams: s.def.Transport == mcpjson.TransportHTTP, subscriptionEnded: func() { s.subscriptionEnded(l) }}
	hc.Transport = h
	client, cs, err := s.dialEndpoint(ctx, r, trust, hc, h, l)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("connect mcp server %q: %w", s.def.Name, l.safe(with.loginError(err)))
	}
	l.post = func(ctx context.Context, method string, message []byte) error {
		return post(ctx, hc, h.postURL(r.URL), cs, method, message)
	}
	return &connection{cs: cs, client: client, state: l}, nil
}

func (s *Session) dialEndpoint(ctx context.Context, r *mcpjson.Resolved, trust Trust, hc *http.Client, h *headerTransport, l *connState) (*mcp.Client, *mcp.ClientSession, error) {
	client := s.client(trust, l)
	if s.def.Transport == mcpjson.TransportSSE {
		cs, err := s.dialSSE(ctx, r, hc, client)
		return client, cs, err
	}
	streamable := func(ctx context.Context, version string) (*mcp.ClientSession, error) {
		t := &mcp.StreamableClientTransport{Endpoint: r.URL, HTTPClient: hc, MaxEventSize: s.m.opts.Limits.Message}
		return client.Connect(ctx, t, &mcp.ClientSessionOptions{ProtocolVersion: version})
	}
	era, told := s.era()
	var cs *mcp.ClientSession
	var err error
	if era != Legacy {
		// Some servers never answer unknown requests.
		wait, cancel := context.WithTimeoutCause(ctx, halfOf(ctx), errSilent)
		cs, err = streamable(wait, "")
		silent := errors.Is(context.Cause(wait), errSilent)
		cancel()
		if err != nil && silent && ctx.Err() == nil && era == Auto {
			era = Legacy
		}
	}
	if era == Legacy {
		cs, err = streamable(ctx, revision.LastLegacy)
	}
	if err == nil {
		s.remember(ctx, eraOf(cs))
		return client, cs, nil
	}
	if !told {
		s.remember(ctx, Auto)
	}
	// These are the responses of the older transport to a POST.
	switch h.status.Load() {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		if s.def.SSEFallback && ctx.Err() == nil {
			if cs, sseErr := s.dialSSE(ctx, r, hc, client); sseErr == nil {
				return client, cs, nil
			}
		}
	}
	return nil, nil, err
}

// halfOf returns half of the remaining time, for the first of two attempts.
func halfOf(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline) / 2
	}
	return probeTimeout
}

func (s *Session) dialSSE(ctx context.Context, r *mcpjson.Resolved, hc *http.Client, client *mcp.Client) (*mcp.ClientSession, error) {
	endpoint := r.URL
	if r.SSEURL != "" {
		endpoint = r.SSEURL
	}
	// The SDK ties the stream to the context that it is opened with.
	life, cancel := context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	t := &detachedTransport{&mcp.SSEClientTransport{Endpoint: endpoint, HTTPClient: hc, MaxEventSize: s.m.opts.Limits.Message}, life, cancel}
	cs, err := client.Connect(ctx, t, &mcp.ClientSessionOptions{ProtocolVersion: revision.LastLegacy})
	stop()
	if err != nil {
		cancel(err)
		return nil, err
	}
	return cs, nil
}

// detachedTransport opens a connection that outlives the context of Connect.
type detachedTransport struct {
	mcp.Transport
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func (d *detachedTransport) Connect(context.Context) (mcp.Connection, error) {
	conn, err := d.Transport.Connect(d.ctx)
	if err != nil {
		return nil, err
	}
	return &closingConn{conn, func() { d.cancel(ErrClosed) }}, nil
}

func origin(u *url.URL) string { return u.Scheme + "://" + strings.ToLower(u.Host) }

// headerTransport adds a server's headers to requests to that server, wherever the
// server sends the client. It also adapts responses to what the SDK expects.
type headerTransport struct {
	server            string
	next              http.RoundTripper
	headers           []mcpjson.Header
	origins           []string
	streams           bool         // a GET opens a stream that the server need not have
	status            atomic.Int32 // of the response to the last POST
	lastPost          atomic.Value // the URL of the last POST, a string: the older transport announces it
	subscriptionEnded func()       // called when the server ends a subscription
}

// postURL returns the URL for POSTs.
func (h *headerTransport) postURL(fallback string) string {
	if u, ok := h.lastPost.Load().(string); ok {
		return u
	}
	return fallback
}

// RoundTrip implements [http.RoundTripper].
func (h *headerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	for _, o := range h.origins {
		if origin(req.URL) != o || len(h.headers) == 0 {
			continue
		}
		req = req.Clone(req.Context())
		for _, one := range h.headers {
			if strings.EqualFold(one.Name, "Host") {
				req.Host = one.Value
				continue
			}
			req.Header.Set(one.Name, one.Value)
		}
		break
	}
	if req.Method == http.MethodPost && !h.streams && !slices.Contains(h.origins, origin(req.URL)) {
		// Over the older transport, the server announces the URL for POSTs.
		return nil, &outbound.Refusal{Server: h.server, Reason: outbound.Redirected, Target: origin(req.URL)}
	}
	switch {
	case req.Method == http.MethodGet && h.streams:
		return openStream(h.next, req)
	case req.Method == http.MethodDelete:
		return endSession(h.next, req)
	}
	setSent(req.Context(), true)
	res, err := h.next.RoundTrip(req)
	if err == nil && lostSession(req, res) {
		res.StatusCode, res.Status = http.StatusNotFound, "404 Not Found"
	}
	if err != nil && neverConnected(err) || err == nil && res.StatusCode == http.StatusNotFound {
		setSent(req.Context(), false)
	}
	if err != nil || req.Method != http.MethodPost {
		return res, err
	}
	h.status.Store(int32(res.StatusCode))
	h.lastPost.Store(req.URL.String())
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusConflict,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return errorResponse(req, res), nil
	}
	if req.Header.Get("Mcp-Method") == "subscriptions/listen" && mediaType(res) == "text/event-stream" {
		res.Body = &subscription{res.Body, req.Context(), h.subscriptionEnded}
	}
	switch kind := mediaType(res); kind {
	case "text/event-stream":
	case "application/json":
		// An error while the SDK reads the response, or the end of the request's
		// context then, would end the whole session. An error before the response ends
		// only the request.
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			return nil, err
		}
		res.Body = io.NopCloser(bytes.NewReader(b))
	default:
		// The SDK would end the session, and only some requests would get the cause.
		// Over the older transport, the response to a POST has no content that matters.
		if res.StatusCode/100 == 2 && req.Header.Get("Accept") != "" && requestID(req) != nil {
			res.Body.Close()
			return nil, fmt.Errorf("unsupported content type %q", kind)
		}
	}
	return res, nil
}

// A subscription is a stream with which a modern server reports changes. The SDK does
// not notice its end.
type subscription struct {
	io.ReadCloser
	ctx   context.Context // of the request; it ends when this client ends the subscription
	ended func()
}

func (s *subscription) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil && s.ctx.Err() == nil {
		s.ended()
	}
	return n, err
}

func mediaType(res *http.Response) string {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return kind
}

// endSessionTimeout bounds the request that ends a session. Without it, the server
// notices later.
const endSessionTimeout = time.Second

// endSession ends a session.
func endSession(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), endSessionTimeout)
	defer cancel()
	res, err := next.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	res.Body.Close()
	res.Body = http.NoBody
	return res, nil
}

// requestID returns the id of the request in a body; nil if there is none.
func requestID(req *http.Request) json.RawMessage {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close()
	var message struct {
		ID json.RawMessage `json:"id"`
	}
	if json.NewDecoder(body).Decode(&message) != nil || len(message.ID) == 0 {
		return nil
	}
	return message.ID
}

// refusal returns the message of a short JSON-RPC error that answers no request in
// particular, and keeps the body of the response; "" if it is none.
func refusal(res *http.Response) string {
	if mediaType(res) != "application/json" {
		return ""
	}
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // what follows reports the error
	body := res.Body
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), body), body}
	var message struct {
		ID    any `json:"id"`
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(b, &message) != nil || message.ID != nil {
		return ""
	}
	return message.Error.Message
}

// lostSession reports whether a server that does not know the session of a request said so
// with the status 400. The specification wants 404, but servers after the examples of the
// TypeScript SDK answer 400, without having read the request.
func lostSession(req *http.Request, res *http.Response) bool {
	return res.StatusCode == http.StatusBadRequest && req.Method == http.MethodPost && req.Header.Get("Mcp-Session-Id") != "" &&
		strings.Contains(strings.ToLower(refusal(res)), "session")
}

// errorResponse converts a refusal in plain text, or in an error that answers no request in
// particular, to a JSON-RPC error response to the request. The SDK would end the session
// otherwise, and one bad request should not end the others.
func errorResponse(req *http.Request, res *http.Response) *http.Response {
	kind, words := mediaType(res), refusal(res)
	if kind == "application/json" && words == "" {
		return res
	}
	id := requestID(req)
	if id == nil {
		return res
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // a partial reason suffices
	res.Body.Close()
	message := res.Status
	if words != "" {
		message += ": " + words
	} else if reason := strings.TrimSpace(strings.ToValidUTF8(string(text), "")); reason != "" && (kind == "text/plain" || kind == "") {
		message += ": " + reason
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: message}})
	if err != nil {
		return res
	}
	res.Header = res.Header.Clone()
	res.Header.Set("Content-Type", "application/json")
	res.Header.Del("Content-Length")
	res.ContentLength = int64(len(b))
	res.Body = io.NopCloser(bytes.NewReader(b))
	return res
}

// maxRefusal bounds the quoted part of a refusal.
const maxRefusal = 1 << 10

// CloseIdleConnections supports [http.Client.CloseIdleConnections].
func (h *headerTransport) CloseIdleConnections() { closeIdle(h.next) }

// closeIdle closes the idle connections of the transport behind another one.
func closeIdle(next http.RoundTripper) {
	if c, ok := next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// post sends a message that has no response.
func post(ctx context.Context, hc *http.Client, endpoint string, cs *mcp.ClientSession, method string, message []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(message))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if id := cs.ID(); id != "" {
		req.Header.Set("Mcp-Session-Id", id)
	}
	if r := cs.InitializeResult(); r != nil {
		req.Header.Set("Mcp-Protocol-Version", r.ProtocolVersion)
		if r.ProtocolVersion >= revision.Modern {
			req.Header.Set("Mcp-Method", method)
		}
	}
	res, err := hc.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // allows the connection to be reused
	if res.StatusCode == http.StatusNotFound && cs.ID() != "" {
		return mcp.ErrSessionMissing
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("the server answered %s", res.Status)
	}
	return nil
}
