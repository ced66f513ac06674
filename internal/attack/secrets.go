//go:build linux

package attack

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/egress/secret"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// secretsClass attacks the secrets that programs use without reading them.
func secretsClass() class {
	return class{
		name: "secrets", about: "A program in a box that has the placeholder of a secret, against its value.",
		attacks: []Attack{
			{Name: "other-host", Claim: "no host gets a secret but those that it is for", run: withSecret(otherHostGetsNone)},
			{Name: "other-header", Claim: "a request has a secret in its listed headers only, also for a host that it is for", run: withSecret(otherHeaderGetsNone)},
			{Name: "other-owner", Claim: "the placeholder of one owner is worth nothing in the boxes of another", run: withSecret(otherOwnerGetsNone)},
			{Name: "reflected", Claim: "a host that returns a secret in headers, errors or usual encodings discloses nothing to the box", run: withSecret(reflected)},
			{Name: "compressed", Claim: "a host that returns a secret compressed discloses nothing to the box", run: withSecret(compressed)},
			{Name: "split", Claim: "a host that returns a secret in many pieces of a stream discloses nothing to the box", run: withSecret(split)},
		},
	}
}

const (
	secretHost = "api.example.org" // of the secret
	plainHost  = "www.example.org" // allowed, without a secret
)

// vault is a box with a secret, and a host that answers under both names.
type vault struct {
	*netRig
	value string
	cert  tls.Certificate   // of the hosts
	env   map[string]string // of the box
	roots *x509.CertPool    // that programs in the box trust
	other network           // the box of another owner

	mu    sync.Mutex
	serve http.HandlerFunc // guarded by mu
	got   []string         // guarded by mu: all of each request
}

// withSecret returns an attack on a vault, whose host gets the secret before.
func withSecret(attack func(context.Context, *vault) error) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		// A file would have to be below directories of this user or root, which a user
		// namespace does not show.
		variable := "GLOVEBOX_ATTACK_" + strings.ToUpper(t.nonce)
		value := "gbxval" + newNonce() + "+/" + newNonce()
		if err := os.Setenv(variable, value); err != nil {
			return err
		}
		defer os.Unsetenv(variable)
		v, err := t.vault(variable, value)
		if err != nil {
			return err
		}
		defer v.close()
		if _, err := v.ask(ctx, v.network, secretHost, v.request(secretHost)); err != nil {
			return err
		}
		if !strings.Contains(strings.Join(v.take(), "\n"), v.value) {
			return errors.New("the host of the secret does not get it: the attack shows nothing")
		}
		return attack(ctx, v)
	}
}

// vault makes one whose secret is the value of a variable of this process.
func (t *trial) vault(variable, value string) (*vault, error) {
	v := &vault{value: value}
	defined, err := secret.Load([]secret.Definition{{Name: "api", Owners: []string{"mallory"}, Hosts: []string{secretHost}, As: "TOKEN", Env: variable}})
	if err != nil {
		return nil, err
	}
	cert, hosts, err := certificate(secretHost, plainHost)
	if err != nil {
		return nil, err
	}
	v.cert = cert
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		return nil, fmt.Errorf("listen for boxes: %w", err)
	}
	server := &http.Server{Handler: v, ReadTimeout: 2 * askTimeout, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(l) }() // until it is closed
	var intercept egress.Interceptor = secret.New(secret.Options{Key: []byte(strings.Repeat("k", 32)), Roots: hosts}, defined)
	if t.cfg.egress.intercept != nil {
		intercept = t.cfg.egress.intercept(v, intercept)
	}
	o := egress.Options{Intercept: intercept}
	for _, name := range []string{secretHost, plainHost} {
		pin, err := resolve.ParsePin(fmt.Sprintf("%s=%s", name, l.Addr()))
		if err != nil {
			return nil, errors.Join(err, server.Close())
		}
		o.Pins = append(o.Pins, pin)
	}
	if v.netRig, err = t.net(o, secretHost, plainHost); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	v.done = append([]func(){func() { server.Close() }}, v.done...) // on loopback; the attack is over
	var ca string
	v.env, ca = intercept.Settings(egress.Box{Owner: "mallory", ID: t.nonce})
	v.roots = hosts
	v.roots.AppendCertsFromPEM([]byte(ca))
	v.other = v.gate.Open(egress.Box{Owner: "bob", ID: "other"})
	return v, nil
}

// certificate returns one for names, and the pool that trusts it.
func certificate(names ...string) (tls.Certificate, *x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "attack"}, DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool, nil
}

// ServeHTTP notes all of a request, and answers it as the attack says.
func (v *vault) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(req.Body, 1<<20)) // what arrived counts
	v.mu.Lock()
	v.got = append(v.got, fmt.Sprintf("%s %s %v %s %v", req.Method, req.URL, req.Header, body, req.Trailer))
	serve := v.serve
	v.mu.Unlock()
	if serve != nil {
		serve(w, req)
	}
}

func (v *vault) answer(h http.HandlerFunc) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.serve = h
}

// take returns all that the hosts got since the last call.
func (v *vault) take() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	got := v.got
	v.got = nil
	return got
}

// request returns one with the placeholder where it belongs.
func (v *vault) request(host string) *http.Request {
	req, err := http.NewRequest(http.MethodGet, "https://"+host+"/", nil)
	if err != nil {
		panic(err) // the arguments are constants
	}
	req.Header.Set("Authorization", "Bearer "+v.env["TOKEN"])
	return req
}

// ask sends a request from a box, and returns all that comes back, as it is on the wire.
func (v *vault) ask(ctx context.Context, n network, host string, req *http.Request) (string, error) {
	raw := v.dial(ctx, n, protocol.Dial{Door: protocol.DoorTCP, Name: host, Port: 443})
	_ = raw.SetDeadline(time.Now().Add(4 * askTimeout)) // cannot fail on an open pipe
	// The authority of another box, or none, is not what is attacked.
	c := tls.Client(raw, &tls.Config{ServerName: host, RootCAs: v.roots, InsecureSkipVerify: n == v.other})
	defer c.Close()
	if err := c.HandshakeContext(ctx); err != nil {
		return "", fmt.Errorf("connect to %s: %w", host, err)
	}
	req.Close = true
	sent := make(chan error, 1)
	go func() { sent <- req.Write(c) }()
	got, err := io.ReadAll(io.LimitReader(c, 4<<20))
	if errors.Is(err, io.ErrUnexpectedEOF) || len(got) > 0 {
		err = nil // the host may cut its answer off
	}
	return string(got), errors.Join(err, <-sent)
}

// hosts judges what the hosts got.
func (v *vault) hosts(how string) {
	v.t.check(!strings.Contains(strings.Join(v.take(), "\n"), v.value), "a host got the secret %s", how)
}

// box judges what the box got: no eight bytes of the value in a row, in a usual encoding.
func (v *vault) box(got, how string) {
	for _, text := range []string{got, inflated(got)} {
		for _, form := range []string{v.value, hex.EncodeToString([]byte(v.value)), url.QueryEscape(v.value), base64.StdEncoding.EncodeToString([]byte(v.value))} {
			for at := 4; at+8 <= len(form)-4; at++ {
				if strings.Contains(text, form[at:at+8]) {
					v.t.broke("the box got the secret %s: %q", how, form[at:at+8])
					return
				}
			}
		}
	}
	v.t.held(1)
}

// inflated returns what is compressed in an answer; "": nothing.
func inflated(answer string) string {
	at := strings.Index(answer, "\x1f\x8b")
	if at < 0 {
		return ""
	}
	z, err := gzip.NewReader(strings.NewReader(answer[at:]))
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(z, 1<<20)) // the rest of a chunk follows
	return string(text)
}

func otherHostGetsNone(ctx context.Context, v *vault) error {
	for _, set := range []func(*http.Request){
		func(*http.Request) {},
		func(r *http.Request) { r.Host = secretHost },
		func(r *http.Request) { r.Header.Set("X-Forwarded-Host", secretHost) },
		func(r *http.Request) { r.SetBasicAuth("user", v.env["TOKEN"]) },
	} {
		req := v.request(plainHost)
		set(req)
		if _, err := v.ask(ctx, v.network, plainHost, req); err != nil {
			return err
		}
		v.hosts("that it is not for")
	}
	v.origin(ctx, secretHost, 80, "GET / HTTP/1.1\r\nHost: "+secretHost+"\r\nAuthorization: Bearer "+v.env["TOKEN"]+"\r\nConnection: close\r\n\r\n")
	v.hosts("without TLS")
	return nil
}

func otherHeaderGetsNone(ctx context.Context, v *vault) error {
	p := v.env["TOKEN"]
	for how, set := range map[string]func(*http.Request){
		"in another header": func(r *http.Request) { r.Header.Set("X-Other", p) },
		"in a cookie":       func(r *http.Request) { r.Header.Set("Cookie", "t="+p) },
		"in the user agent": func(r *http.Request) { r.Header.Set("User-Agent", p) },
		"in the path":       func(r *http.Request) { r.URL.Path = "/" + p },
		"in the query":      func(r *http.Request) { r.URL.RawQuery = "t=" + p },
		"in the body": func(r *http.Request) {
			r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader(p)), int64(len(p))
		},
		"in a trailer": func(r *http.Request) {
			r.Method, r.Body, r.ContentLength, r.Trailer = http.MethodPost, io.NopCloser(strings.NewReader("x")), -1, http.Header{"Authorization": {p}}
		},
		"as a part of a word": func(r *http.Request) { r.Header.Set("Authorization", "x"+p+"x") },
	} {
		req := v.request(secretHost)
		req.Header.Del("Authorization")
		set(req)
		if _, err := v.ask(ctx, v.network, secretHost, req); err != nil {
			return err
		}
		v.hosts(how)
	}
	return nil
}

func otherOwnerGetsNone(ctx context.Context, v *vault) error {
	if _, err := v.ask(ctx, v.other, secretHost, v.request(secretHost)); err != nil {
		return err
	}
	v.hosts("from the box of another owner")
	return nil
}

// echo asks for answers that a handler makes of the value.
func (v *vault) echo(ctx context.Context, how string, answer func(w http.ResponseWriter, value string)) error {
	v.answer(func(w http.ResponseWriter, r *http.Request) {
		answer(w, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	})
	req := v.request(secretHost)
	req.Header.Set("Range", "bytes=0-9")
	req.Header.Set("Accept-Encoding", "gzip, br")
	got, err := v.ask(ctx, v.network, secretHost, req)
	if err != nil {
		return err
	}
	v.box(got, how)
	return nil
}

func reflected(ctx context.Context, v *vault) error {
	for how, answer := range map[string]func(w http.ResponseWriter, value string){
		"in a page":    func(w http.ResponseWriter, s string) { fmt.Fprintf(w, "<p>%s</p>", s) },
		"in an error":  func(w http.ResponseWriter, s string) { http.Error(w, "bad token "+s, http.StatusUnauthorized) },
		"in a failure": func(w http.ResponseWriter, s string) { http.Error(w, "panic: "+s, http.StatusInternalServerError) },
		"in a header":  func(w http.ResponseWriter, s string) { w.Header().Set("X-Token", s) },
		"in a redirect": func(w http.ResponseWriter, s string) {
			w.Header().Set("Location", "https://evil.example.net/?t="+url.QueryEscape(s))
			w.WriteHeader(http.StatusFound)
		},
		"in a cookie":    func(w http.ResponseWriter, s string) { w.Header().Set("Set-Cookie", "t="+s) },
		"in a trailer":   func(w http.ResponseWriter, s string) { fmt.Fprint(w, "x"); w.Header().Set(http.TrailerPrefix+"T", s) },
		"in base64":      func(w http.ResponseWriter, s string) { fmt.Fprint(w, base64.StdEncoding.EncodeToString([]byte(s))) },
		"in hexadecimal": func(w http.ResponseWriter, s string) { fmt.Fprint(w, hex.EncodeToString([]byte(s))) },
		"in JSON":        func(w http.ResponseWriter, s string) { fmt.Fprintf(w, `{"t":%q}`, s) },
		"before the end": func(w http.ResponseWriter, s string) {
			w.Header().Set("Content-Length", "10000")
			fmt.Fprint(w, s)
			panic(http.ErrAbortHandler)
		},
	} {
		if err := v.echo(ctx, how, answer); err != nil {
			return err
		}
	}
	return nil
}

func compressed(ctx context.Context, v *vault) error {
	zipped := func(s string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := io.WriteString(z, strings.Repeat("x", 100)+s)
		if err := errors.Join(err, z.Close()); err != nil {
			panic(err) // a buffer takes everything
		}
		return b.Bytes()
	}
	for _, coding := range []string{"gzip", "x-gzip", "GZIP", "gzip, gzip", "br", "identity, gzip", "zstd"} {
		if err := v.echo(ctx, "with the coding "+coding, func(w http.ResponseWriter, s string) {
			w.Header().Set("Content-Encoding", coding)
			_, _ = w.Write(zipped(s)) // the box may have left
		}); err != nil {
			return err
		}
	}
	return v.echo(ctx, "with the coding deflate", func(w http.ResponseWriter, s string) {
		w.Header().Set("Content-Encoding", "deflate")
		z, err := flate.NewWriter(w, flate.NoCompression)
		if err != nil {
			panic(err) // the level is a constant
		}
		_, _ = io.WriteString(z, s) // likewise
		_ = z.Close()
	})
}

func split(ctx context.Context, v *vault) error {
	for _, size := range []int{1, 2, 3, 7, 8, 13} {
		for _, pause := range []time.Duration{0, 60 * time.Millisecond} {
			if pause > 0 && size < 7 {
				continue // it takes long
			}
			if err := v.echo(ctx, fmt.Sprintf("in pieces of %d bytes", size), func(w http.ResponseWriter, s string) {
				for len(s) > 0 {
					n := min(size, len(s))
					fmt.Fprint(w, s[:n])
					_ = http.NewResponseController(w).Flush() // the box may have left
					s = s[n:]
					time.Sleep(pause)
				}
			}); err != nil {
				return err
			}
		}
	}
	return nil
}
