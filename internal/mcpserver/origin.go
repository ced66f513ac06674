package mcpserver

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// hostAllowed refuses requests that reach us over loopback under another
// name: a web page that had its name resolved to 127.0.0.1.
func (s *Server) hostAllowed(r *http.Request) bool {
	if loopbackHost(r.Host) || slices.Contains(s.opts.AllowedHosts, r.Host) {
		return true
	}
	if name, _, err := net.SplitHostPort(r.Host); err == nil && slices.Contains(s.opts.AllowedHosts, name) {
		return true
	}
	if len(s.opts.AllowedHosts) > 0 {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return !ok || !loopbackHost(local.String())
}

func (s *Server) originAllowed(origin string) bool {
	if s.opts.CORS || slices.Contains(s.opts.AllowedOrigins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && loopbackHost(u.Host)
}

func loopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
