package kubeconfig

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

type userInfo struct {
	CertFile     string         `yaml:"client-certificate"`
	CertData     string         `yaml:"client-certificate-data"`
	KeyFile      string         `yaml:"client-key"`
	KeyData      string         `yaml:"client-key-data"`
	Token        string         `yaml:"token"`
	TokenFile    string         `yaml:"tokenFile"`
	As           string         `yaml:"as"`
	Username     string         `yaml:"username"`
	Exec         *execInfo      `yaml:"exec"`
	AuthProvider map[string]any `yaml:"auth-provider"`
}

// rereadToken is how long a token of a file is used before it is read again: kubelets
// and others replace such files well before the token in them expires.
const rereadToken = time.Minute

// Auth gives the credentials of requests. The zero value has none. All methods may be
// called concurrently.
type Auth struct {
	user      string
	token     string
	tokenFile string
	exec      *plugin

	mu   sync.Mutex
	read time.Time        // guarded by mu; when token was read from the file
	cert *tls.Certificate // guarded by mu; nil: none
}

// User describes whose credentials these are, for people.
func (a *Auth) User() string { return cmp.Or(a.user, "anonymous") }

func (u *userInfo) auth(name string) (*Auth, error) {
	switch {
	case u.As != "":
		return nil, errors.New(`"as" is not supported; use credentials of that user`)
	case u.AuthProvider != nil:
		return nil, errors.New(`"auth-provider" was removed from Kubernetes; use an exec plugin`)
	case u.Username != "":
		return nil, errors.New("Kubernetes accepts no password; use a token, a certificate or an exec plugin")
	}
	a := &Auth{user: name, token: u.Token}
	if u.TokenFile != "" { // has precedence, as in kubectl
		a.tokenFile, a.token = u.TokenFile, ""
		if _, err := a.bearer(context.Background()); err != nil {
			return nil, err
		}
	}
	certPEM, err := dataOrFile(u.CertData, u.CertFile)
	if err != nil {
		return nil, fmt.Errorf("read client-certificate: %w", err)
	}
	keyPEM, err := dataOrFile(u.KeyData, u.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read client-key: %w", err)
	}
	if certPEM != nil || keyPEM != nil {
		if a.cert, err = keyPair(certPEM, keyPEM, time.Now()); err != nil {
			return nil, err
		}
	}
	if u.Exec != nil {
		if a.exec, err = u.Exec.plugin(); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// keyPair parses a certificate that has not expired.
func keyPair(certPEM, keyPEM []byte, now time.Time) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("parse client certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("parse client certificate: %w", err)
	}
	if now.After(leaf.NotAfter) {
		return nil, fmt.Errorf("the client certificate has expired on %s; get a new one from the cluster's administrator", leaf.NotAfter.UTC().Format(time.DateTime))
	}
	cert.Leaf = leaf
	return &cert, nil
}

// dataOrFile returns base64 data, or a file's content; nil if there is neither.
func dataOrFile(data, path string) ([]byte, error) {
	if data != "" {
		b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
		if err != nil {
			return nil, errors.New("the data is not base64")
		}
		return b, nil
	}
	if path == "" {
		return nil, nil
	}
	return readBounded(path)
}

// configure adds the client certificate.
func (a *Auth) configure(c *tls.Config) {
	if a.cert == nil && a.exec == nil {
		return
	}
	c.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if a.exec != nil {
			got, err := a.exec.credentials(info.Context())
			if err != nil {
				return nil, err
			}
			if got.cert != nil {
				return got.cert, nil
			}
		}
		if a.cert != nil {
			return a.cert, nil
		}
		return new(tls.Certificate), nil // none
	}
}

// Apply adds the credentials to a request.
func (a *Auth) Apply(r *http.Request) error {
	token, err := a.bearer(r.Context())
	if err == nil && token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return err
}

// Rejected records that the cluster did not accept the credentials, so that the next request
// gets new ones where there is a source of them.
func (a *Auth) Rejected() {
	a.mu.Lock()
	a.read = time.Time{}
	a.mu.Unlock()
	if a.exec != nil {
		a.exec.forget()
	}
}

func (a *Auth) bearer(ctx context.Context) (string, error) {
	if a.exec != nil {
		got, err := a.exec.credentials(ctx)
		if err != nil || got.token != "" {
			return got.token, err
		}
	}
	if a.tokenFile == "" {
		return a.token, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token != "" && time.Since(a.read) < rereadToken {
		return a.token, nil
	}
	b, err := readBounded(a.tokenFile)
	token := strings.TrimSpace(string(b))
	switch {
	case err != nil:
		return "", fmt.Errorf("read token: %w", err)
	case token == "" || strings.ContainsAny(token, "\r\n\x00"):
		return "", fmt.Errorf("read token: %s does not hold a token", a.tokenFile)
	}
	a.token, a.read = token, time.Now()
	return token, nil
}

// serviceAccount is where a Pod finds its service account.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// inCluster returns the cluster of the Pod that this program runs in.
func inCluster() (*Cluster, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fmt.Errorf("%w: there is no kubeconfig, and this is no Pod with a service account; name a file in KUBECONFIG", ErrNone)
	}
	return podCluster(serviceAccount, net.JoinHostPort(host, port))
}

// podCluster returns the cluster at an address with the service account in dir.
func podCluster(dir, address string) (*Cluster, error) {
	info := clusterInfo{Server: (&url.URL{Scheme: "https", Host: address}).String(), CAFile: dir + "/ca.crt"}
	c, err := info.resolve()
	if err != nil {
		return nil, fmt.Errorf("use the Pod's service account: %w", err)
	}
	namespace, err := readBounded(dir + "/namespace")
	if err != nil {
		return nil, fmt.Errorf("use the Pod's service account: %w", err)
	}
	c.Auth = &Auth{user: "the Pod's service account", tokenFile: dir + "/token"}
	if _, err := c.Auth.bearer(context.Background()); err != nil {
		return nil, fmt.Errorf("use the Pod's service account: %w", err)
	}
	c.Name, c.Namespace = "service account", cmp.Or(strings.TrimSpace(string(namespace)), "default")
	c.Proxy = nil // the API of one's own cluster is near
	return c, nil
}
