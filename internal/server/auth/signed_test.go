package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/glovebox-dev/glovebox/internal/polltest"
)

// realm is an issuer on loopback, with keys of its own.
type realm struct {
	*httptest.Server
	fetches atomic.Int32 // of the keys
	down    atomic.Bool

	mu      sync.Mutex
	keys    []jose.JSONWebKey // guarded by mu: published
	answer  http.HandlerFunc  // guarded by mu: in the place of the keys; nil: the keys
	calls   string            // guarded by mu: what it calls itself; "": its URL
	jwksURI string            // guarded by mu: where it says the keys are; "": where they are
}

func newRealm(tb testing.TB) *realm {
	r := &realm{}
	mux := http.NewServeMux()
	mux.HandleFunc("/realm/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.down.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		calls, at := r.calls, r.jwksURI
		if calls == "" {
			calls = r.issuer()
		}
		if at == "" {
			at = r.URL + "/keys"
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": calls, "jwks_uri": at, "more": []int{1}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, req *http.Request) {
		r.fetches.Add(1)
		r.mu.Lock()
		keys, answer := r.keys, r.answer
		r.mu.Unlock()
		if answer != nil {
			answer(w, req)
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: keys})
	})
	r.Server = httptest.NewServer(mux)
	tb.Cleanup(r.Close)
	return r
}

func (r *realm) issuer() string { return r.URL + "/realm" }

func (r *realm) publish(keys ...signer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = nil
	for _, k := range keys {
		r.keys = append(r.keys, jose.JSONWebKey{Key: k.key.(crypto.Signer).Public(), KeyID: k.id, Algorithm: string(k.alg), Use: "sig"})
	}
}

// set changes how the realm answers.
func (r *realm) set(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// signer is a private key.
type signer struct {
	id  string
	alg jose.SignatureAlgorithm
	key any
}

func newRSA(tb testing.TB, id string, bits int) signer {
	tb.Helper()
	k, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		tb.Fatal(err)
	}
	return signer{id, jose.RS256, k}
}

func newEC(tb testing.TB, id string) signer {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return signer{id, jose.ES256, k}
}

type set = map[string]any

// sign makes a token; headers are added to the usual ones.
func (s signer) sign(tb testing.TB, claims, headers set) string {
	tb.Helper()
	opts := &jose.SignerOptions{ExtraHeaders: map[jose.HeaderKey]any{"typ": "JWT"}}
	for k, v := range headers {
		opts.ExtraHeaders[jose.HeaderKey(k)] = v
	}
	if s.id != "" {
		if _, there := headers["kid"]; !there {
			opts.ExtraHeaders["kid"] = s.id
		}
	}
	made, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: s.key}, opts)
	if err != nil {
		tb.Fatal(err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		tb.Fatal(err)
	}
	signed, err := made.Sign(body)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

// raw makes a token with any header and signature.
func raw(header, claims set, signature string) string {
	part := func(v any) string {
		b, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return part(header) + "." + part(claims) + "." + base64.RawURLEncoding.EncodeToString([]byte(signature))
}

// with returns the claims of a valid token with changes; nil removes a claim.
func (r *realm) with(changes set) set {
	now := time.Now()
	c := set{"iss": r.issuer(), "aud": "boxes", "sub": "alice", "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	for k, v := range changes {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func open(tb testing.TB, c Config) *Verifier {
	tb.Helper()
	v, err := Open(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(v.Close)
	return v
}

// soon verifies a token until the keys have been fetched.
func soon(tb testing.TB, v *Verifier, token string) *Identity {
	tb.Helper()
	var id *Identity
	polltest.Until(tb, 30*time.Second, "the keys are there", func() (ok bool) {
		var err error
		if id, err = v.Verify(tb.Context(), token); err != nil && !errors.Is(err, ErrUnavailable) {
			tb.Fatalf("verify: %v", err)
		}
		return err == nil
	})
	return id
}

func TestVerify_SignedTokens(t *testing.T) {
	r := newRealm(t)
	rs, es, small := newRSA(t, "rsa", 2048), newEC(t, "ec"), newRSA(t, "small", 1024)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed := signer{"ed", jose.EdDSA, edKey}
	stranger := newEC(t, "ec")
	r.publish(rs, es, ed, small)
	v := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes", "https://boxes.example/mcp"}}}})

	id := soon(t, v, rs.sign(t, r.with(nil), nil))
	if id.Owner != r.issuer()+" alice" || id.Name != "alice" || !id.Scopes.Has(Use) || id.Scopes.Has(Metrics) || id.Expires.IsZero() || id.Revoked().Err() != nil {
		t.Errorf("got %+v", id)
	}
	for name, token := range map[string]string{
		"ec":               es.sign(t, r.with(nil), nil),
		"ed25519":          ed.sign(t, r.with(nil), nil),
		"an access token":  es.sign(t, r.with(nil), set{"typ": "at+jwt"}),
		"many audiences":   es.sign(t, r.with(set{"aud": []string{"x", "https://boxes.example/mcp"}}), nil),
		"within the skew":  es.sign(t, r.with(set{"exp": time.Now().Add(-10 * time.Second).Unix(), "nbf": time.Now().Add(10 * time.Second).Unix()}), nil),
		"no kid":           signer{"", es.alg, es.key}.sign(t, r.with(nil), nil),
		"fraction in time": es.sign(t, r.with(set{"exp": float64(time.Now().Unix()) + 100.5}), nil),
	} {
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	public, err := x509.MarshalPKIXPublicKey(rs.key.(*rsa.PrivateKey).Public())
	if err != nil {
		t.Fatal(err)
	}
	good := es.sign(t, r.with(nil), nil)
	parts := strings.Split(good, ".")
	evil := jose.JSONWebKey{Key: stranger.key.(*ecdsa.PrivateKey).Public(), KeyID: "evil", Algorithm: "ES256"}
	for _, c := range []struct {
		name, token string
		want        Reason
	}{
		{"expired", es.sign(t, r.with(set{"exp": time.Now().Add(-time.Minute).Unix()}), nil), Expired},
		{"not yet", es.sign(t, r.with(set{"nbf": time.Now().Add(time.Minute).Unix()}), nil), NotYet},
		{"issued in the future", es.sign(t, r.with(set{"iat": time.Now().Add(time.Minute).Unix()}), nil), NotYet},
		{"without an end", es.sign(t, r.with(set{"exp": nil}), nil), NoTimeLimit},
		{"an end that is a text", es.sign(t, r.with(set{"exp": "never"}), nil), Malformed},
		{"wrong audience", es.sign(t, r.with(set{"aud": "mail"}), nil), Audience},
		{"no audience", es.sign(t, r.with(set{"aud": nil}), nil), Audience},
		{"audience that begins alike", es.sign(t, r.with(set{"aud": "boxes2"}), nil), Audience},
		{"wrong issuer", es.sign(t, r.with(set{"iss": "https://evil.example"}), nil), Issuer},
		{"issuer with a slash more", es.sign(t, r.with(set{"iss": r.issuer() + "/"}), nil), Issuer},
		{"no issuer", es.sign(t, r.with(set{"iss": nil}), nil), Issuer},
		{"no subject", es.sign(t, r.with(set{"sub": nil}), nil), NoSubject},
		{"empty subject", es.sign(t, r.with(set{"sub": ""}), nil), NoSubject},
		{"subject with a space", es.sign(t, r.with(set{"sub": "a b"}), nil), NoSubject},
		{"subject with a line", es.sign(t, r.with(set{"sub": "a\nb"}), nil), NoSubject},
		{"long subject", es.sign(t, r.with(set{"sub": strings.Repeat("a", 256)}), nil), NoSubject},
		{"alg none", raw(set{"alg": "none", "typ": "JWT"}, r.with(nil), ""), Algorithm},
		{"alg None", raw(set{"alg": "None", "kid": "ec"}, r.with(nil), ""), Algorithm},
		{"no alg", raw(set{"kid": "ec"}, r.with(nil), "x"), Algorithm},
		{"HS256 with the public key as secret", signer{"rsa", jose.HS256, public}.sign(t, r.with(nil), nil), Algorithm},
		{"RS256 said, of an EC key", raw(set{"alg": "RS256", "kid": "ec"}, r.with(nil), "x"), Signature},
		{"ES256 said, of an RSA key", raw(set{"alg": "ES256", "kid": "rsa"}, r.with(nil), strings.Repeat("x", 64)), Signature},
		{"PS256 with a key for RS256", signer{"rsa", jose.PS256, rs.key}.sign(t, r.with(nil), nil), Signature},
		{"another's signature", stranger.sign(t, r.with(nil), nil), Signature},
		{"no signature", parts[0] + "." + parts[1] + ".", Signature},
		{"other claims", parts[0] + "." + strings.Split(es.sign(t, r.with(set{"sub": "bob"}), nil), ".")[1] + "." + parts[2], Signature},
		{"zero signature", raw(set{"alg": "ES256", "kid": "ec"}, r.with(nil), string(make([]byte, 64))), Signature},
		{"a weak key", small.sign(t, r.with(nil), nil), UnknownKey},
		{"a key in the header", signer{"", jose.ES256, stranger.key}.sign(t, r.with(nil), set{"jwk": evil}), Signature},
		{"a key in the header, with its id", signer{"", jose.ES256, stranger.key}.sign(t, r.with(nil), set{"jwk": evil, "kid": "evil"}), UnknownKey},
		{"keys elsewhere", stranger.sign(t, r.with(nil), set{"jku": "http://127.0.0.1:1/keys"}), Signature},
		{"kid that is a path", es.sign(t, r.with(nil), set{"kid": "../../../../etc/passwd"}), UnknownKey},
		{"kid that is a URL", es.sign(t, r.with(nil), set{"kid": "http://127.0.0.1:1/"}), UnknownKey},
		{"long kid", es.sign(t, r.with(nil), set{"kid": strings.Repeat("k", maxKeyID+1)}), Malformed},
		{"for something else", es.sign(t, r.with(nil), set{"typ": "logout+jwt"}), Malformed},
		{"an unknown extension", raw(set{"alg": "ES256", "kid": "ec", "crit": []string{"x"}, "x": 1}, r.with(nil), strings.Repeat("x", 64)), Signature},
		{"claims that are no object", es.sign(t, nil, nil)[:10] + "..", Malformed},
		{"nothing", "..", Algorithm},
		{"not base64", "a.b.c", Malformed},
		{"two parts", parts[0] + "." + parts[1], Unknown},
		{"all of JSON", `{"payload":"x.y.","signatures":[]}`, Malformed},
	} {
		id, err := v.Verify(t.Context(), c.token)
		var refusal *Refusal
		if id != nil || !errors.As(err, &refusal) {
			t.Errorf("%s: got %+v, %v", c.name, id, err)
			continue
		}
		if refusal.Reason != c.want {
			t.Errorf("%s: refused as %s (%v), want %s", c.name, refusal.Reason, err, c.want)
		}
		if strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: the error has the token: %v", c.name, err)
		}
	}
	if n := r.fetches.Load(); n > 3 {
		t.Errorf("the keys were fetched %d times for a few unknown ones", n)
	}
}

// TestVerify_Algorithms: every documented algorithm of signatures is accepted.
func TestVerify_Algorithms(t *testing.T) {
	r := newRealm(t)
	rsaKey := newRSA(t, "", 2048).key
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := []signer{{"EdDSA", jose.EdDSA, edKey}}
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512} {
		keys = append(keys, signer{string(alg), alg, rsaKey})
	}
	for alg, curve := range map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()} {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, signer{string(alg), alg, k})
	}
	r.publish(keys...)
	v := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	for _, k := range keys {
		if id := soon(t, v, k.sign(t, r.with(nil), nil)); id.Name != "alice" {
			t.Errorf("%s: got %+v", k.alg, id)
		}
	}
	if len(keys) != len(algorithms) {
		t.Errorf("%d algorithms are accepted, %d documented", len(algorithms), len(keys))
	}
}

func TestVerify_ScopeClaims(t *testing.T) {
	r := newRealm(t)
	k := newEC(t, "k")
	r.publish(k)
	lax := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	strict := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}, ScopeClaim: "scp", SubjectClaim: "email", RequireScopes: true}}})
	if lax.ScopesNeeded() || !strict.ScopesNeeded() {
		t.Error("ScopesNeeded is wrong")
	}
	for _, c := range []struct {
		v      *Verifier
		claims set
		want   string
	}{
		{lax, nil, "[use]"},
		{lax, set{"scope": "openid use metrics"}, "[use]"},
		{lax, set{"scope": "openid glovebox:read glovebox:metrics"}, "[read metrics]"},
		{lax, set{"scope": 7}, "[use]"},
		{strict, set{"email": "a@b"}, "[]"},
		{strict, set{"email": "a@b", "scope": "glovebox:use"}, "[]"},
		{strict, set{"email": "a@b", "scp": []any{"x", 1, "glovebox:use"}}, "[use]"},
		{strict, set{"email": "a@b", "scp": "glovebox:use"}, "[use]"},
	} {
		id := soon(t, c.v, k.sign(t, r.with(c.claims), nil))
		if got := fmt.Sprint(id.Scopes); got != c.want {
			t.Errorf("%v: got %s, want %s", c.claims, got, c.want)
		}
		if c.v == strict && id.Owner != r.issuer()+" a@b" {
			t.Errorf("%v: the owner is %q", c.claims, id.Owner)
		}
	}
	if _, err := strict.Verify(t.Context(), k.sign(t, r.with(set{"scp": "glovebox:use"}), nil)); refusedFor(t, err) != NoSubject {
		t.Errorf("a token without the claim of the owner, but with sub: %v", err)
	}
}

// TestVerify_OwnersOfOneNameDiffer: one name at two issuers and in the file is three
// owners.
func TestVerify_OwnersOfOneNameDiffer(t *testing.T) {
	one, two := newRealm(t), newRealm(t)
	k := newEC(t, "k")
	one.publish(k)
	two.publish(k)
	path := t.TempDir() + "/tokens.toml"
	secret, token := newToken(t, "alice", time.Time{}, Use)
	write(t, path, token.Entry())
	audience := []string{"boxes"}
	v := open(t, Config{TokensFile: path, Issuers: []IssuerConfig{{URL: one.issuer(), Audiences: audience}, {URL: two.issuer(), Audiences: audience}}})
	owners := map[string]bool{}
	for _, token := range []string{secret, k.sign(t, one.with(nil), nil), k.sign(t, two.with(nil), nil)} {
		owners[soon(t, v, token).Owner] = true
	}
	if len(owners) != 3 {
		t.Errorf("got %v", owners)
	}
}

// TestVerify_KeysOfAnotherIssuer: the keys of an issuer sign tokens of this issuer only, so that
// no issuer can speak for the users of another one.
func TestVerify_KeysOfAnotherIssuer(t *testing.T) {
	one, two := newRealm(t), newRealm(t)
	k1, k2, only2 := newEC(t, "k"), newEC(t, "k"), newEC(t, "only2")
	one.publish(k1)
	two.publish(k2, only2)
	audience := []string{"boxes"}
	v := open(t, Config{Issuers: []IssuerConfig{{URL: one.issuer(), Audiences: audience}, {URL: two.issuer(), Audiences: audience}}})
	soon(t, v, k1.sign(t, one.with(nil), nil))
	soon(t, v, k2.sign(t, two.with(nil), nil))
	soon(t, v, only2.sign(t, two.with(nil), nil))
	for name, c := range map[string]struct {
		key  signer
		want Reason
	}{
		"with the same id":      {k2, Signature},
		"with an id of its own": {only2, UnknownKey},
		"without an id":         {signer{"", only2.alg, only2.key}, Signature},
	} {
		if _, err := v.Verify(t.Context(), c.key.sign(t, one.with(nil), nil)); refusedFor(t, err) != c.want {
			t.Errorf("a token of one issuer, signed by a key of the other %s: %v, want %s", name, err, c.want)
		}
	}
}

func TestVerify_KeyRotation(t *testing.T) {
	r := newRealm(t)
	old, next := newEC(t, "2026-10"), newEC(t, "2026-11")
	r.publish(old)
	var mu sync.Mutex
	now := time.Now()
	v := open(t, Config{
		Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}},
		Now:     func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
	})
	later := func(d time.Duration) { mu.Lock(); now = now.Add(d); mu.Unlock() }
	soon(t, v, old.sign(t, r.with(nil), nil))
	r.publish(next)
	later(refetchGap)
	if _, err := v.Verify(t.Context(), next.sign(t, r.with(nil), nil)); err != nil {
		t.Errorf("a new key: %v", err)
	}
	if _, err := v.Verify(t.Context(), old.sign(t, r.with(nil), nil)); refusedFor(t, err) != UnknownKey {
		t.Errorf("an old key: %v", err)
	}
	// Concurrent tokens with made-up key ids share one fetch.
	before := r.fetches.Load()
	later(refetchGap)
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			if _, err := v.Verify(t.Context(), old.sign(t, r.with(nil), set{"kid": fmt.Sprint(n)})); err == nil {
				t.Error("a made-up key was accepted")
			}
		})
	}
	wg.Wait()
	if n := r.fetches.Load() - before; n != 1 {
		t.Errorf("50 made-up keys: %d fetches, want 1", n)
	}
	// Keys that could not be renewed for a day are refused.
	r.Close()
	later(staleAfter - time.Second)
	if _, err := v.Verify(t.Context(), next.sign(t, r.with(set{"exp": time.Now().Add(48 * time.Hour).Unix()}), nil)); err != nil {
		t.Errorf("a key of almost a day: %v", err)
	}
	later(time.Second)
	if _, err := v.Verify(t.Context(), next.sign(t, r.with(nil), nil)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a stale key: %v", err)
	}
}

// TestOpen_FetchesKeys: the keys are fetched at the start, before there is a token to verify.
func TestOpen_FetchesKeys(t *testing.T) {
	r := newRealm(t)
	k := newEC(t, "k")
	r.publish(k)
	v := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	polltest.Until(t, 30*time.Second, "the keys are fetched", func() bool {
		v.issuers[0].mu.Lock()
		defer v.issuers[0].mu.Unlock()
		return !v.issuers[0].fetched.IsZero()
	})
	r.Close()
	if id, err := v.Verify(t.Context(), k.sign(t, r.with(nil), nil)); err != nil || id.Name != "alice" {
		t.Errorf("a token whose issuer is unreachable since the start: %+v, %v", id, err)
	}
}

// TestVerify_UnreachableIssuer: an unreachable issuer does not affect other tokens.
func TestVerify_UnreachableIssuer(t *testing.T) {
	r := newRealm(t)
	k := newEC(t, "k")
	r.publish(k)
	r.down.Store(true)
	path := t.TempDir() + "/tokens.toml"
	secret, token := newToken(t, "alice", time.Time{}, Use)
	write(t, path, token.Entry())
	v := open(t, Config{TokensFile: path, Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	if _, err := v.Verify(t.Context(), k.sign(t, r.with(nil), nil)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if _, err := v.Verify(t.Context(), secret); err != nil {
		t.Errorf("a static token meanwhile: %v", err)
	}
	r.down.Store(false)
	soon(t, v, k.sign(t, r.with(nil), nil))
}

// TestIssuer_InvalidDocuments: invalid or oversized documents of an issuer are errors.
func TestIssuer_InvalidDocuments(t *testing.T) {
	k := newEC(t, "k")
	for _, c := range []struct {
		name string
		do   func(*realm)
		want string
	}{
		{"another's name", func(r *realm) { r.calls = "https://login.example" }, "calls itself"},
		{"keys over the open network", func(r *realm) { r.jwksURI = "http://login.example/keys" }, "must be https"},
		{"keys in a file", func(r *realm) { r.jwksURI = "file:///etc/passwd" }, "must be https"},
		{"a redirect to the open network", func(r *realm) {
			r.answer = func(w http.ResponseWriter, q *http.Request) {
				http.Redirect(w, q, "http://login.example/keys", http.StatusFound)
			}
		}, "must be https"},
		{"redirects without end", func(r *realm) {
			r.answer = func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, "/keys", http.StatusFound) }
		}, "too many redirects"},
		{"a huge set", func(r *realm) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) {
				for range maxDocument>>10 + 10 {
					fmt.Fprint(w, strings.Repeat(" ", 1<<10))
				}
			}
		}, "larger than"},
		{"many keys", func(r *realm) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, `{"keys":[{}`+strings.Repeat(",{}", maxKeys)+`]}`)
			}
		}, "at most"},
		{"no keys", func(r *realm) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[]}`) }
		}, "none of the 0"},
		{"a shared secret", func(r *realm) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, `{"keys":[{"kty":"oct","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0","kid":"k","alg":"HS256"}]}`)
			}
		}, "none of the 1"},
		{"a private key", func(r *realm) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: k.key, KeyID: "k"}}})
			}
		}, "none of the 1"},
		{"no JSON", func(r *realm) { r.answer = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") } }, "not the JSON"},
		{"an error", func(r *realm) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }
		}, "500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRealm(t)
			r.publish(k)
			r.set(func() { c.do(r) })
			i, err := newIssuer(IssuerConfig{URL: r.issuer(), Audiences: []string{"boxes"}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := i.fetch(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for _, c := range []struct{ url, want string }{
		{"http://login.example", "must be https"}, {"ftp://login.example", "must be https"}, {"login.example", "not a URL"},
		{"https://user@login.example", "not a URL"}, {"https://login.example/?a=b", "not a URL"}, {"", "not a URL"}, {"https://login.example/a b", "not a URL"},
	} {
		if _, err := newIssuer(IssuerConfig{URL: c.url, Audiences: []string{"x"}}, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.url, err)
		}
	}
	if _, err := newIssuer(IssuerConfig{URL: "https://login.example"}, nil); err == nil || !strings.Contains(err.Error(), "no audience") {
		t.Errorf("without an audience: %v", err)
	}
}

// TestVerify_SlowIssuer: Verify ends with its context, and Close ends a fetch that is
// under way.
func TestVerify_SlowIssuer(t *testing.T) {
	r := newRealm(t)
	r.set(func() { r.answer = func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() } })
	k := newEC(t, "k")
	v, err := Open(Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := v.Verify(ctx, k.sign(t, r.with(nil), nil)); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	begun := time.Now()
	v.Close()
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("Close took %v", d)
	}
}

func FuzzVerifySigned(f *testing.F) {
	r := newRealm(f)
	k := newEC(f, "k")
	r.publish(k)
	v := open(f, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	good := k.sign(f, r.with(nil), nil)
	soon(f, v, good)
	f.Add(good)
	f.Add(raw(set{"alg": "none"}, r.with(nil), ""))
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		if id, err := v.Verify(t.Context(), token); err == nil && (token != good && !strings.HasPrefix(token, good[:strings.LastIndex(good, ".")]) || id.Name != "alice") {
			t.Errorf("%q is accepted as %+v", token, id)
		}
	})
}

// silent is a transport that answers no request.
type silent struct{ asked int }

func (s *silent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked++
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestIssuer_FetchTimeout: the timeout covers all documents of a fetch together.
func TestIssuer_FetchTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, err := newIssuer(IssuerConfig{URL: "https://login.example", Audiences: []string{"x"}}, &Verifier{now: time.Now, base: t.Context()})
		if err != nil {
			t.Fatal(err)
		}
		var issuer silent
		i.client.Transport = &issuer
		begun := time.Now()
		<-i.refresh()
		i.mu.Lock()
		defer i.mu.Unlock()
		if took := time.Since(begun); took != fetchTimeout || i.fault == nil || !strings.Contains(i.fault.Error(), "no answer within 10s") || issuer.asked != 1 {
			t.Errorf("asked %d times within %v, got %v", issuer.asked, took, i.fault)
		}
	})
}

// TestVerify_LongSubject: the owner of the longest subject fits in the record of a box, which
// has 256 bytes for it, and differs from that of any other subject.
func TestVerify_LongSubject(t *testing.T) {
	r := newRealm(t)
	k := newEC(t, "k")
	r.publish(k)
	v := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	long := strings.Repeat("x", maxSubject-1)
	owners := map[string]string{}
	for _, subject := range []string{"alice", long + "a", long + "b", long + "a"} {
		id := soon(t, v, k.sign(t, r.with(set{"sub": subject}), nil))
		if len(id.Owner) > 256 {
			t.Errorf("the owner of a subject of %d bytes has %d", len(subject), len(id.Owner))
		}
		if id.Name != subject {
			t.Errorf("got the name %q", id.Name)
		}
		if before, seen := owners[subject]; seen && before != id.Owner {
			t.Errorf("one subject has two owners: %q and %q", before, id.Owner)
		}
		owners[subject] = id.Owner
	}
	if owners[long+"a"] == owners[long+"b"] || owners["alice"] != r.issuer()+" alice" {
		t.Errorf("got %v", owners)
	}
}
