package secret

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress/redact"
	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
	"github.com/glovebox-dev/glovebox/internal/owned"
)

// Everyone, as an owner, stands for all owners.
const Everyone = "*"

// Bounds of definitions.
const (
	MaxSecrets = 32 // protocol.MaxNetworkEnv
	maxHosts   = 32 // of a secret
	maxHeaders = 16 // of a secret
)

// Definition says which requests get a secret. It does not have the value.
type Definition struct {
	Name    string   // lower-case letters, digits and single dashes; at most 32
	Owners  []string // as in the audit log, or Everyone; empty: the local user
	Hosts   []string // exact DNS names; no patterns
	Headers []string // the request headers with the secret; empty: Authorization
	As      string   // the environment variable for the placeholder; empty: none
	Like    string   // how the placeholder begins, for programs that check; empty: "gbx-secret-NAME-"
	File    string   // the file with the value, which only this user and root may read
	Env     string   // or the variable of the server's environment with the value
}

// secret is a definition with its value.
type secret struct {
	Definition
	value  string
	former []string // values that it had before, newest first; responses are masked from them, too
}

var (
	secretName   = lazyregexp.New(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	variableName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerName   = lazyregexp.New(`^[A-Za-z0-9!#$%&'*+.^_|~-]+$`)
	hostName     = lazyregexp.New(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	likePrefix   = lazyregexp.New(`^[A-Za-z0-9_-]{2,24}$`)
)

// forbiddenHeaders are those that HTTP itself uses.
var forbiddenHeaders = []string{
	"host", "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
	"transfer-encoding", "upgrade", "content-length", "content-type", "content-encoding", "accept-encoding", "expect",
	"range", "if-range", "cookie", "user-agent", "date",
}

// forbiddenVariables would change which programs run, or how they connect.
var forbiddenVariables = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "IFS", "ENV", "BASH_ENV", "NODE_OPTIONS", "NODE_EXTRA_CA_CERTS",
	"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "GIT_SSL_CAINFO", "PIP_CERT",
}

// normalize returns the definition with defaults and in lower case where case does not
// matter. The error says what is wrong with which value.
func (d Definition) normalize() (Definition, error) {
	if len(d.Name) > 32 || !secretName().MatchString(d.Name) {
		return d, fmt.Errorf("the name %.64q of a secret is not lower-case letters, digits and single dashes, at most 32", d.Name)
	}
	wrong := func(format string, args ...any) (Definition, error) {
		return d, fmt.Errorf("secret %q: %w", d.Name, fmt.Errorf(format, args...))
	}
	switch {
	case len(d.Hosts) == 0:
		return wrong("hosts is empty: name the hosts that get the secret, such as \"api.example.com\"")
	case len(d.Hosts) > maxHosts:
		return wrong("hosts has %d entries, more than %d", len(d.Hosts), maxHosts)
	case len(d.Headers) > maxHeaders:
		return wrong("headers has %d entries, more than %d", len(d.Headers), maxHeaders)
	case d.File == "" && d.Env == "":
		return wrong("neither file nor env says where its value is")
	case d.File != "" && d.Env != "":
		return wrong("both file and env are set: choose one")
	case d.As != "" && !variableName().MatchString(d.As):
		return wrong("as: %.64q is not the name of an environment variable", d.As)
	case slices.Contains(forbiddenVariables, strings.ToUpper(d.As)) || strings.HasPrefix(d.As, "LD_"):
		return wrong("as: the variable %s has another meaning for programs", d.As)
	case d.Like != "" && !likePrefix().MatchString(d.Like):
		return wrong("like: %.64q is not 2 to 24 letters, digits, dashes and underscores", d.Like)
	}
	hosts := make([]string, 0, len(d.Hosts))
	for _, h := range d.Hosts {
		name := strings.TrimSuffix(strings.ToLower(h), ".")
		_, numeric := netip.ParseAddr(name)
		switch {
		case strings.Contains(h, "*"):
			return wrong("hosts: %.255q is a pattern: a secret is for exact names", h)
		case strings.Contains(h, ":") || strings.Contains(h, "/"):
			return wrong("hosts: %.255q has more than a name: leave out scheme, port and path", h)
		case numeric == nil || len(name) > 253 || !hostName().MatchString(name):
			return wrong("hosts: %.255q is not a DNS name with a dot (international names in the form xn--…)", h)
		}
		if !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
		}
	}
	d.Hosts = hosts
	if len(d.Headers) == 0 {
		d.Headers = []string{"Authorization"}
	}
	for _, h := range d.Headers {
		if len(h) > 64 || !headerName().MatchString(h) {
			return wrong("headers: %.64q is not the name of a header", h)
		}
		if slices.Contains(forbiddenHeaders, strings.ToLower(h)) {
			return wrong("headers: %s cannot have a secret", h)
		}
	}
	if len(d.Owners) == 0 {
		d.Owners = []string{""}
	}
	return d, nil
}

// read returns the value of the secret. The error never has a part of it.
func (d Definition) read(env func(string) (string, bool)) (string, error) {
	var value, from string
	if d.File != "" {
		from = d.File
		data, err := readFile(d.File)
		if err != nil {
			return "", fmt.Errorf("secret %q: %w", d.Name, err)
		}
		value = string(data)
	} else {
		from = "the variable " + d.Env
		v, ok := env(d.Env)
		if !ok {
			return "", fmt.Errorf("secret %q: the environment of the server has no variable %s", d.Name, d.Env)
		}
		value = v
	}
	value = strings.Trim(value, "\r\n")
	if strings.Trim(value, " ") != value {
		return "", fmt.Errorf("secret %q: %s begins or ends with a space, which headers cannot have there", d.Name, from)
	}
	if n := len(value); n < redact.MinValue || n > redact.MaxValue {
		return "", fmt.Errorf("secret %q: %s has %d bytes: a value has between %d and %d", d.Name, from, n, redact.MinValue, redact.MaxValue)
	}
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			return "", fmt.Errorf("secret %q: byte %d of %s cannot be in a header: only visible ASCII and spaces can", d.Name, i+1, from)
		}
	}
	return value, nil
}

// readFile reads a file that only this user and root can read, write and replace.
func readFile(path string) ([]byte, error) {
	if err := owned.File(path); err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the value: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read the value: %s is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("read the value: other users can read %s (mode %04o): chmod 600 %s", path, info.Mode().Perm(), path)
	}
	data, err := io.ReadAll(io.LimitReader(f, redact.MaxValue+8))
	if err != nil {
		return nil, fmt.Errorf("read the value: %w", err)
	}
	return data, nil
}
