package outbound

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// A Policy defines where connections for untrusted servers may go. The zero value is
// the strictest: https to public addresses only. A nil *Policy allows everything, for
// servers that the user trusts.
//
// A Policy must not be modified while it is in use. It may be used concurrently.
type Policy struct {
	// AllowHTTP allows unencrypted requests.
	AllowHTTP bool
	// AllowLocalhost allows requests to this machine: to loopback addresses, and to
	// names such as localhost, printer.local and those without a dot.
	AllowLocalhost bool
	// AllowPrivate allows addresses that are not on the public Internet, except for
	// loopback. Multicast, broadcast and unspecified addresses, and the metadata services
	// of clouds, are always refused.
	AllowPrivate bool
	// AllowedHosts, if not empty, lists the only names, with their subdomains, that
	// requests may go to. Other rules still apply.
	AllowedHosts []string
	// LookupTimeout bounds the lookup of a name; 0 means 2 s.
	LookupTimeout time.Duration
}

const defaultLookupTimeout = 2 * time.Second

func (p *Policy) lookupTimeout() time.Duration {
	if p == nil || p.LookupTimeout <= 0 {
		return defaultLookupTimeout
	}
	return p.LookupTimeout
}

// Check checks a URL without looking up its name: scheme, credentials, name and literal
// address. The error is a [*Refusal] for server.
func (p *Policy) Check(server string, u *url.URL) error {
	refuse := func(reason Reason) error { return &Refusal{Server: server, Reason: reason, Target: target(u)} }
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return refuse(NotHTTP)
	}
	if p == nil {
		return nil
	}
	if u.User != nil {
		return refuse(Credentials)
	}
	if u.Scheme != "https" && !p.AllowHTTP {
		return refuse(Unencrypted)
	}
	host := canonical(u.Hostname())
	if !p.allowed(host) {
		return refuse(NotListed)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if reason := p.refusal(addr); reason != "" {
			return refuse(reason)
		}
		return nil
	}
	if localName(host) && !p.AllowLocalhost {
		return refuse(Localhost)
	}
	return nil
}

func (p *Policy) allowed(host string) bool {
	return len(p.AllowedHosts) == 0 || slices.ContainsFunc(p.AllowedHosts, func(allowed string) bool {
		allowed = canonical(allowed)
		return allowed != "" && (host == allowed || strings.HasSuffix(host, "."+allowed))
	})
}

// canonical returns a name in the form used for comparison.
func canonical(host string) string {
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// localName reports whether a name is this machine's or of its network.
func localName(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".localdomain"} {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

// refusal returns why an address is refused, or an empty Reason.
func (p *Policy) refusal(addr netip.Addr) Reason {
	if p == nil {
		return ""
	}
	outer := addr.WithZone("").Unmap()
	addr = address.Inner(addr)
	switch {
	case address.IsMetadata(outer):
		return Metadata
	case addr.IsUnspecified(), addr.IsMulticast(), addr == broadcast:
		return Private
	case addr.IsLoopback():
		if !p.AllowLocalhost {
			return Localhost
		}
	case !p.AllowPrivate && (!global(addr) || !global(outer) && !address.IsNAT64(outer)):
		return Private
	}
	return ""
}

// target returns the part of a URL to show, without credentials, path and query.
func target(u *url.URL) string {
	if u.Host == "" {
		return u.Scheme + ":"
	}
	return u.Scheme + "://" + u.Host
}
