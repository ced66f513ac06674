package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/peek"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
)

// serveHTTP serves the requests on one connection: of a client of the proxy, or, if
// origin is not nil, of a client that believes it talks to origin. f, if not nil, is
// connected to origin.
func (n *Network) serveHTTP(ctx context.Context, door string, c net.Conn, origin *target, f *flow) {
	h := &handler{n: n, ctx: ctx, door: door, origin: origin, first: f}
	h.transport = &http.Transport{
		DialContext: h.dial, DisableCompression: true,
		MaxIdleConns: 2, IdleConnTimeout: keepAlive, MaxResponseHeaderBytes: 4 * webserve.MaxHeader, ExpectContinueTimeout: time.Second,
	}
	h.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: h.transport, FlushInterval: -1, ErrorHandler: h.failed,
		ErrorLog: log.New(io.Discard, "", 0), // of what programs in boxes and servers do to each other
	}
	webserve.Serve(&http.Server{Handler: h, DisableGeneralOptionsHandler: true, BaseContext: func(net.Listener) context.Context { return ctx }}, c)
	h.wg.Wait()
	h.transport.CloseIdleConnections()
	c.Close()
}

// A handler serves the requests on one connection of a program.
type handler struct {
	n         *Network
	ctx       context.Context // of the connection
	door      string
	origin    *target // nil: the program knows that this is a proxy
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	wg        sync.WaitGroup // requests, which outlive a hijacked connection's listener

	mu    sync.Mutex
	first *flow // guarded by mu: connected to origin, for the first request
}

type targetKey struct{}

func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.wg.Add(1)
	defer h.wg.Done()
	req, done := h.n.gate.bounds.Begin(w, req)
	defer done()
	accept := req.Header.Get("Accept")
	t, r := h.target(req)
	if r != nil {
		r.write(w, accept)
		return
	}
	if req.Method == http.MethodConnect {
		h.connect(w, t, accept)
		return
	}
	v := h.n.policies().DecideRequest(t.host, t.port, req.Method, req.URL.EscapedPath())
	if !v.OK {
		h.n.refuseVerdict(h.door, t.host, t.port, v).write(w, accept)
		return
	}
	t.host, _ = policy.ParseHost(t.host) // the policy parsed it
	h.n.notePlain(t, v, req)
	if v.RequestsOnly || req.ContentLength != 0 {
		// Nothing could be decided on what follows; after a body, two would read the connection.
		req.Header.Del("Upgrade")
	}
	carries := &request{req.Method, req.URL.EscapedPath(), req.Header.Get("Upgrade") != ""}
	out := httptrace.WithClientTrace(context.WithValue(req.Context(), targetKey{}, t), &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			if f, ok := i.Conn.(*flow); ok {
				f.carry(carries)
			}
		},
	})
	h.proxy.ServeHTTP(webserve.WithoutInformational(w), req.WithContext(out))
}

// target returns the destination of a request.
func (h *handler) target(req *http.Request) (target, *refusal) {
	if h.origin != nil {
		return h.originTarget(req)
	}
	bad := func(text string) (target, *refusal) {
		return target{}, &refusal{door: h.door, text: "Glovebox: " + text, status: statusBad}
	}
	if req.Method == http.MethodConnect {
		host, port, err := net.SplitHostPort(req.RequestURI)
		if err != nil {
			return bad("CONNECT needs HOST:PORT.")
		}
		p, err := policy.ParsePort(port)
		if err != nil {
			return bad(err.Error() + ".")
		}
		return target{h.door, host, p}, nil
	}
	switch {
	case !req.URL.IsAbs() || req.URL.Opaque != "":
		return bad("this is the proxy of the box; ask it for http://HOST/PATH or CONNECT HOST:PORT.")
	case req.URL.Scheme != "http":
		return bad("use CONNECT for " + shown(req.URL.Scheme, 0) + " URLs.")
	case req.URL.User != nil:
		return bad("a URL must not contain a user name.")
	}
	return urlTarget(h.door, req.URL.Host)
}

// urlTarget returns the target of the authority of an http URL.
func urlTarget(door, authority string) (target, *refusal) {
	host, port, err := splitAuthority(authority)
	if err != nil {
		return target{}, &refusal{door: door, text: "Glovebox: " + err.Error() + ".", status: statusBad}
	}
	if port == 0 {
		port = 80
	}
	return target{door, host, port}, nil
}

// splitAuthority splits "host" or "host:port"; port 0: none.
func splitAuthority(authority string) (host string, port uint16, err error) {
	i := strings.LastIndexByte(authority, ':')
	if i < 0 || strings.HasSuffix(authority, "]") {
		return authority, 0, nil
	}
	port, err = policy.ParsePort(authority[i+1:])
	return authority[:i], port, err
}

// originTarget checks that a request is for the origin that the program connected to.
func (h *handler) originTarget(req *http.Request) (target, *refusal) {
	o := *h.origin
	mismatch := func() (target, *refusal) {
		text := fmt.Sprintf("Glovebox refused %s: the request is for the host %q. Do not retry or work around it.", o, shown(req.Host, 0))
		return target{}, h.n.refuse(refusal{door: o.door, host: o.host, port: o.port, reason: Host, text: text, status: statusRefused}, h.n.policies().Decide(o.host, o.port))
	}
	if req.Method == http.MethodConnect || req.URL.Opaque != "" || req.URL.IsAbs() && (req.URL.Scheme != "http" || req.URL.User != nil) {
		return mismatch()
	}
	authority, port, err := splitAuthority(req.Host)
	if err != nil || port != 0 && port != o.port {
		return mismatch()
	}
	if host, err := policy.ParseHost(authority); err != nil || host != o.host {
		return mismatch()
	}
	return o, nil
}

// connect serves a CONNECT request.
func (h *handler) connect(w http.ResponseWriter, t target, accept string) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // only HTTP/2, which the server does not offer
	}
	defer c.Close()
	if c.SetDeadline(time.Time{}) != nil {
		return
	}
	early, _ := rw.Reader.Peek(rw.Reader.Buffered()) // it is there
	h.n.tunnel(h.ctx, t, peek.Replay(c, early), func(r *refusal) error {
		if r != nil {
			r.writeRaw(c, accept)
			return nil
		}
		_, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		return err
	})
}

// rewrite prepares the request to the server. ReverseProxy has removed hop-by-hop headers,
// apart from those of an upgrade, and the X-Forwarded ones.
func rewrite(pr *httputil.ProxyRequest) {
	t := pr.In.Context().Value(targetKey{}).(target)
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // ReverseProxy removes what it cannot parse
	pr.Out.Host = pr.Out.URL.Host
	if t.port == 80 {
		pr.Out.Host = strings.TrimSuffix(pr.Out.Host, ":80")
	}
	for name := range pr.Out.Header {
		if strings.HasPrefix(name, "Proxy-") {
			pr.Out.Header.Del(name)
		}
	}
	if !strings.EqualFold(pr.Out.Header.Get("Upgrade"), "websocket") {
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
	}
}

// dial connects to the address of the current request's target. The transport may call
// it in a goroutine of its own, which ends with the connection of the program.
func (h *handler) dial(_ context.Context, _, address string) (net.Conn, error) {
	h.mu.Lock()
	f := h.first
	h.first = nil
	h.mu.Unlock()
	if f != nil {
		return f, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	p, err := policy.ParsePort(port)
	if err != nil {
		return nil, err
	}
	t := target{h.door, host, p}
	v := h.n.policies().Decide(host, p)
	if !v.OK {
		return nil, h.n.refuseVerdict(h.door, host, p, v)
	}
	f, r := h.n.dial(h.ctx, t, v)
	if r != nil {
		return nil, r
	}
	return f, nil
}

// failed answers a request that did not reach the server.
func (h *handler) failed(w http.ResponseWriter, req *http.Request, err error) {
	var r *refusal
	if !errors.As(err, &r) {
		t, _ := req.Context().Value(targetKey{}).(target)
		r = &refusal{door: h.door, host: t.host, port: t.port, status: statusFailed,
			text: fmt.Sprintf("Glovebox: %s did not answer: %s.", t, dialCause(err))}
	}
	r.write(w, req.Header.Get("Accept"))
}
