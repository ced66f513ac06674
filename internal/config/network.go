package config

import (
	"net/netip"
	"net/url"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// maxNames bounds lists of origins and hosts, since every request is compared with
// them.
const maxNames = 100

// origins parses a list of web origins, as browsers send them.
func origins(name, text string) ([]string, error) {
	return names(name, text, "origins such as https://app.example", func(item string) bool {
		u, err := url.Parse(item)
		return err == nil && (u.Scheme == "http" || u.Scheme == "https") && hostName(u.Host) && item == u.Scheme+"://"+u.Host
	})
}

// hosts parses a list of values of the Host header.
func hosts(name, text string) ([]string, error) {
	return names(name, text, "host names, with or without a port", hostName)
}

// names parses a list of names, case-insensitively.
func names(name, text, what string, good func(string) bool) ([]string, error) {
	items, err := list(name, text)
	if err != nil {
		return nil, err
	}
	if len(items) > maxNames {
		return nil, invalid("%s must be at most %d %s, got %d", name, maxNames, what, len(items))
	}
	for i, item := range items {
		items[i] = strings.TrimSuffix(strings.ToLower(item), "/")
		if !good(items[i]) {
			return nil, invalid("%s must be %s, got '%s'", name, what, item)
		}
	}
	return items, nil
}

// dnsName has no bound on the length: it would cost every process 200 KB, including
// those of boxes.
var dnsName = lazyregexp.New(`^[a-z0-9_][a-z0-9_.-]*$`)

// maxDNSName is the limit of the DNS, in bytes.
const maxDNSName = 253

// hostName reports whether text is a host name or an address, with or without a port.
func hostName(text string) bool {
	u, err := url.Parse("//" + text)
	if err != nil || u.Host != text || u.Hostname() == "" || strings.HasSuffix(text, ":") {
		return false
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return true
	}
	return len(u.Hostname()) <= maxDNSName && dnsName().MatchString(u.Hostname())
}
