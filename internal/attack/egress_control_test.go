//go:build linux

package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Attacks on the network and on secrets hold, also where boxes cannot be isolated: they
// speak to the gate directly.
func TestAttacks_Egress(t *testing.T) {
	attacks, err := Select(All(), []string{"egress", "secrets"})
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), unisolated(t, nil), attacks)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		t.Logf("%s: %d attempts in %d ms", r.ID, r.Attempts, r.Milliseconds)
		if r.Outcome != Held {
			t.Errorf("%s: %s %q %s", r.ID, r.Outcome, r.Broken, r.Why)
		}
	}
}

// Attacks on the network succeed against an open proxy, and the judge notices.
func TestControl_Egress(t *testing.T) {
	open := weakEgress{network: func(r *netRig) network { return &openProxy{r} }}
	for id, c := range map[string]struct {
		weak weakEgress
		want string
	}{
		"egress/private-answers":   {open, "a server on loopback was reached"},
		"egress/rebinding":         {open, "a server on loopback was reached"},
		"egress/alias-chain":       {open, "a server on loopback was reached"},
		"egress/address-forms":     {open, "a server on loopback was reached"},
		"egress/odd-names":         {open, "a server on loopback was reached"},
		"egress/other-host":        {open, "the allowed host got"},
		"egress/connect-smuggling": {open, "a server on loopback was reached"},
		"egress/request-smuggling": {open, "smuggled"},
		"egress/redirect":          {open, "a server on loopback was reached"},
		"egress/names-in-records":  {weakEgress{allow: []string{"*.example.net"}}, "has data of the program"},
		"egress/connection-flood":  {open, "connections of one box"},
		"egress/slow-request":      {open, "still open"},
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			cfg := unisolated(t, nil)
			cfg.egress = c.weak
			expectBroken(t, run(t, cfg, id), c.want)
		})
	}
}

// Attacks on secrets succeed against an interceptor that replaces every placeholder and masks
// nothing, and the judge notices.
func TestControl_Secrets(t *testing.T) {
	for id, want := range map[string]string{
		"secrets/other-host":   "a host got the secret",
		"secrets/other-header": "a host got the secret",
		"secrets/other-owner":  "a host got the secret",
		"secrets/reflected":    "the box got the secret",
		"secrets/compressed":   "the box got the secret",
		"secrets/split":        "the box got the secret",
	} {
		t.Run(strings.ReplaceAll(id, "/", "-"), func(t *testing.T) {
			cfg := unisolated(t, nil)
			cfg.egress.intercept = func(v *vault, i egress.Interceptor) egress.Interceptor { return &generous{i, v} }
			expectBroken(t, run(t, cfg, id), want)
		})
	}
}

// openProxy connects to whatever a program asks for, and passes all bytes on.
type openProxy struct{ r *netRig }

func (openProxy) Lookup(context.Context, string) protocol.LookupResult {
	return protocol.LookupResult{Status: protocol.LookupOK}
}

func (p openProxy) Serve(ctx context.Context, d protocol.Dial, c net.Conn) error {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	head := make([]byte, 0, 1024)
	target, answer := net.JoinHostPort(d.Name, fmt.Sprint(d.Port)), ""
	switch d.Door {
	case protocol.DoorHTTP:
		for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
			one := make([]byte, 1)
			if _, err := c.Read(one); err != nil {
				return err
			}
			head = append(head, one...)
		}
		method, rest, _ := strings.Cut(string(head), " ")
		uri, _, _ := strings.Cut(rest, " ")
		target = uri
		if method == "CONNECT" {
			head, answer = nil, "HTTP/1.1 200 OK\r\n\r\n"
		} else if u, err := url.Parse(uri); err == nil {
			target = u.Host
			head = bytes.Replace(head, []byte(u.Scheme+"://"+u.Host), nil, 1)
			head = bytes.Replace(head, []byte("Host: x\r\n"), []byte("Host: "+u.Host+"\r\n"), 1)
		}
	case protocol.DoorSOCKS:
		buf := make([]byte, 512)
		if _, err := io.ReadFull(c, buf[:8]); err != nil {
			return err
		}
		n := int(buf[7])
		if _, err := io.ReadFull(c, buf[:n+2]); err != nil {
			return err
		}
		target = net.JoinHostPort(string(buf[:n]), fmt.Sprint(int(buf[n])<<8|int(buf[n+1])))
	}
	up, err := p.dial(ctx, target)
	if err != nil {
		return err
	}
	defer up.Close()
	defer context.AfterFunc(ctx, func() { up.Close() })()
	go func() {
		_, _ = up.Write(head)
		_, _ = io.Copy(up, c) // until either end is gone
	}()
	_, _ = io.WriteString(c, answer)
	_, err = io.Copy(c, up)
	return err
}

func (p openProxy) dial(ctx context.Context, target string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		host, port = target, "80"
	}
	if host == goodHost {
		return net.Dial("tcp", p.r.good.listener.Addr().String())
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		addrs, err := p.r.lookup.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, err
		}
		addr = addrs[0]
	}
	if !addr.Unmap().IsLoopback() {
		return nil, errors.New("not on this machine")
	}
	return net.Dial("tcp", net.JoinHostPort(addr.Unmap().String(), port))
}

// generous puts the secret into every request, whatever the box and the host.
type generous struct {
	egress.Interceptor
	v *vault
}

var anyPlaceholder = regexp.MustCompile(`gbx-secret-api-[a-z2-7]{26}`)

func (*generous) Wants(egress.Box, string) bool { return true }

func (g *generous) Serve(ctx context.Context, _ egress.Box, host string, _ uint16, c net.Conn, dial func(context.Context) (net.Conn, error), _ func(policy.Reason, string)) error {
	raw, err := dial(ctx)
	if err != nil {
		return err
	}
	defer raw.Close()
	up := tls.Client(raw, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	down := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{g.v.cert}})
	defer down.Close()
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := down.Read(buf)
			if _, werr := up.Write(anyPlaceholder.ReplaceAll(buf[:n], []byte(g.v.value))); err != nil || werr != nil {
				return
			}
		}
	}()
	_, err = io.Copy(down, up)
	return err
}
