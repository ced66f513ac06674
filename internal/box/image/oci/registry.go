package oci

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// keychain has the credentials of docker and podman: in DOCKER_CONFIG, ~/.docker and
// podman's auth.json, and those of the helper programs that they name.
var keychain = authn.DefaultKeychain

// openRegistry finds an image in a registry.
// The context bounds also what is read of the layers.
func openRegistry(ctx context.Context, ref string) (*content, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, err
	}
	registry := parsed.Context().RegistryStr()
	img, err := remote.Image(parsed,
		remote.WithContext(ctx), remote.WithAuthFromKeychain(keychain), remote.WithUserAgent("glovebox"),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithTransport(&transport{plain: address.IsLoopback(registry), registry: registry, next: newTransport()}))
	if err != nil {
		return nil, &RegistryError{Registry: registry, Problem: problemOf(err), Err: err}
	}
	// part returns an error of what belongs to the image, which the registry has.
	part := func(err error) error {
		return &RegistryError{Registry: registry, Problem: problemOfPart(err, registry), Err: err}
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	if m.Config.Size > maxConfig {
		return nil, hostile("its config has %d bytes, at most %d are possible", m.Config.Size, maxConfig)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, part(err)
	}
	var layers []layer
	for _, d := range m.Layers {
		if len(d.URLs) > 0 {
			return nil, hostile("the layer %s is at another address", d.Digest)
		}
		layers = append(layers, layer{size: d.Size, open: func() (io.ReadCloser, error) {
			l, err := img.LayerByDigest(d.Digest)
			if err != nil {
				return nil, err
			}
			stored, err := l.Compressed() // verifies its digest and size
			if err != nil {
				return nil, part(err)
			}
			return stored, nil
		}})
	}
	return newContent(digest.String(), config, m.Config.Digest.String(), layers)
}

func newTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ResponseHeaderTimeout = time.Minute
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}

// transport refuses unencrypted connections, except to a registry on this machine, and
// manifests that are too large.
type transport struct {
	plain    bool
	registry string
	next     http.RoundTripper
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !(t.plain && r.URL.Host == t.registry) {
		return nil, fmt.Errorf("connect to %s: registries need HTTPS, except those on this machine", r.URL.Host)
	}
	res, err := t.next.RoundTrip(r)
	if err == nil && asksForManifest(r) {
		res.Body = &bounded{res.Body, maxManifest}
	}
	return res, err
}

// asksForManifest reports whether a request, or the one that led to it by redirects, is for
// a manifest or an index.
func asksForManifest(r *http.Request) bool {
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return strings.Contains(r.URL.Path, "/manifests/")
}

// bounded returns an error when more bytes are read than are left.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, hostile("its manifest has more than %d MiB", maxManifest>>20)
	}
	return n, err
}
