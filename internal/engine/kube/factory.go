package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/engine/kube/kubeconfig"
	"github.com/glovebox-dev/glovebox/internal/fleet"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// Name is the name of the engine.
const Name = "kube"

// HelperPath and AgentPath are the programs of cmd/glovebox-pod and cmd/glovebox-guest in
// the image that Settings.HelperImage names; scripts/kube/image makes one.
const (
	HelperPath = "/glovebox/pod"
	AgentPath  = "/glovebox/agent"
)

// Settings are what the operator of a program selects. All may be empty.
type Settings struct {
	Context      string // of the kubeconfig; default: the current one
	Namespace    string // default: that of the context
	RuntimeClass string // default: DefaultRuntimeClass
	// HelperImage has the programs at HelperPath and AgentPath. Required to open the engine.
	HelperImage    *engine.Image
	Warm           int    // Config.Warm
	ProgramVersion string // Config.Program
	// Address is Config.Address, as fleet.ParseAddress reads it; "": none.
	Address string
}

// Factory returns the factory of the engine. It reads the settings when Probe and Open are
// called.
func Factory(s *Settings) engine.Factory {
	return engine.Factory{
		Name: Name,
		// The version is the cluster's, which only Open knows.
		Version: func() (string, time.Time) { return "cluster", time.Time{} },
		Probe:   func(ctx context.Context) []engine.Finding { return Probe(ctx, *s) },
		Open: func(ctx context.Context, cfg engine.Config) (engine.Engine, error) {
			var address netip.AddrPort
			if s.Address != "" {
				var err error
				if address, err = fleet.ParseAddress(s.Address); err != nil {
					return nil, fmt.Errorf("open the Kubernetes engine: %w: %w", err, engine.ErrInvalid)
				}
			}
			e, err := Open(ctx, Config{
				Cluster: kubeconfig.Options{Context: s.Context}, Namespace: s.Namespace, RuntimeClass: s.RuntimeClass,
				Helper: engine.Program{Path: HelperPath, Image: s.HelperImage}, SweepEvery: cfg.SweepEvery, Log: cfg.Log,
				Warm: s.Warm, ProgramVersion: s.ProgramVersion, Address: address,
			})
			if err != nil {
				return nil, err // not a nil *Engine
			}
			return e, nil
		},
	}
}

// part is a host or an element of the path of a repository.
const part = `[a-z0-9]+(?:[._-]+[a-z0-9]+)*`

var (
	// imageName is a repository, with a tag, which is ignored if there is a digest.
	imageName   = lazyregexp.New(`^(` + part + `(?::[0-9]{1,5}(?:/` + part + `)+|(?:/` + part + `)*))(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$`)
	imageDigest = lazyregexp.New(`^sha256:[0-9a-f]{64}$`)
	// label and subdomain are the names of Kubernetes' objects.
	label     = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	subdomain = lazyregexp.New(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
)

// maxImageName is the limit of registries.
const maxImageName = 255

// ParseImage parses the name of an image with its digest: nodes pull images by name, and a
// tag may mean another image on each node. The error wraps engine.ErrInvalid.
func ParseImage(text string) (*engine.Image, error) {
	name, digest, found := strings.Cut(strings.TrimPrefix(text, "docker://"), "@")
	m := imageName().FindStringSubmatch(name)
	switch {
	case m == nil || len(m[1]) > maxImageName:
		return nil, fmt.Errorf("image %q: nodes need an image of a registry, such as registry.example/team/python@sha256:…: %w", text, engine.ErrInvalid)
	case !found:
		return nil, fmt.Errorf("image %q has no digest, which tells nodes exactly what to run; print it with: crane digest %s; then name the image as %s@sha256:…: %w",
			text, name, m[1], engine.ErrInvalid)
	case !imageDigest().MatchString(digest):
		return nil, fmt.Errorf("image %q: the digest is not sha256: and 64 hexadecimal digits: %w", text, engine.ErrInvalid)
	}
	return &engine.Image{Name: m[1], Digest: digest}, nil
}

// RootOf returns the root of boxes that have the image.
func RootOf(i *engine.Image) engine.Root {
	// 128 bits of a SHA-256 identify the content.
	return engine.Root{Key: "image-" + strings.TrimPrefix(i.Digest, "sha256:")[:32], Image: i}
}

// Check returns an error that wraps engine.ErrInvalid if a name can be none of Kubernetes.
func (s Settings) Check() error {
	switch {
	case s.Namespace != "" && !label().MatchString(s.Namespace):
		return fmt.Errorf("namespace %q is no name of Kubernetes (a to z, 0 to 9 and -); list them with: kubectl get namespaces: %w", s.Namespace, engine.ErrInvalid)
	case s.RuntimeClass != "" && !subdomain().MatchString(s.RuntimeClass):
		return fmt.Errorf("runtime class %q is no name of Kubernetes; list them with: kubectl get runtimeclasses: %w", s.RuntimeClass, engine.ErrInvalid)
	}
	if s.Address != "" {
		if _, err := fleet.ParseAddress(s.Address); err != nil {
			return fmt.Errorf("%w; in a Pod it is $(POD_IP) and the port of the server: %w", err, engine.ErrInvalid)
		}
	}
	return nil
}

// namespaceOf returns the namespace of the settings or the context.
func (s Settings) namespaceOf(c *kubeconfig.Cluster) string { return cmp.Or(s.Namespace, c.Namespace) }
