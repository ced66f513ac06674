package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound/address"
)

// hostAllowed reports whether the Host header names this server, which keeps out web
// pages that resolve their own name to our address (DNS rebinding). Without a list, an
// address is a name of the server, except over loopback. With authentication such a page is
// harmless, since it has no token: beyond loopback, any name is accepted. Probes of other
// machines may use any name: /health and /ready have nothing to protect.
func (s *Server) hostAllowed(r *http.Request) bool {
	host := strings.ToLower(r.Host)
	if r.URL.Path == "/health" || r.URL.Path == "/ready" {
		return true
	}
	if address.IsLoopback(host) || slices.Contains(s.opts.AllowedHosts, host) {
		return true
	}
	if u, err := url.Parse(s.opts.PublicURL); err == nil && isHostOf(u, host) {
		return true
	}
	if _, port, err := net.SplitHostPort(host); err == nil && slices.Contains(s.opts.AllowedHosts, strings.TrimSuffix(host, ":"+port)) {
		return true
	}
	if len(s.opts.AllowedHosts) > 0 {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if ok && address.IsLoopback(local.String()) {
		return false
	}
	return !ok || s.opts.Auth != nil || isAddress(host)
}

// isHostOf reports whether a Host header names the host and the port of a URL. Either may leave out
// the default port of the URL's scheme.
func isHostOf(u *url.URL, host string) bool {
	port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
	return u.Host != "" && strings.EqualFold(strings.TrimSuffix(u.Host, port), strings.TrimSuffix(host, port))
}

// isAddress reports whether a Host header is an IP address, with or without a port.
func isAddress(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// originAllowed reports whether pages of an origin may send requests. Pages of this
// machine may; cors decides whether they can read the answers.
func (s *Server) originAllowed(origin string) bool {
	if s.opts.CORS || s.originListed(origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && address.IsLoopback(u.Host)
}

func (s *Server) originListed(origin string) bool {
	return slices.Contains(s.opts.AllowedOrigins, strings.ToLower(origin))
}
