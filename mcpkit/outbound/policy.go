package outbound

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A Policy says where connections for servers that are not trusted may go. The
// zero value is the strictest: https to public addresses only. A nil *Policy
// allows everything, for servers that the user trusts.
//
// A Policy must not be changed once it is in use; it may then be used
// concurrently.
type Policy struct {
	// AllowHTTP lets requests go unencrypted.
	AllowHTTP bool
	// AllowLocalhost lets them go to this machine: to loopback addresses and to
	// names such as localhost, printer.local and the ones without a dot.
	AllowLocalhost bool
	// AllowPrivate lets them go to addresses that are not on the public Internet,
	// other than loopback ones. Multicast, broadcast and unspecified addresses are
	// refused all the same.
	AllowPrivate bool
	// AllowedHosts, if not empty, are the only names that requests may go to, with
	// the names below them. They allow nothing that another rule refuses.
	AllowedHosts []string
	// LookupTimeout bounds the look-up of a name; 0 means 2 s.
	LookupTimeout time.Duration
}

const defaultLookupTimeout = 2 * time.Second

func (p *Policy) lookupTimeout() time.Duration {
	if p == nil || p.LookupTimeout <= 0 {
		return defaultLookupTimeout
	}
	return p.LookupTimeout
}

// Check refuses what can be seen of a URL without looking its name up: scheme,
// credentials, name, literal address. The error is a [*Refusal] for server.
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
		if reason := p.judge(addr); reason != "" {
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

// canonical is a name as it is compared.
func canonical(host string) string {
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// localName reports whether a name is one of this machine or of its network.
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

// judge returns why an address is refused, or "".
func (p *Policy) judge(addr netip.Addr) Reason {
	if p == nil {
		return ""
	}
	addr = inner(addr)
	switch {
	case addr.IsUnspecified(), addr.IsMulticast(), addr == broadcast:
		return Private
	case addr.IsLoopback():
		if !p.AllowLocalhost {
			return Localhost
		}
	case !global(addr) && !p.AllowPrivate:
		return Private
	}
	return ""
}

// target is a URL as it is shown: where it leads, without credentials, path and
// query, which may hold secrets.
func target(u *url.URL) string {
	if u.Host == "" {
		return u.Scheme + ":"
	}
	return u.Scheme + "://" + u.Host
}
