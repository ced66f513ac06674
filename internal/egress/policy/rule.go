package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A Kind limits the protocol of connections.
type Kind int

const (
	// Web allows TLS whose server name is the host, and HTTP requests to the host.
	Web Kind = iota
	// Raw allows any bytes. Only the address that is dialled is checked.
	Raw
)

// Custom is the Name of rules that are not presets.
const Custom = "custom"

// A Rule matches connections by host and port, and requests over plain HTTP also by
// method and path. Rules made by [ParseRule] and [NewRule] are valid.
type Rule struct {
	// Name is that of a preset, or Custom. It is one of a closed set, for metrics.
	Name string
	// Hosts has at least one pattern, one of which must match.
	Hosts []Pattern
	// Ports has at least one port, one of which must match.
	Ports []uint16
	// Kind limits the protocol.
	Kind Kind
	// Methods, if not empty, are the only methods, in upper case.
	Methods []string
	// Paths, if not empty, are the only paths. One that ends with a slash matches all
	// paths below it. In others each element is matched as by [path.Match].
	Paths []string
}

var webPorts = []uint16{80, 443}

// ParseRule parses an entry of a list of allowed or denied destinations:
//
//	pypi                     a preset
//	example.org              ports 443 and 80, TLS and HTTP
//	*.example.org:8443       one port
//	https://example.org      port 443; http:// port 80
//	tcp://db.example.org:5432 any protocol
//	203.0.113.0/24           literal addresses
func ParseRule(entry string) (Rule, error) {
	if r, ok := Preset(entry); ok {
		return r, nil
	}
	scheme, rest, ok := strings.Cut(entry, "://")
	if !ok {
		scheme, rest = "", entry
	}
	r := Rule{Name: Custom}
	switch scheme {
	case "":
		r.Ports = webPorts
	case "https":
		r.Ports = []uint16{443}
	case "http":
		r.Ports = []uint16{80}
	case "tcp":
		r.Kind = Raw
	default:
		return Rule{}, fmt.Errorf("network entry %q: unknown scheme %q; use https, http or tcp", entry, scheme)
	}
	host, port, err := cutPort(rest)
	if err != nil {
		return Rule{}, fmt.Errorf("network entry %q: %w", entry, err)
	}
	if port != 0 {
		r.Ports = []uint16{port}
	}
	if len(r.Ports) == 0 {
		return Rule{}, fmt.Errorf("network entry %q: tcp needs a port, as in tcp://db.example.org:5432", entry)
	}
	if !strings.ContainsAny(host, ".:") {
		return Rule{}, fmt.Errorf("network entry %q: neither a host name with a dot nor a preset (%s)", entry, strings.Join(PresetNames(), ", "))
	}
	p, err := ParsePattern(host)
	if err != nil {
		return Rule{}, fmt.Errorf("network entry %q: %w", entry, err)
	}
	r.Hosts = []Pattern{p}
	return r, nil
}

// cutPort splits "host", "host:port", "[::1]:port", "::1" or a network; port 0: none.
func cutPort(s string) (host string, port uint16, err error) {
	if _, err := netip.ParsePrefix(s); err == nil {
		return s, 0, nil
	}
	if _, ok := parseLiteral(s); ok {
		return s, 0, nil
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, 0, nil
	}
	port, err = ParsePort(s[i+1:])
	return s[:i], port, err
}

// ParsePort parses a port of 1 to 65535, digits only.
func ParsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", s)
	}
	return uint16(n), nil
}

const (
	maxListed = 64 // hosts, methods and paths of a rule, each
	maxPath   = 1024
)

// NewRule returns a rule for hosts, which are entries as for [ParseRule] but not
// presets, that are all of one kind and have the same ports. Methods and paths can only
// be seen in plain HTTP: with them, the ports are those for http, and an entry for https
// or tcp is an error.
func NewRule(hosts, methods, paths []string) (Rule, error) {
	switch {
	case len(hosts) == 0:
		return Rule{}, errors.New("the rule has no hosts")
	case len(hosts) > maxListed, len(methods) > maxListed, len(paths) > maxListed:
		return Rule{}, fmt.Errorf("the rule has more than %d hosts, methods or paths", maxListed)
	}
	limited := len(methods)+len(paths) > 0
	var rule Rule
	for i, entry := range hosts {
		r, err := ParseRule(entry)
		switch {
		case err != nil:
			return Rule{}, err
		case r.Name != Custom:
			return Rule{}, fmt.Errorf("rule: %q is a preset; list it in allow", entry)
		case limited && (r.Kind == Raw || strings.HasPrefix(entry, "https://") || slices.Equal(r.Ports, []uint16{443})):
			return Rule{}, fmt.Errorf("rule for %q: methods and paths can only be seen in plain HTTP; write http://%s, or leave them out", entry, r.Hosts[0])
		}
		if limited && slices.Equal(r.Ports, webPorts) {
			r.Ports = []uint16{80}
		}
		if i == 0 {
			rule = r
			continue
		}
		if r.Kind != rule.Kind || !slices.Equal(r.Ports, rule.Ports) {
			return Rule{}, fmt.Errorf("rule: %q and %q have different ports or kinds; write two rules", hosts[0], entry)
		}
		rule.Hosts = append(rule.Hosts, r.Hosts...)
	}
	for _, m := range methods {
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" || m == "CONNECT" {
			return Rule{}, fmt.Errorf("rule for %q: %q is not a method in upper case", hosts[0], m)
		}
	}
	for _, p := range paths {
		clean := path.Clean(p)
		if strings.HasSuffix(p, "/") && p != "/" {
			clean += "/"
		}
		if !strings.HasPrefix(p, "/") || clean != p || len(p) > maxPath || strings.ContainsAny(p, "%?#") {
			return Rule{}, fmt.Errorf("rule for %q: path %q: want a clean path from the root, without escapes and query", hosts[0], p)
		}
		if _, err := path.Match(p, ""); err != nil {
			return Rule{}, fmt.Errorf("rule for %q: path %q: %w", hosts[0], p, err)
		}
	}
	rule.Methods, rule.Paths = methods, paths
	return rule, nil
}

// RequestsOnly reports whether the rule has methods or paths, so that only requests that the
// host can read match.
func (r Rule) RequestsOnly() bool { return len(r.Methods)+len(r.Paths) > 0 }

// denies reports whether the rule, in a list of denied destinations, covers a host in its
// canonical form and a port.
func (r Rule) denies(host string, port uint16) bool {
	return (r.DeniesAllPorts() || slices.Contains(r.Ports, port)) && r.hasHost(host)
}

// DeniesAllPorts reports whether the rule, in a list of denied destinations, covers all ports: a
// preset, and an entry without scheme and port, does.
func (r Rule) DeniesAllPorts() bool {
	return r.Name != Custom || r.Kind == Web && slices.Equal(r.Ports, webPorts)
}

func (r Rule) hasHost(host string) bool {
	return slices.ContainsFunc(r.Hosts, func(p Pattern) bool { return p.Matches(host) })
}

// matches reports whether the rule covers a host in its canonical form and a port.
func (r Rule) matches(host string, port uint16) bool {
	return slices.Contains(r.Ports, port) && r.hasHost(host)
}

// allowsRequest reports whether a limited rule covers the request. urlPath is escaped,
// as in the request line.
func (r Rule) allowsRequest(method, urlPath string) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, method) {
		return false
	}
	if len(r.Paths) == 0 {
		return true
	}
	plain, ok := decodePath(urlPath)
	return ok && slices.ContainsFunc(r.Paths, func(p string) bool { return matchPath(p, plain) })
}

// decodePath decodes an escaped path once. It fails if servers could disagree about the
// meaning of the path.
func decodePath(escaped string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		c := escaped[i]
		if c == '%' {
			if i+2 >= len(escaped) {
				return "", false
			}
			n, err := strconv.ParseUint(escaped[i+1:i+3], 16, 8)
			if err != nil || n == '/' || n == '\\' || n == '%' || n < ' ' {
				return "", false
			}
			c, i = byte(n), i+2
		}
		if c == '\\' || c == ';' {
			return "", false
		}
		b.WriteByte(c)
	}
	plain := b.String()
	if !strings.HasPrefix(plain, "/") || strings.Contains(plain, "//") {
		return "", false
	}
	for segment := range strings.SplitSeq(plain, "/") {
		if segment == "." || segment == ".." {
			return "", false
		}
	}
	return plain, true
}

func matchPath(pattern, plain string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/"); ok {
		return strings.HasPrefix(plain, prefix+"/")
	}
	ok, err := path.Match(pattern, plain)
	return ok && err == nil
}

// String returns the preset's name, or the hosts with their ports, as in "tcp://db.example.org:5432".
func (r Rule) String() string {
	if r.Name != Custom {
		return r.Name
	}
	texts := make([]string, len(r.Hosts))
	for i, p := range r.Hosts {
		texts[i] = r.entry(p)
	}
	return strings.Join(texts, " ")
}

// entry returns one pattern with the rule's kind and ports, as [ParseRule] reads it.
func (r Rule) entry(p Pattern) string {
	text := p.String()
	if strings.Contains(text, ":") && !strings.Contains(text, "/") {
		text = "[" + text + "]"
	}
	switch {
	case r.Kind == Raw:
		text = "tcp://" + text
	case slices.Equal(r.Ports, webPorts):
		return text
	case slices.Equal(r.Ports, []uint16{443}):
		return "https://" + text
	case slices.Equal(r.Ports, []uint16{80}):
		return "http://" + text
	}
	ports := make([]string, len(r.Ports))
	for i, port := range r.Ports {
		ports[i] = strconv.Itoa(int(port))
	}
	return text + ":" + strings.Join(ports, ",")
}
