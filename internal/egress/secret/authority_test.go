package secret

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/egress/egresstest"
	"github.com/glovebox-dev/glovebox/internal/egress/policy"
	"github.com/glovebox-dev/glovebox/internal/proctest"
)

const hostVariable = "GLOVEBOX_TEST_HOST"

func TestMain(m *testing.M) {
	if host := os.Getenv(hostVariable); host != "" {
		os.Exit(askAsServer(host))
	}
	os.Exit(proctest.Main(m))
}

// askAsServer sends a request with a placeholder to a host at an address, as a server does
// that knows the authorities of this machine and its environment, and prints the answer.
func askAsServer(address string) int {
	secrets, err := load([]Definition{{Name: "api", Owners: []string{Everyone}, Hosts: []string{apiHost}, As: "API_TOKEN", Env: "VALUE"}}, os.LookupEnv)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	i := New(Options{Key: masterKey}, secrets)
	guest, ours := net.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- i.Serve(context.Background(), box, apiHost, 443, ours, func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		}, func(policy.Reason, string) {})
	}()
	env, ca := i.Settings(box)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DialContext: func(context.Context, string, string) (net.Conn, error) { return guest, nil }}
	req, err := http.NewRequest(http.MethodGet, "https://"+apiHost+"/", nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	req.Header.Set("Authorization", "Bearer "+env["API_TOKEN"])
	res, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	_, _ = io.Copy(os.Stdout, res.Body)
	res.Body.Close()
	tr.CloseIdleConnections()
	<-served
	return 0
}

// TestServe_PrivateAuthority: the server trusts a private authority for the hosts of a secret
// if its environment names it, and otherwise sends them no secret.
func TestServe_PrivateAuthority(t *testing.T) {
	ca := egresstest.NewCA(t)
	host := httptest.NewUnstartedServer(http.HandlerFunc(whoami))
	host.TLS = ca.Config(apiHost)
	host.StartTLS()
	defer host.Close()
	for _, tt := range []struct {
		env  []string
		want string
	}{
		{[]string{"SSL_CERT_FILE=" + ca.File}, "you are alice"},
		{[]string{"SSL_CERT_DIR=" + filepath.Dir(ca.File)}, "you are alice"},
		{nil, "signed by an authority that the server of this box does not know, so it got no secret: the operator can name the authority with --egress-ca"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append([]string{hostVariable + "=" + host.Listener.Addr().String(), "VALUE=" + apiValue}, tt.env...)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("with %q: %v, %s, want %q", tt.env, err, out, tt.want)
		}
	}
}
