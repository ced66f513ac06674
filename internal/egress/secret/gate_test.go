package secret

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/egress/resolve"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Through the gate and its proxy, only the hosts of a secret are intercepted.
func TestInterceptor_BehindGate(t *testing.T) {
	const other = "other.example.com"
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, r.Header.Get("Authorization") == "Bearer "+apiValue, " ", r.Header.Get("Authorization"))
	}))
	cert, _ := hostCertificate(t, apiHost, other)
	w.host.TLS.Certificates = []tls.Certificate{cert}
	parsed, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	hostRoots := x509.NewCertPool()
	hostRoots.AddCert(parsed)
	w.i.opts.Roots = hostRoots
	var pins []resolve.Pin
	port := w.host.Listener.Addr().(*net.TCPAddr).Port
	for _, name := range []string{apiHost, other} {
		p, err := resolve.ParsePin(fmt.Sprintf("%s:443=127.0.0.1:%d", name, port))
		if err != nil {
			t.Fatal(err)
		}
		pins = append(pins, p)
	}
	allowed, err := policy.Parse([]string{apiHost, other}, nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Header.Get("Authorization")) }))
	defer plain.Close()
	p80, err := resolve.ParsePin(fmt.Sprintf("%s:80=%s", apiHost, plain.Listener.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	pins = append(pins, p80)
	gate := egress.New(egress.Options{
		Policies: func(string) policy.Set { return policy.Set{Owner: allowed} }, Pins: pins, Intercept: w.i,
	})
	defer gate.Close()
	n := gate.Open(box)
	settings := n.Settings()
	if !strings.HasPrefix(settings.Env["API_TOKEN"], "gbx-secret-api-") || !strings.Contains(settings.CA, "CERTIFICATE") || settings.Check() != nil {
		t.Fatalf("the settings of the box are %+v", settings)
	}
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := door.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = n.Serve(t.Context(), protocol.Dial{Door: protocol.DoorHTTP}, c) })
		}
	})
	defer wg.Wait()
	defer n.Close()
	defer door.Close()

	boxRoots := x509.NewCertPool()
	boxRoots.AppendCertsFromPEM([]byte(settings.CA))
	for host, roots := range map[string]*x509.CertPool{apiHost: boxRoots, other: hostRoots} {
		tr := &http.Transport{
			Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: door.Addr().String()}),
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		}
		defer tr.CloseIdleConnections()
		c := &http.Client{Transport: tr, Timeout: 10 * time.Second}
		_, body := get(t, c, "https://"+host+"/", "Bearer "+settings.Env["API_TOKEN"])
		got, echo, _ := strings.Cut(body, " ")
		if isSecret, _ := strconv.ParseBool(got); isSecret != (host == apiHost) {
			t.Errorf("%s got the secret: %v", host, isSecret)
		}
		if host == other && echo != "Bearer "+settings.Env["API_TOKEN"] {
			t.Errorf("%s, which has no secret, got %q, want the placeholder as it is", host, echo)
		}
		checkClean(t, "the body", body)
	}

	// Over plain HTTP the placeholder goes out as it is, and the user gets a note.
	if left := n.Take(); len(left) > 0 {
		t.Errorf("notes about requests over https: %+v", left)
	}
	proxied := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: door.Addr().String()})}
	defer proxied.CloseIdleConnections()
	for _, authorization := range []string{"none of ours", "Bearer " + settings.Env["API_TOKEN"], "Bearer " + settings.Env["API_TOKEN"]} {
		if _, body := get(t, &http.Client{Transport: proxied, Timeout: 10 * time.Second}, "http://"+apiHost+"/", authorization); body != authorization {
			t.Errorf("over http the host got %q, want the header as it is", body)
		}
	}
	notes := n.Take()
	if len(notes) != 1 || notes[0].Reason != string(egress.Unencrypted) || notes[0].Host != apiHost || notes[0].Port != 80 || notes[0].Count != 2 ||
		!strings.Contains(notes[0].Text, "the secret api to "+apiHost+":80 as it is: secrets go out over https only. Use https://"+apiHost+".") {
		t.Errorf("notes about two requests over http: %+v", notes)
	}
	if got := w.events(Unencrypted); len(got) != 2 || got[0].Secrets[0] != "api" || got[0].Host != apiHost || got[0].Box != box {
		t.Errorf("events %+v, want two of the secret", got)
	}

	tr := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: door.Addr().String()}), TLSClientConfig: &tls.Config{RootCAs: boxRoots}}
	defer tr.CloseIdleConnections()
	// In the URL it is not replaced, and the user gets a note.
	get(t, &http.Client{Transport: tr, Timeout: 10 * time.Second}, "https://"+apiHost+"/?key="+settings.Env["API_TOKEN"], "none of ours")
	notes = n.Take()
	if len(notes) != 1 || notes[0].Reason != string(egress.Misplaced) || notes[0].Host != apiHost || notes[0].Port != 443 ||
		!strings.HasPrefix(notes[0].Text, "Glovebox sent the placeholder of the secret api to "+apiHost+" as it is, in its URL: the secret goes out in the header ") {
		t.Errorf("notes about a placeholder in the URL: %+v", notes)
	}

	// The authority of the box is worth nothing for other hosts.
	if res, err := (&http.Client{Transport: tr}).Get("https://" + other + "/"); err == nil {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		t.Error("a host without a secret has a certificate of the box's authority")
	}
}
