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

// distant is an issuer without a network, so that its time can be that of a test.
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

// change changes what there is and returns how often somebody has asked since the
// last change.
func (d *distant) change(key signer, away bool) (asked int) {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	asked, d.asked = d.asked, 0
	d.key, d.away = key, away
	return asked
}

// TestRenewal: keys are fetched again now and then, so that one that was withdrawn is
// soon not believed any more; and an issuer that is away is asked again, less and
// less often, but never seldom.
func TestRenewal(t *testing.T) {
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
			t.Fatal("the key is not there")
		}
		d.change(next, false)
		time.Sleep(renewAfter - time.Second)
		if !knows("old") {
			t.Error("the keys were fetched again before it was time")
		}
		time.Sleep(2 * time.Second)
		if knows("old") || !knows("next") {
			t.Error("a key that was withdrawn is still believed")
		}
		if n := d.change(next, true); n != 1 {
			t.Errorf("the issuer was asked %d times, want once", n)
		}
		time.Sleep(renewAfter + 30*time.Minute)
		if n := d.change(old, false); n < 30 || n > 40 {
			t.Errorf("an issuer that is away was asked %d times in half an hour", n)
		}
		time.Sleep(retryLast)
		if !knows("old") {
			t.Error("the issuer is back, and its new key is not believed")
		}
	})
}

// TestKeysTried: a token that names no key does not have all keys tried.
func TestKeysTried(t *testing.T) {
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
