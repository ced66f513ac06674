//go:build linux

package attack

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// imagesClass attacks the host of an operator who pulls an image.
func imagesClass() class {
	return class{
		name: "images", about: "A malicious container image or registry against the host of the operator who pulls the image.",
		attacks: []Attack{
			{Name: "path-traversal", Claim: "no file of an image is written outside of it, whatever its name", run: imagePaths},
			{Name: "link-traversal", Claim: "a file below a symbolic link of an image stays in the image", run: imageLinks},
			{Name: "hard-link", Claim: "a hard link of an image takes in no file of the host", run: imageHardLinks},
			{Name: "accounts-link", Claim: "the files that Glovebox adds to an image are read and written in the image only", run: imageAccounts},
			{Name: "devices", Claim: "an image brings no device nodes", run: imageDevices},
			{Name: "whiteouts", Claim: "a whiteout removes nothing outside of the image", run: imageWhiteouts},
			{Name: "bomb", Claim: "a layer that grows beyond all measure is refused", Alone: true, run: imageBomb},
			{Name: "many-layers", Claim: "an image with more layers than any real one is refused", run: imageManyLayers},
			{Name: "deep-paths", Claim: "an image whose directories are deeper than those of any real one is refused", run: imageDeepPaths},
			{Name: "link-farm", Claim: "links that multiply at each step are refused without delay", run: imageLinkFarm},
			{Name: "other-layer", Claim: "a layer that is not the one of the digest is refused", run: imageOtherLayer},
			{Name: "other-config", Claim: "a config that is not the one of the digest is refused, also if it fits the layers", run: imageOtherConfig},
			{Name: "other-manifest", Claim: "a registry cannot answer with another image than the digest names", run: imageOtherManifest},
			{Name: "large-manifest", Claim: "a manifest that is larger than any real one is refused", run: imageLargeManifest},
			{Name: "digest-as-path", Claim: "a digest is no path to a file of the host", run: imageDigestPath},
			{Name: "linked-blob", Claim: "a link in a layout leads to no file of the host", run: imageLinkedBlob},
			{Name: "foreign-layer", Claim: "an image sends the operator to no other address for a layer", run: imageForeignLayer},
			{Name: "redirect-to-metadata", Claim: "a registry cannot redirect a pull to an unencrypted service such as a cloud's metadata", run: imageRedirect},
			{Name: "token-at-metadata", Claim: "a registry cannot send a pull for a token to an unencrypted service such as a cloud's metadata", run: imageToken},
			{Name: "credentials-elsewhere", Claim: "a registry gets no credentials of another one", run: imageCredentials},
		},
	}
}

// hostileImages runs refuses for each image, by what it has.
func hostileImages(ctx context.Context, t *trial, images func(o *operator) map[string][]layerFile) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	for name, members := range images(o) {
		if err := o.refuses(ctx, name, draft{layers: [][]layerFile{members}}, nil); err != nil {
			return err
		}
	}
	return nil
}

func imagePaths(ctx context.Context, t *trial) error {
	return hostileImages(ctx, t, func(o *operator) map[string][]layerFile {
		return map[string][]layerFile{
			"a name with dots":       {{name: "../../host/planted", text: "x"}},
			"a name with later dots": {{name: "a/../../../host/planted", text: "x"}},
			"an absolute name":       {{name: o.path("host/planted"), text: "x"}},
			"a directory with dots":  {{name: "../../host/planted/", kind: tar.TypeDir}},
		}
	})
}

// imageLinks plants links, which may be in images, and files below them.
func imageLinks(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	for name, target := range map[string]string{"absolute": o.path("host"), "relative": "../../host", "deep": "./../.././../host"} {
		ref, err := o.layout(name, draft{layers: [][]layerFile{
			{{name: "out", kind: tar.TypeSymlink, text: target}},
			{{name: "out/planted", text: "x"}, {name: "out/secret", text: "replaced"}},
		}}, nil)
		if err != nil {
			return err
		}
		if _, err := o.pull(ctx, "state-"+name, ref, ""); err != nil {
			return fmt.Errorf("pull an image with the link %s: %w", name, err)
		}
		o.untouched("a file below the " + name + " link")
	}
	return nil
}

func imageHardLinks(ctx context.Context, t *trial) error {
	return hostileImages(ctx, t, func(o *operator) map[string][]layerFile {
		return map[string][]layerFile{
			"an absolute hard link":        {{name: "a", kind: tar.TypeLink, text: o.path("host/secret")}},
			"a hard link with dots":        {{name: "a", kind: tar.TypeLink, text: "../../host/secret"}},
			"a hard link through a link":   {{name: "l", kind: tar.TypeSymlink, text: "../../host"}, {name: "a", kind: tar.TypeLink, text: "l/secret"}},
			"a hard link to no such file":  {{name: "a", kind: tar.TypeLink, text: "none"}},
			"a hard link to its directory": {{name: "d/", kind: tar.TypeDir}, {name: "d/a", kind: tar.TypeLink, text: "d"}},
		}
	})
}

// imageAccounts has a link in place of /etc, and of the file with the accounts.
func imageAccounts(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	for name, members := range map[string][]layerFile{
		"etc":    {{name: "etc", kind: tar.TypeSymlink, text: o.path("host")}},
		"dots":   {{name: "etc", kind: tar.TypeSymlink, text: "../../host"}},
		"passwd": {{name: "etc/passwd", kind: tar.TypeSymlink, text: o.path("host/passwd")}},
	} {
		ref, err := o.layout(name, draft{layers: [][]layerFile{members}}, nil)
		if err != nil {
			return err
		}
		_, _ = o.pull(ctx, "state-"+name, ref, "") // it may be refused
		o.untouched("a link in place of " + name)
	}
	return nil
}

func imageDevices(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	ref, err := o.layout("devices", draft{layers: [][]layerFile{{
		{name: "dev/sda", kind: tar.TypeBlock}, {name: "mem", kind: tar.TypeChar}, {name: "tmp/null", kind: tar.TypeChar},
	}}}, nil)
	if err != nil {
		return err
	}
	info, err := o.pull(ctx, "state-devices", ref, "")
	if err != nil {
		return fmt.Errorf("pull an image with devices: %w", err)
	}
	t.check(info.Dropped == 3, "%d of 3 devices are left out", info.Dropped)
	o.untouched("devices")
	return nil
}

func imageWhiteouts(ctx context.Context, t *trial) error {
	if err := hostileImages(ctx, t, func(*operator) map[string][]layerFile {
		return map[string][]layerFile{
			"a whiteout of the parent":    {{name: "d/.wh..."}},
			"a whiteout of itself":        {{name: "d/.wh.."}},
			"a whiteout in the parent":    {{name: "../../host/.wh.secret"}},
			"an opaque host's directory":  {{name: "../../host/.wh..wh..opq"}},
			"a whiteout without any name": {{name: "d/.wh."}},
		}
	}); err != nil {
		return err
	}
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	ref, err := o.layout("linked", draft{layers: [][]layerFile{
		{{name: "out", kind: tar.TypeSymlink, text: o.path("host")}},
		{{name: "out/.wh.secret"}, {name: "out/.wh..wh..opq"}},
	}}, nil)
	if err != nil {
		return err
	}
	if _, err := o.pull(ctx, "state-linked", ref, ""); err != nil {
		return fmt.Errorf("pull an image with whiteouts below a link: %w", err)
	}
	o.untouched("whiteouts below a link")
	return nil
}

// imageBomb has 160 MB of zeros in as many KB.
func imageBomb(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	d := honest
	d.zeros = 160 << 20
	return o.refuses(ctx, "a bomb", d, nil)
}

func imageManyLayers(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	var d draft
	for range 200 {
		d.layers = append(d.layers, honest.layers[0])
	}
	return o.refuses(ctx, "200 layers", d, nil)
}

func imageDeepPaths(ctx context.Context, t *trial) error {
	return hostileImages(ctx, t, func(*operator) map[string][]layerFile {
		return map[string][]layerFile{"500 directories": {{name: strings.Repeat("d/", 500) + "f", text: "x"}}}
	})
}

// farmTime is how long an image with a farm of links may take: hundreds of times what an
// honest one takes.
const farmTime = 20 * time.Second

// imageLinkFarm has sixty links, each of which leads three times through the one before.
func imageLinkFarm(ctx context.Context, t *trial) error {
	farm := []layerFile{{name: "l0", kind: tar.TypeSymlink, text: "."}}
	for n := range 60 {
		farm = append(farm, layerFile{name: fmt.Sprint("l", n+1), kind: tar.TypeSymlink, text: fmt.Sprintf("l%d/l%d/l%d", n, n, n)})
	}
	began := time.Now()
	err := hostileImages(ctx, t, func(*operator) map[string][]layerFile {
		return map[string][]layerFile{"a farm of links": append(farm, layerFile{name: "l60/x", text: "x"})}
	})
	if took := time.Since(began); took > farmTime {
		t.late("it took %v", took.Round(time.Second))
	}
	return err
}

// blobFile returns the path of a blob in an OCI layout; without a digest, that of all blobs.
func blobFile(dir, digest string) string {
	return filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

// parts returns the manifest of the image.
func (p *packed) parts() (m struct {
	Config struct{ Digest string }
	Layers []struct{ Digest string }
}, err error) {
	return m, json.Unmarshal(p.blobs[p.manifest], &m)
}

// evil is an image that takes the place of another.
var evil = draft{layers: [][]layerFile{{{name: "etc/motd", text: "evil"}}}}

func imageOtherLayer(ctx context.Context, t *trial) error {
	return replaced(ctx, t, "another layer", func(dir string, p, other *packed) error {
		mine, err := p.parts()
		if err != nil {
			return err
		}
		theirs, err := other.parts()
		if err != nil {
			return err
		}
		return os.WriteFile(blobFile(dir, mine.Layers[0].Digest), other.blobs[theirs.Layers[0].Digest], 0o600)
	})
}

// imageOtherConfig replaces the layer together with the config, which has its digest.
func imageOtherConfig(ctx context.Context, t *trial) error {
	return replaced(ctx, t, "another config", func(dir string, p, other *packed) error {
		mine, err := p.parts()
		if err != nil {
			return err
		}
		theirs, err := other.parts()
		if err != nil {
			return err
		}
		if err := os.WriteFile(blobFile(dir, mine.Layers[0].Digest), other.blobs[theirs.Layers[0].Digest], 0o600); err != nil {
			return err
		}
		return os.WriteFile(blobFile(dir, mine.Config.Digest), other.blobs[theirs.Config.Digest], 0o600)
	})
}

// replaced checks that an honest image is refused after change has put parts of evil in
// the place of its own, under its digests.
func replaced(ctx context.Context, t *trial, name string, change func(dir string, p, other *packed) error) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	other, err := evil.pack()
	if err != nil {
		return err
	}
	return o.refuses(ctx, name, honest, func(dir string, p *packed) error { return change(dir, p, other) })
}

func imageDigestPath(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	_, stored, err := packLayer(honest.layers[0], 0)
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.path("layer"), stored, 0o600); err != nil {
		return err
	}
	d := honest
	d.manifest = func(m object) { m["layers"].([]any)[0].(object)["digest"] = "sha256:../../../layer" }
	return o.refuses(ctx, "a path for a digest", d, nil)
}

func imageLinkedBlob(ctx context.Context, t *trial) error {
	o, done, err := t.operator()
	if err != nil {
		return err
	}
	defer done()
	return o.refuses(ctx, "a link for a layer", honest, func(dir string, p *packed) error {
		m, err := p.parts()
		if err != nil {
			return err
		}
		digest := m.Layers[0].Digest
		if err := os.WriteFile(o.path("layer"), p.blobs[digest], 0o600); err != nil {
			return err
		}
		if err := os.Remove(blobFile(dir, digest)); err != nil {
			return err
		}
		return os.Symlink(o.path("layer"), blobFile(dir, digest))
	})
}
