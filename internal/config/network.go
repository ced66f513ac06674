package config

import (
	"net/netip"
	"net/url"
	"regexp"
	"strings"
)

// maxNames bounds lists of origins and hosts, which every request is held
// against.
const maxNames = 100

// origins reads a list of origins of web pages, as browsers send them.
func origins(name, text string) ([]string, error) {
	return names(name, text, "origins such as https://app.example", func(item string) bool {
		u, err := url.Parse(item)
		return err == nil && (u.Scheme == "http" || u.Scheme == "https") && hostName(u.Host) && item == u.Scheme+"://"+u.Host
	})
}

// hosts reads a list of what may stand in a Host header.
func hosts(name, text string) ([]string, error) {
	return names(name, text, "host names, with or without a port", hostName)
}

// names reads a list of names, in which case does not count.
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

// A bound in the expression would cost every process 200 KB, those of boxes too.
var dnsName = regexp.MustCompile(`^[a-z0-9_][a-z0-9_.-]*$`)

// maxDNSName is what the DNS allows, in bytes.
const maxDNSName = 253

// hostName reports whether text is a name or an address, perhaps with a port.
func hostName(text string) bool {
	u, err := url.Parse("//" + text)
	if err != nil || u.Host != text || u.Hostname() == "" || strings.HasSuffix(text, ":") {
		return false
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return true
	}
	return len(u.Hostname()) <= maxDNSName && dnsName.MatchString(u.Hostname())
}
