// Package kubeconfig finds a Kubernetes cluster and the credentials for it, as kubectl
// does: a kubeconfig file with contexts or, inside a Pod, its service account.
package kubeconfig

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/glovebox-dev/glovebox/internal/nearest"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// maxFile bounds kubeconfig files, certificates and tokens.
const maxFile = 1 << 20

// ErrNone means that there is neither a kubeconfig nor a service account.
var ErrNone = errors.New("no cluster is configured")

// Options select a cluster.
type Options struct {
	// Path is a kubeconfig file. Default: the files of $KUBECONFIG, ~/.kube/config, or
	// the service account of the Pod that this program runs in.
	Path string
	// Context is a context of the kubeconfig. Default: its current context.
	Context string
}

// Cluster is a cluster with the credentials for it.
type Cluster struct {
	// Server is the URL of the API, https without user, query and fragment.
	Server *url.URL
	// Namespace is that of the context, "default" if it has none.
	Namespace string
	// Name describes the cluster for people: the context, or "service account".
	Name string
	// TLS is the client's configuration.
	TLS *tls.Config
	// Proxy is a http.Transport's.
	Proxy func(*http.Request) (*url.URL, error)
	// Auth gives the credentials of requests.
	Auth *Auth
}

// file has the used fields of a kubeconfig.
type file struct {
	Clusters []struct {
		Name    string      `yaml:"name"`
		Cluster clusterInfo `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string   `yaml:"name"`
		User userInfo `yaml:"user"`
	} `yaml:"users"`
	Contexts []struct {
		Name    string      `yaml:"name"`
		Context contextInfo `yaml:"context"`
	} `yaml:"contexts"`
	Current string `yaml:"current-context"`
}

type clusterInfo struct {
	Server     string `yaml:"server"`
	ServerName string `yaml:"tls-server-name"`
	Insecure   bool   `yaml:"insecure-skip-tls-verify"`
	CAFile     string `yaml:"certificate-authority"`
	CAData     string `yaml:"certificate-authority-data"`
	ProxyURL   string `yaml:"proxy-url"`
}

type contextInfo struct {
	Cluster   string `yaml:"cluster"`
	User      string `yaml:"user"`
	Namespace string `yaml:"namespace"`
}

// Load returns the cluster that the options select.
func Load(o Options) (*Cluster, error) {
	paths, explicit := findFiles(o)
	if len(paths) == 0 {
		if o.Context != "" {
			return nil, fmt.Errorf("use context %q: %w: there is no kubeconfig; name one in KUBECONFIG", o.Context, ErrNone)
		}
		return inCluster()
	}
	var merged file
	found := 0
	for _, path := range paths {
		f, err := readConfig(path)
		if errors.Is(err, os.ErrNotExist) && !explicit {
			continue // as kubectl: a list may name files that do not exist
		}
		if err != nil {
			return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
		}
		found++
		merged.merge(f)
	}
	if found == 0 {
		return nil, fmt.Errorf("%w: none of the files %s exists; correct KUBECONFIG", ErrNone, strings.Join(paths, ", "))
	}
	c, err := merged.cluster(o.Context)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", strings.Join(paths, ", "), err)
	}
	return c, nil
}

// findFiles returns the kubeconfig files to read; explicit ones must exist.
func findFiles(o Options) (paths []string, explicit bool) {
	if o.Path != "" {
		return []string{o.Path}, true
	}
	if list := filepath.SplitList(os.Getenv("KUBECONFIG")); len(list) > 0 {
		return slices.DeleteFunc(list, func(s string) bool { return s == "" }), false
	}
	if home, err := os.UserHomeDir(); err == nil {
		path := filepath.Join(home, ".kube", "config")
		if _, err := os.Stat(path); err == nil {
			return []string{path}, true
		}
	}
	return nil, false
}

// readConfig reads a file and makes the paths in it absolute.
func readConfig(path string) (*file, error) {
	b, err := readBounded(path)
	if err != nil {
		return nil, err
	}
	var f file
	if err := yaml.Unmarshal(b, &f); err != nil {
		return nil, errors.New(visible.Line(err.Error()))
	}
	dir := filepath.Dir(path)
	absolute := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	for i := range f.Clusters {
		absolute(&f.Clusters[i].Cluster.CAFile)
	}
	for i := range f.Users {
		u := &f.Users[i].User
		absolute(&u.CertFile)
		absolute(&u.KeyFile)
		absolute(&u.TokenFile)
		if u.Exec != nil && strings.ContainsRune(u.Exec.Command, filepath.Separator) {
			absolute(&u.Exec.Command)
		}
	}
	return &f, nil
}

func readBounded(path string) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return b, err
}

// merge adds what f has; of two entries with a name the first one counts.
func (m *file) merge(f *file) {
	m.Clusters = append(m.Clusters, f.Clusters...)
	m.Users = append(m.Users, f.Users...)
	m.Contexts = append(m.Contexts, f.Contexts...)
	m.Current = cmp.Or(m.Current, f.Current)
}

// cluster resolves a context; "" means the current one.
func (m *file) cluster(name string) (*Cluster, error) {
	name = cmp.Or(name, m.Current)
	var names []string
	for _, c := range m.Contexts {
		names = append(names, c.Name)
	}
	if name == "" {
		return nil, fmt.Errorf("no current context is set; choose one of %q", names)
	}
	i := slices.Index(names, name)
	if i < 0 {
		hint := fmt.Sprintf("there are %q", names)
		if near := nearest.Of(name, names); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return nil, fmt.Errorf("no context is named %q: %s", name, hint)
	}
	context := m.Contexts[i].Context
	for _, c := range m.Clusters {
		if c.Name != context.Cluster {
			continue
		}
		out, err := c.Cluster.resolve()
		if err != nil {
			return nil, fmt.Errorf("cluster %q: %w", c.Name, err)
		}
		out.Name, out.Namespace = visible.Line(name), cmp.Or(context.Namespace, "default")
		out.Auth, err = m.auth(context.User)
		if err != nil {
			return nil, fmt.Errorf("user %q: %w", context.User, err)
		}
		out.Auth.configure(out.TLS)
		return out, nil
	}
	return nil, fmt.Errorf("context %q names the cluster %q, which the file lacks", name, context.Cluster)
}

// auth returns the credentials of a user; "" means none.
func (m *file) auth(name string) (*Auth, error) {
	if name == "" {
		return &Auth{}, nil
	}
	for _, u := range m.Users {
		if u.Name == name {
			return u.User.auth(name)
		}
	}
	return nil, errors.New("the file lacks it")
}

// resolve makes a cluster without credentials.
func (c *clusterInfo) resolve() (*Cluster, error) {
	server, err := parseServer(c.Server)
	if err != nil {
		return nil, err
	}
	out := &Cluster{Server: server, TLS: &tls.Config{ServerName: c.ServerName, InsecureSkipVerify: c.Insecure, MinVersion: tls.VersionTLS12}}
	ca, err := dataOrFile(c.CAData, c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate-authority: %w", err)
	}
	if ca != nil {
		out.TLS.RootCAs = x509.NewCertPool()
		if !out.TLS.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("certificate-authority has no certificate in PEM")
		}
	}
	out.Proxy = http.ProxyFromEnvironment
	if c.ProxyURL != "" {
		proxy, err := url.Parse(c.ProxyURL)
		if err != nil || proxy.Host == "" {
			return nil, fmt.Errorf("proxy-url %q is no URL", c.ProxyURL)
		}
		out.Proxy = http.ProxyURL(proxy)
	}
	return out, nil
}

// parseServer accepts https only: credentials go there.
func parseServer(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "":
		return nil, fmt.Errorf("server %q is no URL", s)
	case u.Scheme != "https":
		return nil, fmt.Errorf("server %q: want https, because requests carry credentials", s)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("server %q has a user, query or fragment", u.Redacted())
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}
