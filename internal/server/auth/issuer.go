package auth

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

const (
	// fetchTimeout bounds one fetch of keys, two or three small documents, and so how
	// long a request with an unknown key waits.
	fetchTimeout = 10 * time.Second
	// refetchGap is the minimum time between two fetches that requests cause. It
	// protects the issuer from a flood of tokens with made-up keys.
	refetchGap = 5 * time.Second
	// renewAfter is the age at which keys are fetched again even if none is missing. It
	// bounds how long a key that the issuer withdrew stays trusted.
	renewAfter = 15 * time.Minute
	// staleAfter is the maximum age of keys while the issuer is unreachable.
	staleAfter = 24 * time.Hour
	// retryFirst and retryLast bound the exponential backoff after a failed fetch.
	retryFirst = time.Second
	retryLast  = time.Minute
	// maxDocument and maxKeys bound the documents of an issuer. The largest known have
	// about 20 KB and a dozen keys.
	maxDocument = 1 << 20
	maxKeys     = 64
)

// IssuerConfig is an OpenID Connect issuer whose tokens are accepted.
type IssuerConfig struct {
	URL          string   // equal to the iss claim; https, or http on loopback
	Audiences    []string // the aud claim must contain one of them
	SubjectClaim string   // identifies the bearer; "" is sub
	ScopeClaim   string   // lists scopes; "" is scope
	// RequireScopes makes tokens that name none of our scopes allow nothing. Without
	// it they allow [Use].
	RequireScopes bool
}

// issuer caches the keys of an issuer.
type issuer struct {
	cfg     IssuerConfig
	v       *Verifier
	client  *http.Client
	timeout time.Duration // of a fetch

	mu       sync.Mutex
	keys     []jose.JSONWebKey // guarded by mu
	fetched  time.Time         // guarded by mu; when keys were fetched; zero: never
	tried    time.Time         // guarded by mu; when a fetch began
	fetching chan struct{}     // guarded by mu; not nil while a fetch is under way; closed at its end
	fault    error             // guarded by mu; of the last fetch
}

func newIssuer(c IssuerConfig, v *Verifier) (*issuer, error) {
	c.SubjectClaim = cmp.Or(c.SubjectClaim, "sub")
	c.ScopeClaim = cmp.Or(c.ScopeClaim, "scope")
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || strings.ContainsAny(c.URL, " \t\r\n") {
		return nil, &SetupError{
			Err: fmt.Errorf("issuer %q: not a URL such as https://login.example.org/realm", clip(c.URL)),
			Fix: "pass the URL that the issuer's tokens have as iss to --oidc-issuer",
		}
	}
	if err := private(u); err != nil {
		return nil, &SetupError{
			Err: fmt.Errorf("issuer %q: %w", clip(c.URL), err),
			Fix: "pass the https URL of the issuer to --oidc-issuer: the keys that its tokens are checked with come from there; http will do on a loopback address only",
		}
	}
	if len(c.Audiences) == 0 {
		return nil, fmt.Errorf("issuer %q: no audience: any token of the issuer would do, also those meant for other services", clip(c.URL))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = 64 << 10
	transport.MaxIdleConns = 2
	return &issuer{cfg: c, v: v, timeout: fetchTimeout, client: &http.Client{
		Transport: transport,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 {
				return errors.New("too many redirects")
			}
			return private(r.URL)
		},
	}}, nil
}

// private returns an error for a URL that an attacker on the network could answer.
func private(u *url.URL) error {
	if u.Scheme == "https" {
		return nil
	}
	host := u.Hostname()
	addr, err := netip.ParseAddr(host)
	if u.Scheme == "http" && (host == "localhost" || err == nil && addr.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("%s://%s is not safe: it must be https", clip(u.Scheme), clip(u.Host))
}

// run keeps the keys fresh until the Verifier is closed.
func (i *issuer) run() {
	defer i.client.CloseIdleConnections()
	retry := retryFirst
	for {
		<-i.refresh()
		i.mu.Lock()
		err := i.fault
		i.mu.Unlock()
		wait := renewAfter
		if err != nil {
			wait, retry = retry, min(2*retry, retryLast)
			i.v.log.Warn("issuer's keys not fetched", logkey.Issuer, i.cfg.URL, logkey.Error, err, logkey.Retry, wait)
		} else {
			retry = retryFirst
		}
		select {
		case <-time.After(wait):
		case <-i.v.base.Done():
			i.mu.Lock()
			under := i.fetching
			i.mu.Unlock()
			if under != nil {
				<-under
			}
			return
		}
	}
}

// refresh starts a fetch of the keys unless one is under way. The channel is closed
// at its end.
func (i *issuer) refresh() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.refreshLocked()
}

func (i *issuer) refreshLocked() <-chan struct{} {
	if i.fetching != nil {
		return i.fetching
	}
	done := make(chan struct{})
	i.fetching, i.tried = done, i.v.now()
	go func() { // run waits for this goroutine
		defer close(done)
		ctx, cancel := context.WithTimeout(i.v.base, i.timeout)
		defer cancel()
		keys, err := i.fetch(ctx)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.fetching, i.fault = nil, err
		if err == nil {
			i.keys, i.fetched = keys, i.v.now()
		}
	}()
	return done
}

// find returns the issuer's keys with an id, or all keys if the token names none. For
// an unknown id it fetches the keys again, at most every refetchGap.
func (i *issuer) find(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	for waited := false; ; waited = true {
		i.mu.Lock()
		known := !i.fetched.IsZero() && i.v.now().Sub(i.fetched) < staleAfter
		if known {
			if keys := i.keysLocked(id); len(keys) > 0 {
				i.mu.Unlock()
				return keys, nil
			}
		}
		if waited || i.fetching == nil && i.v.now().Sub(i.tried) < refetchGap || i.v.base.Err() != nil {
			i.mu.Unlock()
			if !known {
				return nil, fmt.Errorf("%w: %s", ErrUnavailable, i.cfg.URL)
			}
			return nil, refuse(UnknownKey, "the token is signed with a key that %s does not publish", i.cfg.URL)
		}
		done := i.refreshLocked()
		i.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (i *issuer) keysLocked(id string) []jose.JSONWebKey {
	if id == "" {
		return i.keys
	}
	return slices.DeleteFunc(slices.Clone(i.keys), func(k jose.JSONWebKey) bool { return k.KeyID != id })
}

// fetch discovers the URL of the issuer's keys and reads them.
func (i *issuer) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	var about struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	var err error
	for _, at := range wellKnown(i.cfg.URL) {
		if err = i.get(ctx, at, &about); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("discover issuer: %w", err)
	}
	if about.Issuer != i.cfg.URL {
		return nil, fmt.Errorf("discover issuer: it calls itself %q, not %q; set the issuer exactly so if that is right", clip(about.Issuer), i.cfg.URL)
	}
	u, err := url.Parse(about.JWKSURI)
	if err == nil {
		err = private(u)
	}
	if err != nil {
		return nil, fmt.Errorf("discover issuer: jwks_uri %q: %w", clip(about.JWKSURI), err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := i.get(ctx, u.String(), &set); err != nil {
		return nil, fmt.Errorf("fetch keys: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("fetch keys: %d keys, at most %d are taken", len(set.Keys), maxKeys)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		// Issuers publish keys for other purposes and of types that we do not know.
		if k.UnmarshalJSON(raw) == nil && usable(&k) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("fetch keys: none of the %d keys of %s is for signatures that are accepted", len(set.Keys), clip(u.String()))
	}
	return keys, nil
}

// wellKnown returns the URLs of an issuer's metadata by OpenID Connect Discovery and
// by RFC 8414.
func wellKnown(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	base := u.Scheme + "://" + u.Host
	return []string{base + path + "/.well-known/openid-configuration", base + "/.well-known/oauth-authorization-server" + path}
}

// usable reports whether tokens may be signed with a key.
func usable(k *jose.JSONWebKey) bool {
	if !k.Valid() || !k.IsPublic() || k.Use != "" && k.Use != "sig" {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return key.N.BitLen() >= 2048 && key.N.BitLen() <= 8192
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// get reads a JSON document.
func (i *issuer) get(ctx context.Context, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	res, err := i.client.Do(req)
	if err != nil {
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			return fmt.Errorf("get %s: no answer within %v", clip(at), i.timeout)
		}
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", clip(at), clip(res.Status))
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	switch {
	case err != nil:
		return fmt.Errorf("get %s: %w", clip(at), err)
	case len(data) > maxDocument:
		return fmt.Errorf("get %s: larger than %d bytes", clip(at), maxDocument)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("get %s: not the JSON that was expected: %w", clip(at), err)
	}
	return nil
}
