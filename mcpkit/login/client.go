package login

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// The methods of client authentication at the token endpoint.
const (
	methodNone       = "none"
	methodBasic      = "client_secret_basic"
	methodPost       = "client_secret_post"
	methodPrivateKey = "private_key_jwt"
)

// A client is this program's registration at an authorization server.
type client struct {
	Issuer   string `json:"issuer,omitempty"` // that registered the client
	ID       string `json:"id,omitempty"`
	Secret   string `json:"secret,omitempty"`
	Method   string `json:"method,omitempty"`
	Redirect string `json:"redirect,omitempty"`
	// Expiry is the expiry of the secret; zero for never.
	Expiry time.Time `json:"expiry,omitzero"`

	registered bool // in this login, so the caller has to store it
	key        crypto.Signer
}

// configured returns the client of the definition, which is not stored in the record.
func (h *Handler) configured(method string) client {
	s := &h.server
	return client{ID: s.ClientID, Secret: s.ClientSecret, Method: method, Redirect: h.redirect(), key: s.Key}
}

// redirect returns the redirect address.
func (h *Handler) redirect() string { return cmp.Or(h.server.RedirectURL, h.logins.opts.RedirectURL) }

// client returns the client to use at an authority: the one of the definition, the
// client ID metadata document, the stored registration, or a new registration.
func (h *Handler) client(ctx context.Context, a *authority, r *record) (client, error) {
	issuer, supported := a.meta.Issuer, a.meta.TokenEndpointAuthMethodsSupported
	if h.server.ClientID != "" {
		if want := h.server.Issuer; want != "" && !sameIssuer(want, issuer) {
			return client{}, fmt.Errorf("the client %q is registered at %s, but the server requires a login at %s", quote(h.server.ClientID), showURL(want), showURL(issuer))
		}
		method, err := pickMethod(supported, h.server.ClientSecret != "", h.server.Key != nil)
		return h.configured(method), err
	}
	if document := cmp.Or(h.server.ClientMetadataURL, h.logins.opts.ClientMetadataURL); document != "" && a.meta.ClientIDMetadataDocumentSupported {
		return client{Issuer: issuer, ID: document, Method: methodNone, Redirect: h.redirect()}, nil
	}
	if c := r.Client; c.ID != "" && c.Issuer == issuer && c.Redirect == h.redirect() && (c.Expiry.IsZero() || h.logins.now().Before(c.Expiry)) {
		return c, nil
	}
	if a.meta.RegistrationEndpoint == "" {
		return client{}, fmt.Errorf("the authorization server %s does not register clients; register one there yourself, and set oauth.clientId to its id", showURL(issuer))
	}
	return h.register(ctx, &a.meta)
}

// pickMethod chooses a method of client authentication.
func pickMethod(supported []string, secret, key bool) (string, error) {
	if len(supported) == 0 {
		supported = []string{methodBasic, methodNone, methodPost, methodPrivateKey} // the default of RFC 8414, and what servers that omit the list accept
	}
	var can []string
	switch {
	case key:
		can = []string{methodPrivateKey}
	case secret:
		can = []string{methodBasic, methodPost, methodNone}
	default:
		// Without a secret there is no choice.
		return methodNone, nil
	}
	for _, method := range can {
		if slices.Contains(supported, method) {
			return method, nil
		}
	}
	return "", fmt.Errorf("the authorization server supports the client authentication methods %q, this client %q", supported, can)
}

// register registers a client at an authorization server.
func (h *Handler) register(ctx context.Context, m *oauthex.AuthServerMeta) (c client, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("register a client at %s: %w", showURL(m.RegistrationEndpoint), err)
		}
	}()
	want := oauthex.ClientRegistrationMetadata{
		RedirectURIs: []string{h.redirect()}, ClientName: h.logins.opts.ClientName,
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
		TokenEndpointAuthMethod: methodNone, ApplicationType: "web",
	}
	if u, err := url.Parse(h.redirect()); err == nil && (loopback(u.Hostname()) || u.Scheme != "https" && u.Scheme != "http") {
		want.ApplicationType = "native"
	}
	if s := m.TokenEndpointAuthMethodsSupported; len(s) > 0 && !slices.Contains(s, methodNone) {
		if want.TokenEndpointAuthMethod, err = pickMethod(s, true, false); err != nil {
			return c, err
		}
	}
	body, err := json.Marshal(want)
	if err != nil {
		return c, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.RegistrationEndpoint, bytes.NewReader(body))
	if err != nil {
		return c, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	res, err := h.do(req)
	if err != nil {
		return c, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxMetadata))
	if err != nil {
		return c, err
	}
	if res.StatusCode != http.StatusCreated && res.StatusCode != http.StatusOK {
		refusal := oauthex.ClientRegistrationError{}
		_ = json.Unmarshal(b, &refusal) // the status suffices
		return c, &ServerError{Status: res.StatusCode, Code: quote(refusal.ErrorCode), Detail: quote(refusal.ErrorDescription)}
	}
	var got struct {
		ID     string  `json:"client_id"`
		Secret string  `json:"client_secret"`
		Method string  `json:"token_endpoint_auth_method"`
		Expiry float64 `json:"client_secret_expires_at"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		return c, errors.New("the response is not a JSON object that describes a client")
	}
	if got.ID == "" {
		return c, errors.New("the response has no client_id")
	}
	c = client{Issuer: m.Issuer, ID: got.ID, Secret: got.Secret, Method: got.Method, Redirect: h.redirect(), registered: true}
	if got.Secret != "" && got.Expiry > 0 && got.Expiry < 1<<40 {
		c.Expiry = time.Unix(int64(got.Expiry), 0).UTC()
	}
	switch c.Method {
	case methodNone, methodBasic, methodPost:
	case "":
		c.Method, err = pickMethod(m.TokenEndpointAuthMethodsSupported, c.Secret != "", false)
	default:
		err = fmt.Errorf("the server chose the unknown client authentication method %q", quote(c.Method))
	}
	return c, err
}

const (
	// assertionLife covers one request, with clocks that differ slightly.
	assertionLife = time.Minute
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
)

// assertion returns a signed token that authenticates the client.
func (c *client) assertion(issuer string, now time.Time) (string, error) {
	var alg jose.SignatureAlgorithm
	switch k := c.key.(type) {
	case *ecdsa.PrivateKey:
		alg = map[int]jose.SignatureAlgorithm{256: jose.ES256, 384: jose.ES384, 521: jose.ES512}[k.Curve.Params().BitSize]
	case *rsa.PrivateKey:
		alg = jose.RS256
	case ed25519.PrivateKey:
		alg = jose.EdDSA
	}
	if alg == "" {
		return "", fmt.Errorf("sign a client assertion: unsupported key type %T", c.key)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: c.key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("sign a client assertion: %w", err)
	}
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: c.ID, Subject: c.ID, Audience: jwt.Audience{issuer}, ID: uuid.NewString(),
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(assertionLife)),
	}).Serialize()
}
