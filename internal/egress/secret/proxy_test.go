package secret

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/webserve"
)

func closedConn(t *testing.T) net.Conn {
	a, b := net.Pipe()
	b.Close()
	t.Cleanup(func() { a.Close() })
	return a
}

// whoami answers whether the request had the value, without disclosing it.
func whoami(w http.ResponseWriter, r *http.Request) {
	auth := r.Header.Get("Authorization")
	switch {
	case auth == "Bearer "+apiValue, r.Header.Get("X-Api-Key") == apiValue:
		fmt.Fprint(w, "you are alice")
	default:
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, "who are you")
	}
}

func TestServe_SwapsThePlaceholder(t *testing.T) {
	bothVersions(t, http.HandlerFunc(whoami), func(t *testing.T, w *world, c *http.Client) {
		p := w.placeholder(box, "API_TOKEN")
		if _, body := get(t, c, "https://"+apiHost+"/user?q=1;2", "Bearer "+p); body != "you are alice" {
			t.Errorf("with the placeholder: %q", body)
		}
		if res, _ := get(t, c, "https://"+apiHost+"/user", "Bearer other"); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("without it: status %d", res.StatusCode)
		}
		h := http.Header{"X-Api-Key": {p}}
		if _, body := do(t, c, "POST", "https://"+apiHost+"/", h, strings.NewReader("body")); body != "you are alice" {
			t.Errorf("in the second header: %q", body)
		}
		if got := w.events(Swapped); len(got) != 2 || got[0].Secrets[0] != "api" || got[0].Box != box || got[0].Host != apiHost {
			t.Errorf("events %+v, want two of the secret", got)
		}
	})
}

func TestServe_BasicOfGit(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		fmt.Fprint(w, password == gitValue)
	}))
	c := w.client(box, gitHost, false)
	req, _ := http.NewRequest("GET", "https://"+gitHost+"/repo.git/info/refs", nil)
	req.SetBasicAuth("x-access-token", w.placeholder(box, "GIT_TOKEN"))
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); string(body) != "true" {
		t.Errorf("the host saw the secret: %s", body)
	}
}

// Where a placeholder does not belong, it reaches the host as it is.
func TestServe_SwapsNowhereElse(t *testing.T) {
	type seen struct {
		URL, Body string
		Header    http.Header
		Trailer   http.Header
	}
	got := make(chan seen, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- seen{r.URL.String(), string(b), r.Header, r.Trailer}
	})
	bothVersions(t, h, func(t *testing.T, w *world, c *http.Client) {
		p := w.placeholder(box, "API_TOKEN")
		git := w.placeholder(box, "GIT_TOKEN")
		bob := w.i.secrets.Load().of(box.Owner).hosts[apiHost].secrets[0].placeholder(masterKey, "token bob", "box9")
		req, _ := http.NewRequest("POST", "https://"+apiHost+"/"+p+"?q="+p, io.MultiReader(strings.NewReader("body "+p)))
		req.Trailer = http.Header{"X-Api-Key": {p}}
		req.Header = http.Header{
			"X-Other": {p}, "Cookie": {"c=" + p}, "User-Agent": {p}, "X-" + p: {"x"},
			"X-Api-Key": {git, bob, p[:20], p[20:]}, "Authorization": {"Bearer " + git},
			"Range": {"bytes=0-1"}, "If-Range": {"x"}, "Accept-Encoding": {"gzip, br"},
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		s := <-got
		checkClean(t, "the request", fmt.Sprint(s))
		if s.Body != "body "+p || !strings.Contains(s.URL, p) || s.Header.Get("X-Other") != p || s.Header.Get("Authorization") != "Bearer "+git {
			t.Errorf("the request was changed: %+v", s)
		}
		if s.Header.Get("Range") != "" || s.Header.Get("If-Range") != "" || s.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("the host may answer in pieces or compressed: %v", s.Header)
		}
		if e := w.events(Misplaced); len(e) == 0 || e[0].Where != "URL" || e[0].Secrets[0] != "api" {
			t.Errorf("events %+v, want one for the URL", e)
		}
		if e := w.events(Swapped); len(e) != 0 {
			t.Errorf("events %+v, want none", e)
		}
		if got, want := w.noted(), "Glovebox sent the placeholder of the secret api to "+apiHost+" as it is, in its URL: the secret goes out in the header "; !strings.HasPrefix(got, want) {
			t.Errorf("noted %q, want %q", got, want)
		}
	})
}

// reflections are answers of hosts that return what they were sent.
var reflections = map[string]func(w http.ResponseWriter, auth string){
	"body":       func(w http.ResponseWriter, a string) { fmt.Fprint(w, a) },
	"error page": func(w http.ResponseWriter, a string) { http.Error(w, "bad token "+a, http.StatusForbidden) },
	"JSON":       func(w http.ResponseWriter, a string) { json.NewEncoder(w).Encode(map[string]string{"auth": a}) },
	"base64":     func(w http.ResponseWriter, a string) { io.WriteString(w, base64.StdEncoding.EncodeToString([]byte(a))) },
	"base64 of JSON": func(w http.ResponseWriter, a string) {
		io.WriteString(w, base64.URLEncoding.EncodeToString([]byte(`{"a":"`+a+`"}`)))
	},
	"hex":    func(w http.ResponseWriter, a string) { fmt.Fprintf(w, "%x %X", a, a) },
	"header": func(w http.ResponseWriter, a string) { w.Header().Set("X-Echo", a) },
	"location": func(w http.ResponseWriter, a string) {
		w.Header().Set("Location", "https://evil.example/?"+a)
		w.WriteHeader(302)
	},
	"cookie": func(w http.ResponseWriter, a string) {
		w.Header().Set("Set-Cookie", "s="+strings.TrimPrefix(a, "Bearer "))
	},
	"header name": func(w http.ResponseWriter, a string) {
		w.Header()["X-"+strings.TrimPrefix(a, "Bearer ")] = []string{"x"}
	},
	"trailer": func(w http.ResponseWriter, a string) {
		w.Header().Set("Trailer", "X-Late")
		fmt.Fprint(w, "body")
		w.Header().Set("X-Late", a)
	},
	"unannounced trailer": func(w http.ResponseWriter, a string) {
		fmt.Fprint(w, "body")
		w.(http.Flusher).Flush()
		w.Header().Set(http.TrailerPrefix+"X-Late", a)
	},
	"early hints": func(w http.ResponseWriter, a string) {
		w.Header().Set("Link", "<"+a+">")
		w.WriteHeader(http.StatusEarlyHints)
	},
	"byte by byte": func(w http.ResponseWriter, a string) {
		for i := range len(a) {
			io.WriteString(w, a[i:i+1])
			w.(http.Flusher).Flush()
		}
	},
	"slowly": func(w http.ResponseWriter, a string) {
		for len(a) > 0 {
			n := min(7, len(a))
			io.WriteString(w, a[:n])
			w.(http.Flusher).Flush()
			a = a[n:]
			time.Sleep(70 * time.Millisecond) // longer than the mask holds back
		}
	},
	"cut off": func(w http.ResponseWriter, a string) { fmt.Fprint(w, a[:len(a)-1]) },
	"aborted": func(w http.ResponseWriter, a string) {
		io.WriteString(w, a[:len(a)-1])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	},
	"gzip": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, strings.Repeat("text ", 1000)+a)
		z.Close()
	},
	"zlib": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Encoding", "deflate")
		z := zlib.NewWriter(w)
		io.WriteString(z, a)
		z.Close()
	},
	"deflate": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Encoding", "Deflate")
		z, _ := flate.NewWriter(w, 9)
		io.WriteString(z, a)
		z.Close()
	},
	"brotli": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Encoding", "br")
		io.WriteString(w, a)
	},
	"nested codings": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Encoding", "gzip, gzip")
		io.WriteString(w, a)
	},
	"a lie about the coding": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Encoding", "gzip")
		io.WriteString(w, a)
	},
	"ranges": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Type", "multipart/byteranges; boundary=x")
		w.WriteHeader(http.StatusPartialContent)
		io.WriteString(w, "--x\r\n\r\n"+a+"\r\n--x--")
	},
	"event stream": func(w http.ResponseWriter, a string) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", a)
	},
}

func TestServe_MasksReflections(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		if !strings.Contains(auth, apiValue) {
			auth = "no secret in " + auth
		}
		name := strings.ReplaceAll(strings.TrimPrefix(r.URL.Path, "/"), "_", " ")
		reflections[name](w, auth)
	})
	bothVersions(t, h, func(t *testing.T, w *world, c *http.Client) {
		p := w.placeholder(box, "API_TOKEN")
		for name := range reflections {
			t.Run(name, func(t *testing.T) {
				var hints strings.Builder
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
					fmt.Fprint(&hints, h)
					return nil
				}})
				req, _ := http.NewRequestWithContext(ctx, "GET", "https://"+apiHost+"/"+strings.ReplaceAll(name, " ", "_"), nil)
				req.Header.Set("Authorization", "Bearer "+p)
				before := len(w.events(Swapped))
				res, err := c.Do(req)
				if err != nil {
					checkClean(t, "the error", err.Error())
					t.Fatal(err)
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err != nil && name != "aborted" {
					t.Errorf("read the body: %v", err)
				}
				if len(w.events(Swapped)) == before {
					t.Fatal("the host got no secret: the test shows nothing")
				}
				all := fmt.Sprint(res.Status, res.Header, res.Trailer, hints.String(), string(body))
				checkClean(t, "the response", all)
				checkClean(t, "the response in lower case", strings.ToLower(all))
				if strings.Contains(strings.ToLower(all), strings.ToLower(apiValue[4:14])) {
					t.Errorf("the response has a part of the value in lower case: %q", all)
				}
				for _, run := range strings.FieldsFunc(string(body), func(r rune) bool { return r == '*' || r == '<' || r == ' ' }) {
					decoded, _ := base64.RawStdEncoding.DecodeString(run[:len(run)&^3])
					unhexed, _ := hex.DecodeString(run[:len(run)&^1])
					checkClean(t, "the decoded body", string(decoded)+" "+string(unhexed))
				}
				if name == "body" && (len(body) != len("Bearer "+apiValue) || res.ContentLength != int64(len(body))) {
					t.Errorf("the body has %d bytes and Content-Length %d, want %d", len(body), res.ContentLength, len("Bearer "+apiValue))
				}
				coded := slices.Contains([]string{"gzip", "zlib", "deflate", "brotli", "nested codings", "a lie about the coding"}, name)
				if coded && (res.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), "content coding")) {
					t.Errorf("status %d and %q, want 502 and the reason", res.StatusCode, body)
				}
			})
		}
		if len(w.events(Masked)) == 0 {
			t.Error("no event tells that values were masked")
		}
	})
}

// A host that speaks bad HTTP could place the value where Go's errors quote it.
func TestServe_MasksErrors(t *testing.T) {
	for name, answer := range map[string]string{
		"status line": "HTTP/1.1 %s\r\n\r\n",
		"protocol":    "%s\r\n\r\n",
		"header":      "HTTP/1.1 200 OK\r\n%s\r\n\r\n",
		"length":      "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
		"coding":      "HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\n\r\n",
		"transfer":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n",
		"reason":      "HTTP/1.1 200 %s\r\nContent-Length: 2\r\n\r\nok",
		"chunk":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;%s\r\nok\r\n0\r\n\r\n",
		"upgrade":     "HTTP/1.1 101 %s\r\nConnection: Upgrade\r\nUpgrade: %[1]s\r\n\r\n%[1]s",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				c, _, err := rw.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				fmt.Fprintf(c, answer, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
			}))
			w.host.TLS.NextProtos = []string{"http/1.1"}
			c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost))
			defer c.Close()
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n", apiHost, w.placeholder(box, "API_TOKEN"))
			answer, err := io.ReadAll(c)
			if err != nil || len(answer) == 0 {
				t.Errorf("answer %q, error %v", answer, err)
			}
			checkClean(t, "the answer", string(answer))
			if len(w.events(Swapped)) == 0 {
				t.Error("the host got no secret: the test shows nothing")
			}
		})
	}
}

func TestServe_RefusesOtherHostsAndMethods(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, "host ", r.Host) }))
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: git.example.com\r\n\r\n":                                                                             "HTTP/1.1 421 ",
		"GET / HTTP/1.1\r\nHost: api.example.com:8443\r\n\r\n":                                                                        "HTTP/1.1 421 ",
		"GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example\r\n\r\n":                                                       "HTTP/1.1 400 ",
		"GET https://git.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n":                                                      "HTTP/1.1 421 ",
		"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n":                                                       "HTTP/1.1 400 ",
		"TRACE / HTTP/1.1\r\nHost: api.example.com\r\n\r\n":                                                                           "HTTP/1.1 405 ",
		"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n":                                                   "HTTP/1.1 405 ",
		"POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx":                                 "HTTP/1.1 400 ",
		"GET / HTTP/1.1\r\nHost: API.example.com:443\r\n\r\n":                                                                         "HTTP/1.1 200 ",
		"GET / HTTP/1.1\r\nHost: api.example.com\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: x\r\n\r\n": "HTTP/1.1 200 ",
	} {
		c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost))
		io.WriteString(c, request)
		line, err := bufio.NewReader(c).ReadString('\n')
		if !strings.HasPrefix(line, want) {
			t.Errorf("%q: %q (error %v), want %q", request, line, err, want)
		}
		c.Close()
	}
	// HTTP/2 clients reuse connections for other names of a certificate.
	req, _ := http.NewRequest("GET", "https://"+apiHost+"/", nil)
	req.Host = gitHost
	res, err := w.client(box, apiHost, true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("HTTP/2 with another authority: status %d, want 421", res.StatusCode)
	}
}

func TestServe_AuthorityIsOfTheBox(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(whoami))
	other := egress.Box{Owner: box.Owner, ID: "box2"}
	c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(other, apiHost))
	defer c.Close()
	var unknown x509.UnknownAuthorityError
	if err := c.Handshake(); !errors.As(err, &unknown) {
		t.Errorf("handshake with the authority of another box: %v, want %T", err, unknown)
	}
}

func TestServe_VerifiesTheHost(t *testing.T) {
	var arrived atomic.Int32
	host := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		whoami(rw, r)
	})
	ask := func(w *world) (*http.Response, string) {
		return get(t, w.client(box, apiHost, false), "https://"+apiHost+"/", "Bearer "+w.placeholder(box, "API_TOKEN"))
	}
	if _, body := ask(newWorld(t, host)); body != "you are alice" || arrived.Swap(0) != 1 {
		t.Fatalf("the host itself: %q", body)
	}
	w := newWorld(t, host)
	w.i.opts.Roots = x509.NewCertPool()
	if res, body := ask(w); res.StatusCode != http.StatusBadGateway || !strings.Contains(body, "authority") {
		t.Errorf("a host with an unknown authority: status %d and %q, want 502 and the reason", res.StatusCode, body)
	}
	w = newWorld(t, host)
	cert, roots := hostCertificate(t, "other.example.com")
	w.host.TLS.Certificates = []tls.Certificate{cert}
	w.i.opts.Roots = roots
	if res, body := ask(w); res.StatusCode != http.StatusBadGateway || !strings.Contains(body, "not valid") {
		t.Errorf("a host with the certificate of another: status %d and %q, want 502 and the reason", res.StatusCode, body)
	}
	if n := arrived.Load(); n > 0 {
		t.Errorf("hosts that are not verified got %d requests", n)
	}
}

func TestServe_PassesOnTheRefusalOfADial(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(whoami))
	c := w.client(box, apiHost, false)
	c.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		guest, ours := net.Pipe()
		go w.i.Serve(context.Background(), box, apiHost, 443, ours, func(context.Context) (net.Conn, error) {
			return nil, errors.New("Glovebox refused it: no rule")
		}, w.note)
		return guest, nil
	}
	if res, body := get(t, c, "https://"+apiHost+"/", ""); res.StatusCode != http.StatusBadGateway || !strings.Contains(body, "no rule") {
		t.Errorf("status %d and %q, want 502 and the reason", res.StatusCode, body)
	}
}

func TestServe_EventStreamStaysLive(t *testing.T) {
	next := make(chan string)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for e := range next {
			fmt.Fprintf(w, "data: %s\n\n", e)
			w.(http.Flusher).Flush()
		}
	})
	bothVersions(t, h, func(t *testing.T, w *world, c *http.Client) {
		next = make(chan string)
		req, _ := http.NewRequest("GET", "https://"+apiHost+"/", nil)
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		in := bufio.NewReader(res.Body)
		for _, e := range []string{"one", "ghp_", apiValue, "g"} {
			next <- e
			line, err := in.ReadString('\n')
			if _, berr := in.ReadString('\n'); err != nil || berr != nil {
				t.Fatalf("read an event: %v, %v", err, berr)
			}
			if len(line) != len("data: \n")+len(e) {
				t.Errorf("the event %q arrived as %q", e, line)
			}
			checkClean(t, "an event", line)
		}
		close(next)
	})
}

// wsFrame returns an unmasked text frame of WebSocket.
func wsFrame(text string) []byte {
	if len(text) > 125 {
		panic("long frame")
	}
	return append([]byte{0x81, byte(len(text))}, text...)
}

func TestServe_WebSocket(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-Websocket-Extensions") != "" {
			t.Errorf("the host got the headers %v", r.Header)
		}
		c, in, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		auth := r.Header.Get("Authorization")
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: %s\r\n\r\n", auth)
		c.Write(wsFrame(auth))
		io.Copy(c, in) // echo
	}))
	c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost))
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	p := w.placeholder(box, "API_TOKEN")
	// The first frame follows the request at once.
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n%s", apiHost, p, wsFrame("first"))
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", res, err)
	}
	checkClean(t, "the answer to the upgrade", fmt.Sprint(res.Header))
	read := func(n int) string {
		t.Helper()
		b := make([]byte, n)
		if _, err := io.ReadFull(in, b); err != nil {
			t.Fatalf("read a frame: %v", err)
		}
		return string(b)
	}
	auth := read(2 + len("Bearer "+apiValue))
	checkClean(t, "a frame", auth)
	if auth[1] != byte(len("Bearer "+apiValue)) {
		t.Errorf("the frame has the length %d", auth[1])
	}
	if got := read(7); got != string(wsFrame("first")) {
		t.Errorf("the frame sent with the request came back as %q", got)
	}
	for _, text := range []string{"ping g", p, "end"} { // the value begins with g; nothing follows the first frame
		c.Write(wsFrame(text))
		if got := read(2 + len(text)); got != string(wsFrame(text)) {
			t.Errorf("frame %q came back as %q", text, got)
		}
	}
}

func TestServe_EndsWithTheContext(t *testing.T) {
	block := make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.(http.Flusher).Flush()
		select {
		case <-block:
		case <-r.Context().Done():
		}
	}))
	defer close(block)
	guest, ours := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- w.i.Serve(ctx, box, apiHost, 443, ours, w.dial, w.note) }()
	c := tls.Client(guest, w.tlsConfig(box, apiHost))
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", apiHost)
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("Serve: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Serve did not return after its context ended")
	}
	guest.Close()
}

func TestServe_ConcurrentRequests(t *testing.T) {
	bothVersions(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, io.MultiReader(strings.NewReader(r.Header.Get("Authorization")), r.Body))
	}), func(t *testing.T, w *world, c *http.Client) {
		p := w.placeholder(box, "API_TOKEN")
		errs := make(chan error)
		for range 16 {
			go func() {
				req, _ := http.NewRequest("POST", "https://"+apiHost+"/", strings.NewReader(strings.Repeat("x", 100_000)))
				req.Header.Set("Authorization", p)
				res, err := c.Do(req)
				if err == nil {
					var n int64
					n, err = io.Copy(io.Discard, res.Body)
					res.Body.Close()
					if err == nil && n != int64(100_000+len(apiValue)) {
						err = fmt.Errorf("%d bytes", n)
					}
				}
				errs <- err
			}()
		}
		for range 16 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// A program whose request is refused is disconnected if it does not send the body that it
// announced.
func TestServe_RefusedUnsentBodyEnds(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(whoami))
	c := tls.Client(w.connect(box, apiHost, 443), w.tlsConfig(box, apiHost))
	defer c.Close()
	c.SetDeadline(time.Now().Add(3 * webserve.Default.Drain))
	fmt.Fprintf(c, "TRACE / HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000\r\n\r\n", apiHost)
	_, err := io.Copy(io.Discard, c)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("the connection was still open after %v", 3*webserve.Default.Drain)
	}
}
