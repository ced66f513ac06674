//go:build linux

package attack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/image/oci"
)

// Attacks with images hold, also where boxes cannot be isolated.
func TestAttacks_Images(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, for which tests are short, keeps memory")
	}
	attacks, err := Select(All(), []string{"images"})
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), unisolated(t, nil), attacks)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Outcome != Held && r.Why != "skipped: the run has no program to start" && r.Why != "the run has no program to start" {
			t.Errorf("%s: %s %q %s", r.ID, r.Outcome, r.Broken, r.Why)
		}
	}
	if len(report.Left) > 0 {
		t.Errorf("left: %q", report.Left)
	}
}

// Attacks succeed against a program that unpacks images with a loop over their archives, and
// the judge notices.
func TestControl_Images(t *testing.T) {
	for id, want := range map[string]string{
		"path-traversal":        "was accepted",
		"link-traversal":        "the operator's directory has",
		"hard-link":             "has the operator's secret",
		"accounts-link":         "the operator's file has",
		"devices":               "devices are left out",
		"whiteouts":             "the operator's directory has",
		"bomb":                  "was accepted",
		"many-layers":           "was accepted",
		"deep-paths":            "was accepted",
		"other-layer":           "was accepted",
		"other-config":          "was accepted",
		"other-manifest":        "another image than that of the digest",
		"large-manifest":        "a manifest of 12 MB was accepted",
		"digest-as-path":        "was accepted",
		"linked-blob":           "was accepted",
		"foreign-layer":         "the other server got",
		"redirect-to-metadata":  "the other server got",
		"token-at-metadata":     "the other server got",
		"credentials-elsewhere": "the other registry got credentials",
	} {
		t.Run(id, func(t *testing.T) {
			cfg := unisolated(t, nil)
			cfg.images.pull = naivePull
			expectBroken(t, run(t, cfg, "images/"+id), want)
		})
	}
}

// naivePull unpacks the image into the state directory.
func naivePull(ctx context.Context, state, ref, dockerConfig string) (oci.Info, error) {
	blob, manifest := naiveLayout(strings.TrimPrefix(ref, "oci:"))
	if !strings.HasPrefix(ref, "oci:") {
		blob, manifest = naiveRegistry(ctx, ref, dockerConfig)
	}
	text, err := manifest()
	if err != nil {
		return oci.Info{}, err
	}
	var m struct {
		Layers []struct {
			Digest string
			URLs   []string
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return oci.Info{}, err
	}
	root := filepath.Join(state, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return oci.Info{}, err
	}
	for _, l := range m.Layers {
		stored, err := blob(l.Digest)
		if len(l.URLs) > 0 {
			stored, err = fetched(ctx, l.URLs[0], "")
		}
		if err != nil {
			return oci.Info{}, err
		}
		if err := naiveUnpack(root, stored); err != nil {
			return oci.Info{}, err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return oci.Info{}, err
	}
	f, err := os.OpenFile(filepath.Join(root, "etc/passwd"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return oci.Info{}, err
	}
	_, err = io.WriteString(f, "user:x:1000:1000::/:\n")
	return oci.Info{}, errors.Join(err, f.Close())
}

func naiveLayout(dir string) (blob func(string) ([]byte, error), manifest func() ([]byte, error)) {
	blob = func(digest string) ([]byte, error) {
		return os.ReadFile(filepath.Join(dir, "blobs/sha256", strings.TrimPrefix(digest, "sha256:")))
	}
	return blob, func() ([]byte, error) {
		text, err := os.ReadFile(filepath.Join(dir, "index.json"))
		if err != nil {
			return nil, err
		}
		var index struct{ Manifests []struct{ Digest string } }
		if err := json.Unmarshal(text, &index); err != nil {
			return nil, err
		}
		return blob(index.Manifests[0].Digest)
	}
}

func naiveRegistry(ctx context.Context, ref, dockerConfig string) (blob func(string) ([]byte, error), manifest func() ([]byte, error)) {
	name, tag, digested := strings.Cut(ref, "@")
	if !digested {
		name, tag = ref[:strings.LastIndex(ref, ":")], "1"
	}
	host, path, _ := strings.Cut(name, "/")
	base := "http://" + host + "/v2/" + path
	credentials := ""
	if text, err := os.ReadFile(filepath.Join(dockerConfig, "config.json")); err == nil {
		credentials = string(regexp.MustCompile(`"auth":"([^"]*)"`).FindSubmatch(text)[1])
	}
	return func(digest string) ([]byte, error) { return fetched(ctx, base+"/blobs/"+digest, credentials) },
		func() ([]byte, error) { return fetched(ctx, base+"/manifests/"+tag, credentials) }
}

var realm = regexp.MustCompile(`^Bearer realm="([^"]*)"`)

// fetched gets an address with redirects, and does what it is asked for authentication.
func fetched(ctx context.Context, url, credentials string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if credentials != "" {
		req.Header.Set("Authorization", "Basic "+credentials)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if at := realm.FindStringSubmatch(res.Header.Get("WWW-Authenticate")); at != nil {
		_, err := fetched(ctx, at[1], credentials)
		return nil, fmt.Errorf("%s answered %s, the token %v", url, res.Status, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", url, res.Status)
	}
	return io.ReadAll(res.Body)
}

func naiveUnpack(root string, stored []byte) error {
	zip, err := gzip.NewReader(bytes.NewReader(stored))
	if err != nil {
		return err
	}
	in := func(name string) string {
		if filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(root, name)
	}
	for r := tar.NewReader(zip); ; {
		hdr, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		path := in(hdr.Name)
		dir, base := filepath.Dir(path), filepath.Base(hdr.Name)
		switch {
		case base == ".wh..wh..opq":
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
			}
			continue
		case strings.HasPrefix(base, ".wh."):
			if err := os.RemoveAll(filepath.Join(dir, strings.TrimPrefix(base, ".wh."))); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		switch hdr.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(hdr.Linkname, path)
		case tar.TypeLink:
			err = os.Link(in(hdr.Linkname), path)
		case tar.TypeReg:
			var f *os.File
			if f, err = os.Create(path); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			return err
		}
	}
}
