package kubeconfig

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// keys returns a certificate and its key in PEM.
func keys(t *testing.T, ends time.Time) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: ends.Add(-time.Hour), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// config returns a kubeconfig with one user.
func config(user string) string {
	return `apiVersion: v1
kind: Config
clusters:
- {name: one, cluster: {server: "https://one.example:6443"}}
- {name: two, cluster: {server: "https://two.example/prefix/"}}
users:
- {name: someone, user: ` + user + `}
contexts:
- {name: first, context: {cluster: one, user: someone, namespace: boxes}}
- {name: second, context: {cluster: two}}
- {name: broken, context: {cluster: three, user: someone}}
- {name: nobody, context: {cluster: one, user: someone-else}}
current-context: first
`
}

func bearer(t *testing.T, c *Cluster) string {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, c.Server.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Auth.Apply(r); err != nil {
		t.Fatal(err)
	}
	return r.Header.Get("Authorization")
}

func TestLoad_Contexts(t *testing.T) {
	path := write(t, t.TempDir(), "config", config(`{token: secret}`))
	c, err := Load(Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.String() != "https://one.example:6443" || c.Namespace != "boxes" || c.Name != "first" || bearer(t, c) != "Bearer secret" {
		t.Errorf("the current context is %+v with %q", c, bearer(t, c))
	}
	if c, err = Load(Options{Path: path, Context: "second"}); err != nil {
		t.Fatal(err)
	}
	if c.Server.String() != "https://two.example/prefix" || c.Namespace != "default" || bearer(t, c) != "" {
		t.Errorf("the second context is %+v", c)
	}
}

func TestLoad_FilesOfTheEnvironment(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "token", "of the file\n")
	first := write(t, dir, "first", "current-context: second\n")
	second := write(t, dir, "second", config(`{tokenFile: token}`))
	t.Setenv("KUBECONFIG", strings.Join([]string{first, filepath.Join(dir, "missing"), second}, string(filepath.ListSeparator)))
	c, err := Load(Options{})
	if err != nil || c.Name != "second" {
		t.Fatalf("got %+v, %v; want the context that the first file names", c, err)
	}
	if c, err = Load(Options{Context: "first"}); err != nil || bearer(t, c) != "Bearer of the file" {
		t.Errorf("got %+v, %v; want the token of the file", c, err)
	}
	c.Auth.Rejected()
	write(t, dir, "token", "of the replaced file\n")
	if got := bearer(t, c); got != "Bearer of the replaced file" {
		t.Errorf("after the cluster has rejected the token, the next is %q", got)
	}
}

func TestLoad_NoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, o := range []Options{{}, {Context: "some"}} {
		if _, err := Load(o); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "KUBECONFIG") {
			t.Errorf("%+v: got %v, want ErrNone and what to do", o, err)
		}
	}
	t.Setenv("KUBECONFIG", "/no/such/file")
	if _, err := Load(Options{}); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want ErrNone", err)
	}
}

func TestLoad_BadInput(t *testing.T) {
	expiredCert, expiredKey := keys(t, time.Now().Add(-time.Hour))
	cert, _ := keys(t, time.Now().Add(time.Hour))
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, c := range map[string]struct{ content, context, want string }{
		"missing file":         {"", "", "no such file"},
		"not yaml":             {"{", "", "yaml"},
		"empty":                {"{}", "", "no current context"},
		"list":                 {"[]", "", "cannot unmarshal"},
		"wrong context":        {config(`{token: x}`), "frist", `did you mean "first"?`},
		"unknown context":      {config(`{token: x}`), "production", `there are ["first" "second"`},
		"cluster is missing":   {config(`{token: x}`), "broken", `the cluster "three", which the file lacks`},
		"user is missing":      {config(`{token: x}`), "nobody", "the file lacks it"},
		"plain http":           {strings.Replace(config(`{}`), "https://one", "http://one", 1), "", "want https"},
		"no URL":               {strings.Replace(config(`{}`), "https://one.example:6443", "one", 1), "", "is no URL"},
		"user in URL":          {strings.Replace(config(`{}`), "https://one", "https://u:p@one", 1), "", "has a user"},
		"token file":           {config(`{tokenFile: missing}`), "", "read token"},
		"password":             {config(`{username: u, password: p}`), "", "no password"},
		"impersonation":        {config(`{token: x, as: admin}`), "", `"as" is not supported`},
		"auth provider":        {config(`{auth-provider: {name: gcp}}`), "", "was removed"},
		"certificate's base64": {config(`{client-certificate-data: "%"}`), "", "not base64"},
		"certificate alone":    {config(`{client-certificate-data: ` + b64(cert) + `}`), "", "parse client certificate"},
		"expired certificate":  {config(`{client-certificate-data: ` + b64(expiredCert) + `, client-key-data: ` + b64(expiredKey) + `}`), "", "has expired"},
		"plugin's version":     {config(`{exec: {command: x, apiVersion: v2}}`), "", "apiVersion"},
		"plugin that asks":     {config(`{exec: {command: x, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}}`), "", "asks a person"},
		"too large":            {strings.Repeat("#", maxFile+1), "", "more than"},
		"no certificates":      {strings.Replace(config(`{}`), `6443"`, `6443", certificate-authority-data: `+b64("x"), 1), "", "no certificate in PEM"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "config")
		if c.content != "" {
			write(t, dir, "config", c.content)
		}
		_, err := Load(Options{Path: path, Context: c.context})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestLoad_ClientCertificate(t *testing.T) {
	dir := t.TempDir()
	cert, key := keys(t, time.Now().Add(time.Hour))
	write(t, dir, "cert", cert)
	write(t, dir, "key", key)
	c, err := Load(Options{Path: write(t, dir, "config", config(`{client-certificate: cert, client-key: key}`))})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.TLS.GetClientCertificate(nil)
	if err != nil || len(got.Certificate) != 1 {
		t.Errorf("the certificate is %+v, %v", got, err)
	}
}

// plugged returns credentials of an exec plugin that runs a line of shell.
func plugged(t *testing.T, line string) *Auth {
	t.Helper()
	path := write(t, t.TempDir(), "config", config(fmt.Sprintf(
		`{exec: {command: sh, args: [-c, %q], apiVersion: client.authentication.k8s.io/v1}}`, line)))
	c, err := Load(Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return c.Auth
}

func TestPlugin_RunsOnceUntilRejected(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	a := plugged(t, `echo x >> `+count+`; echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t$(wc -l < `+count+` | tr -d ' ')\"}}"`)
	for i, want := range []string{"t1", "t1", "t2"} {
		if i == 2 {
			a.Rejected()
		}
		if got, err := a.bearer(context.Background()); err != nil || got != want {
			t.Errorf("token %d is %q, %v; want %q", i, got, err, want)
		}
	}
}

func TestPlugin_BadOutput(t *testing.T) {
	credential := func(status string) string {
		return `printf %s '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":` + status + `}'`
	}
	for name, c := range map[string]struct{ line, want string }{
		"failure":    {"echo 'log in first' >&2; exit 1", "log in first"},
		"no program": {"exec /no/such/program", "exit status 12"},
		"no JSON":    {"echo hello", "no ExecCredential"},
		"other kind": {`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"\u001b[31m"}'`, `\x1b[31m`},
		"nothing":    {credential("{}"), "neither"},
		"expired":    {credential(`{"token":"x","expirationTimestamp":"2020-01-01T00:00:00Z"}`), "log in again"},
		"two lines":  {credential(`{"token":"a\nb"}`), "more than one line"},
		"too much":   {"exec yes", "it printed more than 1048576 bytes"},
		"much error": {"exec yes >&2", "it printed more than 1048576 bytes"},
		"no reason":  {"exit 3", "exit status 3: run it in a terminal to see why"},
	} {
		if _, err := plugged(t, c.line).bearer(context.Background()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestPodCluster_UsesTheServiceAccount(t *testing.T) {
	dir := t.TempDir()
	ca, _ := keys(t, time.Now().Add(time.Hour))
	write(t, dir, "ca.crt", ca)
	write(t, dir, "namespace", "boxes\n")
	if _, err := podCluster(dir, "10.0.0.1:443"); err == nil || !strings.Contains(err.Error(), "read token") {
		t.Errorf("without a token: got %v", err)
	}
	write(t, dir, "token", "mounted")
	c, err := podCluster(dir, "10.0.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.String() != "https://10.0.0.1:443" || c.Namespace != "boxes" || bearer(t, c) != "Bearer mounted" {
		t.Errorf("got %+v", c)
	}
}
