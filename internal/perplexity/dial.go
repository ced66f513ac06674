package perplexity

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

// service names the API in the errors of package outbound.
const service = "perplexity"

// newHTTPClient returns a client that connects to the API only, or to the proxy in front
// of it. The key goes over HTTPS, through a proxy in a tunnel, or over HTTP to this
// machine without any proxy. A configured address may be
// private: it may be that of a company's gateway. Perplexity's own may not, whatever the
// name server says.
func newHTTPClient(base *url.URL, proxy string) (*http.Client, error) {
	own := base.Hostname() == "api.perplexity.ai"
	policy := &outbound.Policy{AllowHTTP: loopback(base.Hostname()), AllowLocalhost: !own, AllowPrivate: !own && base.Scheme == "https"}
	if err := policy.Check(service, base); err != nil {
		return nil, fmt.Errorf("the base URL of the search API cannot be used: %s", refusalText(err))
	}
	through, err := proxyOf(base, proxy)
	if err != nil {
		return nil, err
	}
	if through == nil || base.Scheme == "http" { // a proxy would carry the key in clear text
		return outbound.NewClient(service, policy, 0), nil // this package bounds bodies itself
	}
	// The proxy resolves the name, so the addresses cannot be checked here.
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyURL(through),
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    10 * time.Second,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the API redirects elsewhere") },
	}, nil
}

// proxyOf returns the proxy for the API: the configured one, or the environment's; nil if
// there is none.
func proxyOf(base *url.URL, proxy string) (*url.URL, error) {
	if proxy == "" {
		through, err := http.ProxyFromEnvironment(&http.Request{URL: base})
		if err != nil {
			return nil, errors.New("the proxy of the environment is not a URL") // it may contain a password
		}
		return through, nil
	}
	through, err := url.Parse(proxy)
	if err != nil || through.Host == "" {
		return nil, errors.New("the proxy for the search API is not a URL")
	}
	return through, nil
}

// loopback reports whether a host is certainly this machine.
func loopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// refusalText describes a refusal of the outbound policy.
func refusalText(err error) string {
	var r *outbound.Refusal
	if !errors.As(err, &r) {
		return err.Error()
	}
	if r.Reason == outbound.Unencrypted {
		return r.Target + " is not https, and the key would cross the network in clear text"
	}
	return r.Target + " is " + r.Why()
}

// refusalReason describes a refusal of the outbound policy without addresses.
func refusalReason(err error) string {
	var r *outbound.Refusal
	if !errors.As(err, &r) {
		return "it redirects too often"
	}
	return "its address is " + r.Why()
}
