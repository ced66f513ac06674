package auth

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// distant is an issuer without a network, so that it works in a synctest bubble.
type distant struct {
	url string

	mu    sync.Mutex
	key   signer // guarded by mu: published
	away  bool   // guarded by mu
	asked int    // guarded by mu
}

func (d *distant) RoundTrip(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var answer any = map[string]any{"issuer": d.url, "jwks_uri": d.url + "/keys"}
	switch {
	case r.URL.Path == "/keys":
		answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: d.key.key.(crypto.Signer).Public(), KeyID: d.key.id}}}
	case strings.HasSuffix(r.URL.Path, "/openid-configuration"):
		d.asked++
	}
	if d.away {
		return nil, errors.New("away")
	}
	data, err := json.Marshal(answer)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(data)), Request: r}, err
}

// change replaces the published keys and returns the number of requests since the last
// change.
func (d *distant) change(key signer, away bool) (asked int) {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	asked, d.asked = d.asked, 0
	d.key, d.away = key, away
	return asked
}

// TestIssuer_RenewsKeys: keys are fetched again regularly, so that a withdrawn one is
// soon refused, and fetches from an unreachable issuer are retried with a bounded
// backoff.
func TestIssuer_RenewsKeys(t *testing.T) {
	old, next := newEC(t, "old"), newEC(t, "next")
	synctest.Test(t, func(t *testing.T) {
		d := &distant{url: "https://login.example", key: old}
		ctx, cancel := context.WithCancel(t.Context())
		i, err := newIssuer(IssuerConfig{URL: d.url, Audiences: []string{"boxes"}}, &Verifier{log: slog.New(slog.DiscardHandler), now: time.Now, base: ctx})
		if err != nil {
			t.Fatal(err)
		}
		i.client.Transport = d
		var run sync.WaitGroup
		run.Go(i.run)
		defer run.Wait()
		defer cancel()
		knows := func(id string) bool {
			t.Helper()
			synctest.Wait()
			_, err := i.find(ctx, id)
			return err == nil
		}
		if !knows("old") {
			t.Fatal("the key was not found")
		}
		d.change(next, false)
		time.Sleep(renewAfter - time.Second)
		if !knows("old") {
			t.Error("the keys were fetched again too early")
		}
		time.Sleep(2 * time.Second)
		if knows("old") || !knows("next") {
			t.Error("a withdrawn key is still accepted")
		}
		if n := d.change(next, true); n != 1 {
			t.Errorf("the issuer got %d requests, want one", n)
		}
		time.Sleep(renewAfter + 30*time.Minute)
		if n := d.change(old, false); n < 30 || n > 40 {
			t.Errorf("an unreachable issuer got %d requests in half an hour", n)
		}
		time.Sleep(retryLast)
		if !knows("old") {
			t.Error("the issuer is reachable again, and its new key is refused")
		}
	})
}

// TestVerify_KeysTriedAreBounded: for a token that names no key, at most maxTried keys
// are tried.
func TestVerify_KeysTriedAreBounded(t *testing.T) {
	r := newRealm(t)
	var keys []signer
	for range maxTried + 1 {
		keys = append(keys, newEC(t, strings.Repeat("k", len(keys)+1)))
	}
	r.publish(keys...)
	v := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}})
	last := keys[maxTried]
	soon(t, v, last.sign(t, r.with(nil), nil))
	nameless := func(k signer) string { return signer{"", k.alg, k.key}.sign(t, r.with(nil), nil) }
	if _, err := v.Verify(t.Context(), nameless(keys[maxTried-1])); err != nil {
		t.Errorf("the last key that is tried: %v", err)
	}
	if _, err := v.Verify(t.Context(), nameless(last)); refusedFor(t, err) != Signature {
		t.Errorf("one key more: %v", err)
	}
}
