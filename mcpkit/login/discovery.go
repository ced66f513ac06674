package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/net/publicsuffix"

	"github.com/glovebox-dev/glovebox/mcpkit/outbound"
)

const (
	// maxMetadata bounds a metadata document, and any other response.
	maxMetadata = 1 << 20
	// maxIssuers bounds the authorization servers of a resource.
	maxIssuers = 32
)

// An authority is an authorization server, and what to request there for a server.
type authority struct {
	resource string   // the server's name for itself
	scopes   []string // that the server supports
	meta     oauthex.AuthServerMeta
}

// challenge holds the fields of a WWW-Authenticate header that matter here.
type challenge struct {
	metadata string // address of the server's metadata
	scopes   []string
	code     string
}

func parseChallenge(h http.Header) (c challenge) {
	// An unreadable header means no information: servers are sloppy here.
	all, _ := oauthex.ParseWWWAuthenticate(h.Values("WWW-Authenticate"))
	for _, one := range all {
		if one.Scheme != "bearer" {
			continue
		}
		c.metadata = one.Params["resource_metadata"]
		c.scopes = strings.Fields(one.Params["scope"])
		c.code = one.Params["error"]
		break
	}
	return c
}

// errNoMetadata reports that a server publishes nothing about its authorization server.
var errNoMetadata = errors.New("the server does not name its authorization server")

// discover finds the authorization server. If the server names several, it takes the
// preferred one. asked says whether the server required a login. If not, it has to publish
// metadata.
func (h *Handler) discover(ctx context.Context, c challenge, asked bool, preferred string) (*authority, error) {
	resource, err := h.resource(ctx, c.metadata)
	if err != nil {
		return nil, err
	}
	a := &authority{resource: h.url.String()}
	issuer := ""
	if resource != nil {
		a.resource, a.scopes = resource.Resource, resource.ScopesSupported
		servers := resource.AuthorizationServers
		if len(servers) > maxIssuers {
			return nil, fmt.Errorf("it names more than %d authorization servers", maxIssuers)
		}
		if i := slices.IndexFunc(servers, func(s string) bool { return preferred != "" && sameIssuer(s, preferred) }); i >= 0 {
			issuer = servers[i]
		} else if len(servers) > 0 {
			issuer = servers[0]
		}
	} else {
		// A server of the revision 2025-03-26 is its own authorization server.
		issuer = (&url.URL{Scheme: h.url.Scheme, Host: h.url.Host}).String()
	}
	if h.server.Resource != "" {
		a.resource = h.server.Resource
	}
	if h.server.MetadataURL != "" {
		found, err := h.metadata(ctx, h.server.MetadataURL, &a.meta)
		if err == nil && !found {
			err = errors.New("not found")
		}
		if err == nil && a.meta.Issuer == "" {
			err = errors.New("it has no issuer")
		}
		if err != nil {
			return nil, fmt.Errorf("read metadata of the authorization server at %s: %w", showURL(h.server.MetadataURL), err)
		}
		return a, h.checkEndpoints(&a.meta)
	}
	if issuer == "" {
		return nil, errors.New("its metadata names no authorization server")
	}
	found, err := h.issuer(ctx, issuer, &a.meta)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read metadata of the authorization server %s: %w", showURL(issuer), err)
	case found:
		return a, h.checkEndpoints(&a.meta)
	case resource != nil:
		return nil, fmt.Errorf("the authorization server %s has no metadata", showURL(issuer))
	case !asked:
		return nil, errNoMetadata
	}
	a.meta = oauthex.AuthServerMeta{
		Issuer: issuer, AuthorizationEndpoint: issuer + "/authorize", TokenEndpoint: issuer + "/token", RegistrationEndpoint: issuer + "/register",
		CodeChallengeMethodsSupported: []string{pkceMethod},
	}
	return a, h.checkEndpoints(&a.meta)
}

// resource reads the server's metadata, from the address in its challenge or the
// well-known ones. It returns nil if there is none.
func (h *Handler) resource(ctx context.Context, challenged string) (*oauthex.ProtectedResourceMetadata, error) {
	const wellKnown = "/.well-known/oauth-protected-resource"
	u := url.URL{Scheme: h.url.Scheme, Host: h.url.Host, Path: wellKnown}
	places := []string{u.String()}
	if path := strings.TrimLeft(h.url.Path, "/"); path != "" {
		u.Path, u.RawQuery = wellKnown+"/"+path, h.url.RawQuery
		places = slices.Insert(places, 0, u.String())
	}
	if challenged != "" {
		places = slices.Insert(places, 0, challenged)
	}
	for _, place := range places {
		var m oauthex.ProtectedResourceMetadata
		found, err := h.metadata(ctx, place, &m)
		if err == nil && found && !h.within(m.Resource) {
			err = fmt.Errorf("it describes %q", quote(m.Resource))
		}
		if err != nil {
			return nil, fmt.Errorf("read metadata of the server at %s: %w", showURL(place), err)
		}
		if found {
			return &m, nil
		}
	}
	return nil, nil
}

// within reports whether a resource contains the server: some servers issue tokens for
// their whole origin.
func (h *Handler) within(resource string) bool {
	u, err := url.Parse(resource)
	if err != nil || u.Fragment != "" || u.User != nil || origin(u) != origin(h.url) {
		return false
	}
	server, prefix := strings.TrimRight(h.url.Path, "/")+"/", strings.TrimRight(u.Path, "/")+"/"
	return strings.HasPrefix(server, prefix) && (u.RawQuery == "" || u.RawQuery == h.url.RawQuery)
}

func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// issuer reads the metadata of an authorization server from its well-known addresses.
func (h *Handler) issuer(ctx context.Context, issuer string, into *oauthex.AuthServerMeta) (bool, error) {
	u, err := url.Parse(issuer)
	if err != nil || u.RawQuery != "" || u.Fragment != "" {
		return false, errors.New("invalid issuer")
	}
	const oauth, openID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
	path := strings.Trim(u.EscapedPath(), "/")
	base := u.Scheme + "://" + u.Host
	places := []string{base + oauth, base + openID}
	if path != "" {
		places = []string{base + oauth + "/" + path, base + openID + "/" + path, base + "/" + path + openID}
	}
	for _, place := range places {
		var m oauthex.AuthServerMeta
		found, err := h.metadata(ctx, place, &m)
		switch {
		case err != nil:
			return false, err
		case found && !sameIssuer(m.Issuer, issuer):
			return false, fmt.Errorf("it belongs to the issuer %q; if you trust that one, set oauth.authServerMetadataUrl to the address of its metadata", quote(m.Issuer))
		case found:
			*into = m
			return true, nil
		}
	}
	return false, nil
}

// sameIssuer compares issuers, ignoring a trailing slash: many servers are inconsistent
// about it.
func sameIssuer(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// metadata reads a JSON document. It returns false if there is none; some servers
// answer with an HTML page instead.
func (h *Handler) metadata(ctx context.Context, place string, into any) (bool, error) {
	if err := h.checkURL(place); err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", "application/json")
	res, err := h.do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	if res.StatusCode >= 400 && res.StatusCode < 500 {
		return false, nil
	}
	if res.StatusCode != http.StatusOK {
		return false, fmt.Errorf("the server answered %d", res.StatusCode)
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "application/json" {
		return false, nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxMetadata)).Decode(into); err != nil {
		return false, fmt.Errorf("it is not JSON of at most %d bytes: %w", maxMetadata, err)
	}
	return true, nil
}

// do sends a request. Its error omits the address, which may contain secrets.
func (h *Handler) do(req *http.Request) (*http.Response, error) {
	res, err := h.hc.Do(req)
	return res, withoutURL(err)
}

func withoutURL(err error) error {
	var about *url.Error
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}

// checkEndpoints checks the addresses of all endpoints that may be called.
func (h *Handler) checkEndpoints(m *oauthex.AuthServerMeta) error {
	if err := checkMixUp(m); err != nil {
		return err
	}
	for _, e := range []struct {
		name, url string
		optional  bool
	}{
		{"authorization_endpoint", m.AuthorizationEndpoint, h.server.ClientCredentials},
		{"token_endpoint", m.TokenEndpoint, false},
		{"registration_endpoint", m.RegistrationEndpoint, true},
		{"revocation_endpoint", m.RevocationEndpoint, true},
	} {
		if e.url == "" && e.optional {
			continue
		}
		if err := h.checkURL(e.url); err != nil {
			return fmt.Errorf("use the %s of the authorization server %s: %w", e.name, showURL(m.Issuer), err)
		}
	}
	return nil
}

// checkMixUp refuses an authorization server that sends the user to the login page of
// one site and the resulting code to another. It could have the user approve a login at
// somebody else's page and take the code: a mix-up attack, which the issuer in the
// response prevents only if the other server supports it.
func checkMixUp(m *oauthex.AuthServerMeta) error {
	page := siteOf(m.AuthorizationEndpoint)
	if page == "" || page == siteOf(m.Issuer) || page == siteOf(m.TokenEndpoint) {
		return nil
	}
	return fmt.Errorf("the authorization server %s sends the user to the login page of another site, %s, and the result to %s",
		showURL(m.Issuer), showURL(m.AuthorizationEndpoint), showURL(m.TokenEndpoint))
}

// siteOf returns the registrable domain of an address, or its host if there is none; ""
// if there is no host.
func siteOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if site, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil && net.ParseIP(host) == nil {
		return site
	}
	return host
}

// namedPolicy returns the policy for an address that a server named. The user trusts the
// server, not the addresses that it names: a server on the Internet may not have this
// program send requests to this machine, to private addresses or to the metadata
// services of clouds. The hosts of the definition are the user's choice.
func (h *Handler) namedPolicy(u *url.URL) *outbound.Policy {
	if h.policy != nil {
		return h.policy
	}
	for _, text := range []string{h.url.String(), h.server.MetadataURL} {
		if own, err := url.Parse(text); err == nil && text != "" && strings.EqualFold(own.Hostname(), u.Hostname()) {
			return nil
		}
	}
	refused := func(p outbound.Policy) bool { return p.Check(h.server.Name, h.url) != nil }
	p := &outbound.Policy{AllowHTTP: true} // see checkURL
	p.AllowLocalhost = refused(*p)
	p.AllowPrivate = p.AllowLocalhost
	return p
}

// checkURL checks an address that a server named: the policy has to allow it, and it
// has to use https, unless the user configured the server with http and the address is
// on that server's host or on this machine.
func (h *Handler) checkURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return errors.New("invalid URL")
	case address == "":
		return errors.New("it is missing")
	case strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("it has characters that are invalid in a URL")
	case u.User != nil:
		return errors.New("it contains credentials")
	}
	if err := h.namedPolicy(u).Check(h.server.Name, u); err != nil {
		return err
	}
	if u.Scheme == "http" && (h.url.Scheme != "http" || !loopback(u.Hostname()) && !strings.EqualFold(u.Hostname(), h.url.Hostname())) {
		return fmt.Errorf("%s is not https", showURL(address))
	}
	return nil
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// showURL returns an address without the parts that may contain secrets.
func showURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an invalid URL"
	}
	return quote((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
}
