package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/peek"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/socks"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// serveTCP serves a program that connected to the address of a name.
func (n *Network) serveTCP(ctx context.Context, t target, c net.Conn) {
	v := n.policies().Decide(t.host, t.port)
	if v.OK && v.Kind == policy.Raw {
		f, r := n.dial(ctx, t, v)
		if r == nil {
			f.carryRaw()
			splice(c, f)
		}
		return
	}
	n.serveWeb(ctx, t, v, c, nil)
}

func (n *Network) serveSOCKS(ctx context.Context, c net.Conn) {
	if c.SetReadDeadline(time.Now().Add(headerTimeout)) != nil {
		return
	}
	host, port, err := socks.Accept(c)
	if err != nil || c.SetReadDeadline(time.Time{}) != nil {
		return
	}
	n.tunnel(ctx, target{protocol.DoorSOCKS, host, port}, c, func(r *refusal) error {
		switch {
		case r == nil:
			return socks.Answer(c, socks.Succeeded)
		case r.reason != "":
			return socks.Answer(c, socks.NotAllowed)
		case r.closed:
			return socks.Answer(c, socks.Refused)
		}
		return socks.Answer(c, socks.HostUnreachable)
	})
}

// tunnel serves a program that asked a proxy for a target. It calls answer once, with nil
// before the first byte of the target.
func (n *Network) tunnel(ctx context.Context, t target, c net.Conn, answer func(*refusal) error) {
	v := n.policies().Decide(t.host, t.port)
	if !v.OK {
		_ = answer(n.refuseVerdict(t.door, t.host, t.port, v)) // the connection ends
		return
	}
	t.host, _ = policy.ParseHost(t.host) // the policy parsed it
	if v.Kind == policy.Web && n.intercepts(t) {
		if answer(nil) == nil {
			n.serveWeb(ctx, t, v, c, nil)
		}
		return
	}
	f, r := n.dial(ctx, t, v)
	if r != nil {
		_ = answer(r) // the connection ends
		return
	}
	defer f.Close()
	if answer(nil) != nil {
		return
	}
	if v.Kind == policy.Raw {
		f.carryRaw()
		splice(c, f)
		return
	}
	n.serveWeb(ctx, t, v, c, f)
}

func (n *Network) intercepts(t target) bool {
	i := n.gate.opts.Intercept
	return i != nil && i.Wants(n.box, t.host)
}

// serveWeb serves a connection on which TLS or HTTP is expected, for a target with the
// verdict v. f, if not nil, is connected to the target; serveWeb closes it.
func (n *Network) serveWeb(ctx context.Context, t target, v policy.Verdict, c net.Conn, f *flow) {
	if f != nil {
		defer f.Close()
	}
	if c.SetReadDeadline(time.Now().Add(peekTimeout)) != nil {
		return
	}
	seen, replay, err := peek.Peek(c)
	if c.SetReadDeadline(time.Time{}) != nil {
		return
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		n.refuseProtocol(t, v, fmt.Sprintf("sent neither TLS nor HTTP within %v", peekTimeout))
	case err != nil && seen.Protocol == peek.TLS:
		n.refuseSNI(t, v, c, "its ClientHello is malformed or too long")
	case err != nil: // the program left
	case seen.Protocol == peek.TLS:
		n.serveTLS(ctx, t, v, replay, seen.ServerName, f)
	case seen.Protocol == peek.HTTP:
		n.serveHTTP(ctx, t.door, replay, &t, f)
	default:
		n.refuseProtocol(t, v, "speaks neither TLS nor HTTP")
	}
}

// serveTLS serves a connection whose ClientHello was read and will be read again.
func (n *Network) serveTLS(ctx context.Context, t target, v policy.Verdict, c net.Conn, serverName string, f *flow) {
	if n.refuseOpaque(t, v) != nil {
		_, _ = c.Write(alertAccessDenied) // the connection ends
		return
	}
	if !sameServer(t.host, serverName) {
		n.refuseSNI(t, v, c, fmt.Sprintf("TLS asks for the server name %q", shown(serverName, 0)))
		return
	}
	if n.intercepts(t) {
		if f != nil {
			f.Close()
		}
		n.intercept(ctx, t, c)
		return
	}
	if f == nil {
		var r *refusal
		if f, r = n.dial(ctx, t, v); r != nil {
			_, _ = c.Write(alertInternalError) // the connection ends
			return
		}
	}
	f.carryOpaque()
	splice(c, f)
}

// intercept lets the Interceptor serve a connection to a target that was decided on. It ends
// when the policy does not allow it any more.
func (n *Network) intercept(served context.Context, t target, c net.Conn) {
	ctx, cancel := context.WithCancel(served)
	defer cancel()
	defer n.watch(func() {
		if v := n.policies().Decide(t.host, t.port); !v.OK || v.RequestsOnly {
			cancel()
		}
	})()
	dial := func(context.Context) (net.Conn, error) {
		v := n.policies().Decide(t.host, t.port)
		if r := n.refuseOpaque(t, v); r != nil {
			return nil, r
		}
		f, r := n.dial(served, t, v)
		if r != nil {
			return nil, r
		}
		f.carryOpaque()
		return f, nil
	}
	// Errors are of this connection only, and the Interceptor has told the program.
	_ = n.gate.opts.Intercept.Serve(ctx, n.box, t.host, t.port, c, dial, func(why policy.Reason, text string) {
		n.note(&refusal{host: t.host, port: t.port, reason: why, text: text})
	})
}

// refuseOpaque refuses a connection, whose requests cannot be read, if v does. Otherwise it
// returns nil.
func (n *Network) refuseOpaque(t target, v policy.Verdict) *refusal {
	switch {
	case !v.OK:
		return n.refuseVerdict(t.door, t.host, t.port, v)
	case v.RequestsOnly:
		return n.refuse(refusal{door: t.door, host: t.host, port: t.port, reason: policy.Method, status: statusRefused,
			text: fmt.Sprintf("Glovebox refused %s: the policy limits the methods or paths, which cannot be seen inside TLS; use http.", t)}, v)
	}
	return nil
}

// sameServer reports whether the server name of TLS is that of the host. TLS has no server
// name for a literal address.
func sameServer(host, serverName string) bool {
	if canonical, err := policy.ParseName(host); err != nil || canonical != host {
		return serverName == ""
	}
	name, err := policy.ParseName(serverName)
	return err == nil && name == host
}

func (n *Network) refuseSNI(t target, v policy.Verdict, c net.Conn, cause string) {
	n.refuse(refusal{door: t.door, host: t.host, port: t.port, reason: SNI,
		text: fmt.Sprintf("Glovebox refused %s: %s.", t, cause)}, v)
	_, _ = c.Write(alertUnrecognizedName) // the connection ends
}

func (n *Network) refuseProtocol(t target, v policy.Verdict, cause string) {
	if !v.OK {
		n.refuseVerdict(t.door, t.host, t.port, v)
		return
	}
	n.refuse(refusal{door: t.door, host: t.host, port: t.port, reason: Protocol,
		text: fmt.Sprintf("Glovebox refused %s: the program %s; the operator can allow other protocols by adding to %s: tcp://%s", t, cause, n.Where(), t)}, v)
}
