package kubeconfig

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/truncate"
	"github.com/glovebox-dev/glovebox/internal/visible"
)

// execInfo is an exec plugin of a kubeconfig.
type execInfo struct {
	APIVersion  string   `yaml:"apiVersion"`
	Command     string   `yaml:"command"`
	Args        []string `yaml:"args"`
	InstallHint string   `yaml:"installHint"`
	Interactive string   `yaml:"interactiveMode"`
	ClusterInfo bool     `yaml:"provideClusterInfo"`
	Env         []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
}

const (
	pluginGroup = "client.authentication.k8s.io/"
	// pluginWait bounds one run of a plugin.
	pluginWait = 30 * time.Second
	// pluginEarly is how long before their expiry credentials are replaced.
	pluginEarly = 30 * time.Second
)

// credentials are what a plugin printed.
type credentials struct {
	token   string
	cert    *tls.Certificate
	expires time.Time // zero: never
}

// plugin runs a program for credentials and keeps them until they expire.
type plugin struct {
	info *execInfo
	busy chan struct{} // holds an element while the plugin runs

	mu   sync.Mutex
	last *credentials // guarded by mu; nil: none
}

func (e *execInfo) plugin() (*plugin, error) {
	switch {
	case e.APIVersion != pluginGroup+"v1" && e.APIVersion != pluginGroup+"v1beta1":
		return nil, fmt.Errorf("exec plugin %q has apiVersion %q, want %sv1", e.Command, e.APIVersion, pluginGroup)
	case e.Command == "":
		return nil, errors.New("exec plugin without a command")
	case e.Interactive == "Always":
		return nil, fmt.Errorf("exec plugin %q asks a person; log in with it first and use one that does not", e.Command)
	case e.ClusterInfo:
		return nil, fmt.Errorf("exec plugin %q wants provideClusterInfo, which is not supported", e.Command)
	}
	return &plugin{info: e, busy: make(chan struct{}, 1)}, nil
}

func (p *plugin) forget() {
	p.mu.Lock()
	p.last = nil
	p.mu.Unlock()
}

func (p *plugin) kept() *credentials {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.last; c != nil && (c.expires.IsZero() || time.Now().Add(pluginEarly).Before(c.expires)) {
		return c
	}
	return nil
}

// credentials returns the kept ones, or runs the plugin.
func (p *plugin) credentials(ctx context.Context) (*credentials, error) {
	if c := p.kept(); c != nil {
		return c, nil
	}
	select {
	case p.busy <- struct{}{}:
		defer func() { <-p.busy }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c := p.kept(); c != nil { // of the run that was in progress
		return c, nil
	}
	c, err := p.run(ctx)
	if err != nil {
		return &credentials{}, fmt.Errorf("get credentials from exec plugin %q: %w", p.info.Command, err)
	}
	p.mu.Lock()
	p.last = c
	p.mu.Unlock()
	return c, nil
}

// line makes a text of the plugin safe to show.
func line(s string, limit int) string { return visible.Line(truncate.Bytes(s, limit)) }

// bounded keeps the first bytes. It does not embed its buffer, whose ReadFrom has no
// bound.
type bounded struct {
	b        bytes.Buffer
	exceeded bool
}

var errTooMuch = fmt.Errorf("it printed more than %d bytes", maxFile)

// Write fails beyond the bound, which ends the program that writes.
func (b *bounded) Write(p []byte) (int, error) {
	if b.b.Len()+len(p) > maxFile {
		b.exceeded = true
		return 0, errTooMuch
	}
	return b.b.Write(p)
}

func (p *plugin) run(ctx context.Context) (*credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.info.Command, p.info.Args...)
	cmd.WaitDelay = time.Second
	cmd.Env = os.Environ()
	for _, e := range p.info.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	cmd.Env = append(cmd.Env, `KUBERNETES_EXEC_INFO={"apiVersion":"`+p.info.APIVersion+`","kind":"ExecCredential","spec":{"interactive":false}}`)
	var stdout, stderr bounded
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if stdout.exceeded || stderr.exceeded {
		return nil, errTooMuch // rather than how the plugin took the closed pipe
	}
	if err != nil {
		hint := cmp.Or(strings.TrimSpace(stderr.b.String()), p.info.InstallHint, "run it in a terminal to see why")
		return nil, fmt.Errorf("%w: %s", err, line(hint, 500))
	}
	return parseCredentials(stdout.b.Bytes(), p.info.APIVersion, time.Now())
}

// parseCredentials parses the output of a plugin.
func parseCredentials(b []byte, version string, now time.Time) (*credentials, error) {
	var out struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Status     *struct {
			Token   string    `json:"token"`
			Cert    string    `json:"clientCertificateData"`
			Key     string    `json:"clientKeyData"`
			Expires time.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, errors.New("its output is no ExecCredential")
	}
	switch {
	case out.Kind != "ExecCredential" || out.APIVersion != version:
		return nil, fmt.Errorf("its output is %s of %s, want ExecCredential of %s", line(out.Kind, 80), line(out.APIVersion, 80), version)
	case out.Status == nil || out.Status.Token == "" && out.Status.Cert == "":
		return nil, errors.New("its output has neither a token nor a certificate")
	case strings.ContainsAny(out.Status.Token, "\r\n\x00"):
		return nil, errors.New("its token has more than one line")
	case !out.Status.Expires.IsZero() && out.Status.Expires.Before(now):
		return nil, fmt.Errorf("its credentials have expired on %s; log in again", out.Status.Expires.UTC().Format(time.DateTime))
	}
	c := &credentials{token: out.Status.Token, expires: out.Status.Expires}
	if out.Status.Cert != "" {
		var err error
		if c.cert, err = keyPair([]byte(out.Status.Cert), []byte(out.Status.Key), now); err != nil {
			return nil, err
		}
	}
	return c, nil
}
