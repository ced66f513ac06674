package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// Certificates for user code, in bridgeDir.
const (
	caFile     = "ca.pem"        // of the authorities of the settings, while there are any
	bundleFile = "ca-bundle.pem" // the image's authorities, and those of the settings
)

// systemBundles are the places of an image's authorities.
var systemBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// maxBundle bounds the image's authorities: a bundle has 200 KB.
const maxBundle = 4 << 20

// nodeBundle names certificates that Node.js trusts beside those in its executable. So it
// trusts an authority of the machine, such as that of a company, as other programs do.
const nodeBundle = "NODE_EXTRA_CA_CERTS"

// bundleVariables name the bundle for programs and libraries.
var bundleVariables = []string{
	nodeBundle,
	"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE",
}

// programEnv is what the host's settings of the network mean for the environment of programs. It is immutable.
type programEnv struct {
	env     []string // beside that of the settings
	message []byte   // for running kernels: JSON
}

// systemBundle returns the path of the image's authorities; "" if it has none.
func systemBundle() string {
	for _, path := range systemBundles {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}

// openBundle makes bundleFile a link to the image's authorities, and returns the variables
// that name it. So a kernel that starts before the box has an authority of its settings finds
// it there later: libraries read the file for each connection, or each session.
// An image without authorities gets no variables.
func (a *agent) openBundle() []string {
	system := systemBundle()
	if system == "" {
		return nil
	}
	path := filepath.Join(bridgeDir, bundleFile)
	if err := replaceLink(system, path); err != nil {
		a.log.Warn("programs cannot trust the authorities of the settings", "err", err)
		return nil
	}
	env := make([]string, len(bundleVariables))
	for i, name := range bundleVariables {
		env[i] = name + "=" + path
	}
	return env
}

func replaceLink(target, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, path+".new"); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// configureTrust makes programs trust the authorities of n, and gives them the variables of
// n: those that start from now on, and kernels before their next run. The caller holds a.mu.
func (a *agent) configureTrust(n protocol.Network) error {
	if err := writeAuthority(n.CA); err != nil {
		return err
	}
	env := maps.Clone(n.Env)
	if n.CA != "" {
		if env == nil {
			env = make(map[string]string)
		}
		env[nodeBundle] = filepath.Join(bridgeDir, caFile)
		if systemBundle() != "" {
			env[nodeBundle] = filepath.Join(bridgeDir, bundleFile)
		}
	}
	t := &programEnv{}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(env[name], 0) {
			return failf(protocol.CodeInvalid, "the variable %.40q cannot be set", name)
		}
		t.env = append(t.env, name+"="+env[name])
	}
	var unset []string
	if old := a.programEnv.Load(); old != nil {
		for _, kv := range old.env {
			name, _, _ := strings.Cut(kv, "=")
			if _, ok := env[name]; !ok {
				unset = append(unset, name)
			}
		}
		if len(t.env) == 0 && len(unset) == 0 {
			return nil
		}
	} else if len(t.env) == 0 {
		return nil
	}
	message, err := json.Marshal(struct {
		Env   map[string]string `json:"env"`
		Unset []string          `json:"unset"`
		CA    string            `json:"ca"`
	}{env, unset, n.CA})
	if err != nil {
		return err
	}
	t.message = message
	a.programEnv.Store(t)
	return nil
}

// writeAuthority writes the certificates of the settings, "" for none, and the bundle with
// them. Everybody may read both.
func writeAuthority(ca string) error {
	path, bundle, system := filepath.Join(bridgeDir, caFile), filepath.Join(bridgeDir, bundleFile), systemBundle()
	if ca == "" {
		err := os.Remove(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // there was none
		case err != nil || system == "":
			return err
		}
		return replaceLink(system, bundle)
	}
	var all []byte
	if system != "" {
		var err error
		if all, err = os.ReadFile(system); err != nil {
			return err
		}
		if len(all) > maxBundle {
			return failf(protocol.CodeTooLarge, "%s has %d bytes, more than %d", system, len(all), maxBundle)
		}
		all = append(all, '\n')
	}
	if err := replaceFile(bundle, append(all, ca...)); err != nil {
		return err
	}
	return replaceFile(path, []byte(ca))
}

func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// environ returns env with the variables of t, which may be nil.
func (t *programEnv) environ(env []string) []string {
	if t == nil {
		return env
	}
	return mergeEnv(env, t.env)
}
