package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/glovebox-dev/glovebox/internal/server/auth"
)

// openIssuer is an OpenID Connect issuer; sign makes its tokens.
func openIssuer(tb testing.TB) (url string, sign func(claims map[string]any) string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	mux := http.NewServeMux()
	ts := httptest.NewServer(mux)
	tb.Cleanup(ts.Close)
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": ts.URL, "jwks_uri": ts.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
	})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return ts.URL, func(claims map[string]any) string {
		all := map[string]any{"iss": ts.URL, "aud": "boxes", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix()}
		for k, v := range claims {
			all[k] = v
		}
		token, err := jwt.Signed(signer).Claims(all).Serialize()
		if err != nil {
			tb.Fatal(err)
		}
		return token
	}
}

func TestIssuer(t *testing.T) {
	issuer, sign := openIssuer(t)
	verifier := func(strict bool) *auth.Verifier {
		v, err := auth.Open(auth.Config{Issuers: []auth.IssuerConfig{{URL: issuer, Audiences: []string{"boxes"}, RequireScopes: strict}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Close)
		return v
	}
	for _, c := range []struct {
		name, public, metadata string // paths of the documents, one a word
		strict                 bool
		challenge              string
	}{
		{"as the request says", "", "/mcp", false, ""},
		{"as the operator says", "https://boxes.example/sub/mcp", "/sub/mcp /mcp", false, ""},
		{"scopes are needed", "", "/mcp", true, `scope="glovebox:use"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, url := serve(t, func(o *Options) { o.Auth = verifier(c.strict); o.PublicURL = c.public })
			base := strings.TrimSuffix(url, "/mcp")
			resource := c.public
			if resource == "" {
				resource = url
			}
			origin := "http" + strings.SplitN(resource, "http", 2)[1]
			origin = origin[:strings.Index(origin[8:], "/")+8]
			for _, path := range append(strings.Fields(c.metadata), "") {
				res, body := do(t, "GET", base+metadataPath+path, header{}, "")
				var about oauthex.ProtectedResourceMetadata
				if err := json.Unmarshal([]byte(body), &about); err != nil || res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Origin") != "*" {
					t.Fatalf("%s: %d %v %s", path, res.StatusCode, res.Header, body)
				}
				want := resource
				if path == "" {
					want = origin
				}
				if about.Resource != want || len(about.AuthorizationServers) != 1 || about.AuthorizationServers[0] != issuer || (len(about.ScopesSupported) > 0) != c.strict {
					t.Errorf("%s: %s", path, body)
				}
			}
			if res, _ := do(t, "GET", base+metadataPath+"/other", header{}, ""); res.StatusCode != 404 {
				t.Errorf("of another resource: %d", res.StatusCode)
			}
			if res, _ := do(t, "POST", base+metadataPath, header{}, "{}"); res.StatusCode != 405 {
				t.Errorf("POST: %d", res.StatusCode)
			}
			res, _ := do(t, "POST", url, nil, rpc("tools/list", "{}"))
			got := res.Header.Get("WWW-Authenticate")
			at := origin + metadataPath + strings.TrimPrefix(resource, origin)
			if res.StatusCode != 401 || !strings.Contains(got, `resource_metadata="`+at+`"`) || !strings.Contains(got, c.challenge) || strings.Contains(got, "scope=") != c.strict {
				t.Errorf("401: %q, want %q", got, at)
			}
		})
	}

	_, url := serve(t, func(o *Options) { o.Auth = verifier(true) })
	ask := func(token, body string) (*http.Response, string) {
		return do(t, "POST", url, header{"Accept": "application/json", "Authorization": "Bearer " + token}, body)
	}
	list := toolCall(7, "list_contexts", "{}")
	good := sign(map[string]any{"scope": "openid glovebox:read"})
	eventually(t, "the issuer's keys are there", func() bool {
		res, body := ask(good, list)
		if res.StatusCode != 200 && (res.StatusCode != 503 || res.Header.Get("Retry-After") == "") {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
		return res.StatusCode == 200
	})
	if res, body := ask(good, toolCall(7, "run_code", `{"code":"1"}`)); res.StatusCode != 403 || !strings.Contains(res.Header.Get("WWW-Authenticate"), "resource_metadata=") {
		t.Errorf("read may not run: %d %v %s", res.StatusCode, res.Header, body)
	}
	// A token without scopes hears which one to request before its message is read: the one for all tools.
	for _, message := range []string{list, toolCall(7, "run_code", `{"code":"1"}`), "[" + list + "]", ping, initBody} {
		res, body := ask(sign(nil), message)
		challenge := res.Header.Get("WWW-Authenticate")
		if res.StatusCode != 403 || !strings.Contains(challenge, `error="insufficient_scope"`) || !strings.Contains(challenge, `scope="glovebox:use"`) {
			t.Errorf("%s without a scope: %d %q %s", message, res.StatusCode, challenge, body)
		}
	}
	for reason, claims := range map[string]map[string]any{
		"meant for another service": {"aud": "mail"}, "expired": {"exp": 1}, "printable ASCII": {"sub": "a\nb"},
	} {
		res, body := ask(sign(claims), list)
		if res.StatusCode != 401 || !strings.Contains(body, reason) || !strings.Contains(res.Header.Get("WWW-Authenticate"), `error="invalid_token"`) {
			t.Errorf("%s: %d %v %s", reason, res.StatusCode, res.Header, body)
		}
	}
}

// TestIssuer_Unreachable: while an issuer is unreachable, its tokens get 503, not a
// request to log in again.
func TestIssuer_Unreachable(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	v, err := auth.Open(auth.Config{Issuers: []auth.IssuerConfig{{URL: gone.URL, Audiences: []string{"boxes"}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	_, sign := openIssuer(t)
	var log strings.Builder
	_, url := serve(t, func(o *Options) { o.Auth, o.Audit = v, slog.New(slog.NewTextHandler(&log, nil)) })
	res, body := do(t, "POST", url, header{"Accept": "application/json", "Authorization": "Bearer " + sign(map[string]any{"iss": gone.URL})}, rpc("tools/list", "{}"))
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || res.Header.Get("WWW-Authenticate") != "" || parse(t, body).Error == nil {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
	}
	if !strings.Contains(log.String(), "msg=refused who=unknown reason=unavailable method=POST ") {
		t.Errorf("the audit log has %q", log.String())
	}
}
