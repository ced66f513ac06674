package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// hostAllowed refuses requests under a name that is not ours: those of a web
// page that had its own name resolved to our address. Without a list, that can
// be told only of requests that reach us over loopback.
func (s *Server) hostAllowed(r *http.Request) bool {
	host := strings.ToLower(r.Host)
	if loopbackHost(host) || slices.Contains(s.opts.AllowedHosts, host) {
		return true
	}
	if _, port, err := net.SplitHostPort(host); err == nil && slices.Contains(s.opts.AllowedHosts, strings.TrimSuffix(host, ":"+port)) {
		return true
	}
	if len(s.opts.AllowedHosts) > 0 {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return !ok || !loopbackHost(local.String())
}

// originAllowed refuses requests that pages of other sites make, to whose
// browser we may be closer than to them. Pages of this machine may ask; whether
// they may read the answer is for CORS to say.
func (s *Server) originAllowed(origin string) bool {
	if s.opts.CORS || s.originListed(origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && loopbackHost(u.Host)
}

func (s *Server) originListed(origin string) bool {
	return slices.Contains(s.opts.AllowedOrigins, strings.ToLower(origin))
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
