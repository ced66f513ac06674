package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const (
	// maxMetadata bounds a document of metadata, and any other answer.
	maxMetadata = 1 << 20
	// maxIssuers bounds the authorization servers of a resource.
	maxIssuers = 32
)

// An authority is who gives tokens for a server, and for what.
type authority struct {
	resource string   // as the server calls itself
	scopes   []string // that it has
	meta     oauthex.AuthServerMeta
}

// challenge is what a server says with its refusal.
type challenge struct {
	metadata string // where to read about it
	scopes   []string
	code     string
}

func challengeOf(h http.Header) (c challenge) {
	// What cannot be read says nothing: servers are sloppy here.
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

// errNoMetadata says that a server tells nothing of a login.
var errNoMetadata = errors.New("it does not say where to log in")

// discover finds out who gives tokens for the server. Of several it takes the one
// that is preferred. Unless the server has asked for a login it must say where.
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
		// Of servers of the revision 2025-03-26 the origin is the issuer.
		issuer = (&url.URL{Scheme: h.url.Scheme, Host: h.url.Host}).String()
	}
	if h.server.Resource != "" {
		a.resource = h.server.Resource
	}
	if h.server.MetadataURL != "" {
		found, err := h.metadata(ctx, h.server.MetadataURL, &a.meta)
		if err == nil && !found {
			err = errors.New("there is none")
		}
		if err == nil && a.meta.Issuer == "" {
			err = errors.New("it names no issuer")
		}
		if err != nil {
			return nil, fmt.Errorf("read metadata of the authorization server at %s: %w", shown(h.server.MetadataURL), err)
		}
		return a, h.checkEndpoints(&a.meta)
	}
	if issuer == "" {
		return nil, errors.New("its metadata names no authorization server")
	}
	found, err := h.issuer(ctx, issuer, &a.meta)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read metadata of the authorization server %s: %w", shown(issuer), err)
	case found:
		return a, h.checkEndpoints(&a.meta)
	case resource != nil:
		return nil, fmt.Errorf("the authorization server %s has no metadata", shown(issuer))
	case !asked:
		return nil, errNoMetadata
	}
	a.meta = oauthex.AuthServerMeta{
		Issuer: issuer, AuthorizationEndpoint: issuer + "/authorize", TokenEndpoint: issuer + "/token", RegistrationEndpoint: issuer + "/register",
		CodeChallengeMethodsSupported: []string{pkceMethod},
	}
	return a, h.checkEndpoints(&a.meta)
}

// resource reads what the server says of itself: where it has told so, or at the
// places for it; nil if nowhere.
func (h *Handler) resource(ctx context.Context, told string) (*oauthex.ProtectedResourceMetadata, error) {
	const wellKnown = "/.well-known/oauth-protected-resource"
	u := url.URL{Scheme: h.url.Scheme, Host: h.url.Host, Path: wellKnown}
	places := []string{u.String()}
	if path := strings.TrimLeft(h.url.Path, "/"); path != "" {
		u.Path, u.RawQuery = wellKnown+"/"+path, h.url.RawQuery
		places = slices.Insert(places, 0, u.String())
	}
	if told != "" {
		places = slices.Insert(places, 0, told)
	}
	for _, place := range places {
		var m oauthex.ProtectedResourceMetadata
		found, err := h.metadata(ctx, place, &m)
		if err == nil && found && !h.within(m.Resource) {
			err = fmt.Errorf("it is about %q", said(m.Resource))
		}
		if err != nil {
			return nil, fmt.Errorf("read metadata of the server at %s: %w", shown(place), err)
		}
		if found {
			return &m, nil
		}
	}
	return nil, nil
}

// within reports whether a resource is the server or what it is a part of: some
// servers give tokens for all that is at their origin.
func (h *Handler) within(resource string) bool {
	u, err := url.Parse(resource)
	if err != nil || u.Fragment != "" || u.User != nil || origin(u) != origin(h.url) {
		return false
	}
	whole, part := strings.TrimRight(h.url.Path, "/")+"/", strings.TrimRight(u.Path, "/")+"/"
	return strings.HasPrefix(whole, part) && (u.RawQuery == "" || u.RawQuery == h.url.RawQuery)
}

func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// issuer reads the metadata of an authorization server, wherever it has them.
func (h *Handler) issuer(ctx context.Context, issuer string, into *oauthex.AuthServerMeta) (bool, error) {
	u, err := url.Parse(issuer)
	if err != nil || u.RawQuery != "" || u.Fragment != "" {
		return false, errors.New("that is no issuer")
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
			return false, fmt.Errorf("they are of %q; if you trust that, give the address of its metadata in oauth.authServerMetadataUrl", said(m.Issuer))
		case found:
			*into = m
			return true, nil
		}
	}
	return false, nil
}

// sameIssuer compares issuers as they stand, but for a slash at the end, about
// which many servers do not agree with themselves.
func sameIssuer(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// metadata reads a document of JSON. It returns false if there is none: some
// servers have a page for people in its place.
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
		return false, fmt.Errorf("it answers %d", res.StatusCode)
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "application/json" {
		return false, nil
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxMetadata)).Decode(into); err != nil {
		return false, fmt.Errorf("it is no JSON of at most %d bytes: %w", maxMetadata, err)
	}
	return true, nil
}

// do is what all requests go through. Its error does not have the address, which may
// hold secrets.
func (h *Handler) do(req *http.Request) (*http.Response, error) {
	res, err := h.hc.Do(req)
	return res, bare(err)
}

func bare(err error) error {
	var about *url.Error
	if errors.As(err, &about) {
		return about.Err
	}
	return err
}

// checkEndpoints holds all that will be called to the rules.
func (h *Handler) checkEndpoints(m *oauthex.AuthServerMeta) error {
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
			return fmt.Errorf("use the %s of the authorization server %s: %w", e.name, shown(m.Issuer), err)
		}
	}
	return nil
}

// checkURL holds an address that somebody else has given to the policy, and to
// being no less safe than that of the server: what is not encrypted is so by the
// user's word, and stays on this machine or that of the server.
func (h *Handler) checkURL(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return errors.New("it is no url")
	case address == "":
		return errors.New("there is none")
	case u.User != nil:
		return errors.New("it has a user in it")
	}
	if err := h.policy.Check(h.server.Name, u); err != nil {
		return err
	}
	if u.Scheme == "http" && (h.url.Scheme != "http" || !loopback(u.Hostname()) && !strings.EqualFold(u.Hostname(), h.url.Hostname())) {
		return fmt.Errorf("%s is not https", shown(address))
	}
	return nil
}

// loopback reports whether a name is one of this machine.
func loopback(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// shown is an address without what may be secret.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that is no url"
	}
	return said((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
}
