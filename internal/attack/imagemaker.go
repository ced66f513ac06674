//go:build linux

package attack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box/image/oci"
)

// object is a value of JSON.
type object = map[string]any

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// layerFile is an entry of a layer.
type layerFile struct {
	name string
	kind byte   // default: a file
	text string // content, or target of a link
}

// packed is an image as it is stored.
type packed struct {
	blobs    map[string][]byte // by digest
	manifest string            // digest of the manifest
}

// draft is an image whose description an attacker can still change.
type draft struct {
	layers           [][]layerFile
	zeros            int64 // bytes of a file of zeros in the first layer
	config, manifest func(object)
}

// honest is an image that must be accepted, so that a refusal of another one is about what
// that one has in addition.
var honest = draft{layers: [][]layerFile{{{name: "etc/motd", text: "honest"}}}}

// pack makes the image.
func (d draft) pack() (*packed, error) {
	p := &packed{blobs: make(map[string][]byte)}
	diffs, layers := []any{}, []any{}
	for n, members := range d.layers {
		zeros := int64(0)
		if n == 0 {
			zeros = d.zeros
		}
		diff, stored, err := packLayer(members, zeros)
		if err != nil {
			return nil, err
		}
		diffs = append(diffs, diff)
		layers = append(layers, p.add(layerType, stored))
	}
	config := object{"os": "linux", "architecture": runtime.GOARCH, "config": object{}, "rootfs": object{"type": "layers", "diff_ids": diffs}}
	if d.config != nil {
		d.config(config)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	manifest := object{"schemaVersion": 2, "mediaType": manifestType, "config": p.add("application/vnd.oci.image.config.v1+json", text), "layers": layers}
	if d.manifest != nil {
		d.manifest(manifest)
	}
	if text, err = json.Marshal(manifest); err != nil {
		return nil, err
	}
	p.manifest = p.add(manifestType, text)["digest"].(string)
	return p, nil
}

// add adds a blob and returns its descriptor.
func (p *packed) add(mediaType string, b []byte) object {
	digest := digestOf(b)
	p.blobs[digest] = b
	return object{"mediaType": mediaType, "digest": digest, "size": len(b)}
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// packLayer returns the digest of a layer's archive, and the archive compressed.
func packLayer(members []layerFile, zeros int64) (diff string, stored []byte, err error) {
	var out bytes.Buffer
	sum, zip := sha256.New(), gzip.NewWriter(&out)
	w := tar.NewWriter(io.MultiWriter(sum, zip))
	for _, m := range members {
		hdr := &tar.Header{Name: m.name, Typeflag: m.kind, Mode: 0o755, Devmajor: 8}
		switch m.kind {
		case 0:
			hdr.Typeflag, hdr.Size = tar.TypeReg, int64(len(m.text))
		case tar.TypeSymlink, tar.TypeLink:
			hdr.Linkname = m.text
		}
		if err := w.WriteHeader(hdr); err != nil {
			return "", nil, err
		}
		if hdr.Size > 0 {
			if _, err := io.WriteString(w, m.text); err != nil {
				return "", nil, err
			}
		}
	}
	if zeros > 0 {
		if err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: zeros}); err != nil {
			return "", nil, err
		}
		for block := make([]byte, 1<<20); zeros > 0; zeros -= int64(len(block)) {
			if _, err := w.Write(block[:min(zeros, int64(len(block)))]); err != nil {
				return "", nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return "", nil, err
	}
	if err := zip.Close(); err != nil {
		return "", nil, err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), out.Bytes(), nil
}

// layout writes the image as an OCI layout.
func (p *packed) layout(dir string) error {
	if err := os.MkdirAll(blobFile(dir, ""), 0o700); err != nil {
		return err
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []any{object{"mediaType": manifestType, "digest": p.manifest, "size": len(p.blobs[p.manifest])}}})
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": index} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	for digest, b := range p.blobs {
		if err := os.WriteFile(blobFile(dir, digest), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// serve answers as a registry that has the image under every name.
func (p *packed) serve(w http.ResponseWriter, r *http.Request) {
	_, digest, blob := strings.Cut(r.URL.Path, "/blobs/")
	switch {
	case blob && p.blobs[digest] != nil:
		_, _ = w.Write(p.blobs[digest]) // the client may have left
	case strings.Contains(r.URL.Path, "/manifests/"):
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", p.manifest)
		_, _ = w.Write(p.blobs[p.manifest])
	case r.URL.Path == "/v2/":
	default:
		http.NotFound(w, r)
	}
}

// weakImages weakens what the attacks with images meet. The zero value does not.
type weakImages struct {
	// pull pulls an image into a state directory instead of the store.
	pull func(ctx context.Context, state, ref, dockerConfig string) (oci.Info, error)
}

// operator pulls images of an attacker. Beside the state directory is one of the operator
// that nothing may read or change.
type operator struct {
	*trial
	dir    string
	secret string
}

func (t *trial) operator() (*operator, func(), error) {
	dir, done, err := t.scratch()
	if err != nil {
		return nil, nil, err
	}
	o := &operator{t, dir, "secret-" + t.nonce}
	err = os.Mkdir(o.path("host"), 0o700)
	for _, name := range []string{"secret", "passwd"} {
		if err == nil {
			err = os.WriteFile(o.path("host/"+name), []byte(o.secret), 0o600)
		}
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return o, done, nil
}

func (o *operator) path(name string) string { return filepath.Join(o.dir, filepath.FromSlash(name)) }

// pull pulls an image into a state directory. With a directory of credentials it is the
// program that pulls, because the environment names that directory.
func (o *operator) pull(ctx context.Context, state, ref, dockerConfig string) (oci.Info, error) {
	if o.cfg.images.pull != nil {
		return o.cfg.images.pull(ctx, o.path(state), ref, dockerConfig)
	}
	if dockerConfig != "" {
		cmd := o.rig.server.program(ctx, o.dir, "image", "pull", ref)
		cmd.Env = append(cmd.Environ(), "DOCKER_CONFIG="+dockerConfig, "GLOVEBOX_STATE_DIR="+o.path(state))
		if out, err := cmd.CombinedOutput(); err != nil {
			return oci.Info{}, fmt.Errorf("%w: %.300s", err, printable(string(out)))
		}
		return oci.Info{}, nil
	}
	if err := os.MkdirAll(o.path(state), 0o700); err != nil {
		return oci.Info{}, err
	}
	store, err := oci.Open(o.path(state))
	if err != nil {
		return oci.Info{}, err
	}
	parsed, err := oci.ParseRef(ref)
	if err != nil {
		return oci.Info{}, err
	}
	return store.Pull(ctx, parsed, nil)
}

// layout makes the image as an OCI layout in a directory of that name; change, if it is not
// nil, alters the layout afterwards. It returns the reference of the image.
func (o *operator) layout(name string, d draft, change func(dir string, p *packed) error) (ref string, err error) {
	p, err := d.pack()
	if err != nil {
		return "", err
	}
	dir := o.path("from-" + name)
	if err := p.layout(dir); err != nil {
		return "", err
	}
	if change != nil {
		if err := change(dir, p); err != nil {
			return "", err
		}
	}
	return "oci:" + dir, nil
}

// takes checks that the image can be pulled, so that the refusal of another one is no
// coincidence.
func (o *operator) takes(ctx context.Context, ref string) error {
	if _, err := o.pull(ctx, "state-honest", ref, ""); err != nil {
		return fmt.Errorf("pull an honest image: %w", err)
	}
	return nil
}

// refuses checks that an image in an OCI layout is refused and leaves nothing behind, where
// an honest one is taken.
func (o *operator) refuses(ctx context.Context, name string, d draft, change func(dir string, p *packed) error) error {
	good, err := o.layout("honest", honest, nil)
	if err == nil {
		err = o.takes(ctx, good)
	}
	if err != nil {
		return err
	}
	ref, err := o.layout(name, d, change)
	if err != nil {
		return err
	}
	_, err = o.pull(ctx, "state-"+name, ref, "")
	o.check(err != nil, "the image with %s was accepted", name)
	o.untouched(name)
	return nil
}

// untouched checks that the operator's directory is as it was, and that no file of the state
// has the secret.
func (o *operator) untouched(name string) {
	entries, err := os.ReadDir(o.path("host"))
	o.check(err == nil && len(entries) == 2, "%s: the operator's directory has %v, %v", name, entries, err)
	for _, file := range []string{"secret", "passwd"} {
		text, err := os.ReadFile(o.path("host/" + file))
		o.check(err == nil && string(text) == o.secret, "%s: the operator's file has %q, %v", name, text, err)
	}
	states, err := filepath.Glob(o.path("state-*"))
	o.check(err == nil, "list the state directories: %v", err)
	for _, state := range states {
		err := filepath.WalkDir(state, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			o.check(info.Mode()&os.ModeDevice == 0, "%s: %s is a device", name, path)
			if !info.Mode().IsRegular() {
				return nil
			}
			text, err := os.ReadFile(path)
			o.check(!bytes.Contains(text, []byte(o.secret)), "%s: %s has the operator's secret", name, path)
			return err
		})
		o.check(err == nil, "%s: look through the state directory: %v", name, err)
	}
}
