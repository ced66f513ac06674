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

// The ways in which a client says at the token endpoint who it is.
const (
	methodNone  = "none"
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
	methodKey   = "private_key_jwt"
)

// A client is how an authorization server knows this program.
type client struct {
	Issuer   string `json:"issuer,omitempty"` // whose client it is
	ID       string `json:"id,omitempty"`
	Secret   string `json:"secret,omitempty"`
	Method   string `json:"method,omitempty"`
	Redirect string `json:"redirect,omitempty"`
	// Expiry is when the secret ends; zero for never.
	Expiry time.Time `json:"expiry,omitzero"`

	registered bool // here and now, and so to be kept
	key        crypto.Signer
}

// configured is the client of the definition, which the record has nothing of.
func (h *Handler) configured(method string) client {
	s := &h.server
	return client{ID: s.ClientID, Secret: s.ClientSecret, Method: method, Redirect: h.redirect(), key: s.Key}
}

// redirect is where the browser is to be sent back to.
func (h *Handler) redirect() string { return cmp.Or(h.server.RedirectURL, h.logins.opts.RedirectURL) }

// client finds who to be for an authority: the client of the definition, that of a
// document of metadata, the one that is registered already, or a new one.
func (h *Handler) client(ctx context.Context, a *authority, r *record) (client, error) {
	issuer, supported := a.meta.Issuer, a.meta.TokenEndpointAuthMethodsSupported
	if h.server.ClientID != "" {
		if want := h.server.Issuer; want != "" && !sameIssuer(want, issuer) {
			return client{}, fmt.Errorf("the client %q is registered at %s, and the server wants a login at %s", said(h.server.ClientID), shown(want), shown(issuer))
		}
		method, err := pick(supported, h.server.ClientSecret != "", h.server.Key != nil)
		return h.configured(method), err
	}
	if document := cmp.Or(h.server.ClientMetadataURL, h.logins.opts.ClientMetadataURL); document != "" && a.meta.ClientIDMetadataDocumentSupported {
		return client{Issuer: issuer, ID: document, Method: methodNone, Redirect: h.redirect()}, nil
	}
	if c := r.Client; c.ID != "" && c.Issuer == issuer && c.Redirect == h.redirect() && (c.Expiry.IsZero() || h.logins.now().Before(c.Expiry)) {
		return c, nil
	}
	if a.meta.RegistrationEndpoint == "" {
		return client{}, fmt.Errorf("the authorization server %s registers no clients; register one there by hand, and give its id in oauth.clientId", shown(issuer))
	}
	return h.register(ctx, &a.meta)
}

// pick chooses how to say who the client is.
func pick(supported []string, secret, key bool) (string, error) {
	if len(supported) == 0 {
		supported = []string{methodBasic, methodNone, methodPost, methodKey} // what is meant where nothing is said
	}
	var can []string
	switch {
	case key:
		can = []string{methodKey}
	case secret:
		can = []string{methodBasic, methodPost, methodNone}
	default:
		// Without a secret there is nothing to choose from.
		return methodNone, nil
	}
	for _, method := range can {
		if slices.Contains(supported, method) {
			return method, nil
		}
	}
	return "", fmt.Errorf("the authorization server lets clients say who they are by %q, and this client can by %q", supported, can)
}

// register makes a client known to an authorization server.
func (h *Handler) register(ctx context.Context, m *oauthex.AuthServerMeta) (c client, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("register a client at %s: %w", shown(m.RegistrationEndpoint), err)
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
		if want.TokenEndpointAuthMethod, err = pick(s, true, false); err != nil {
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
		_ = json.Unmarshal(b, &refusal) // the status says enough
		return c, &ServerError{Status: res.StatusCode, Code: said(refusal.ErrorCode), Detail: said(refusal.ErrorDescription)}
	}
	var got struct {
		ID     string  `json:"client_id"`
		Secret string  `json:"client_secret"`
		Method string  `json:"token_endpoint_auth_method"`
		Expiry float64 `json:"client_secret_expires_at"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		return c, errors.New("the answer is no JSON object of a client")
	}
	if got.ID == "" {
		return c, errors.New("the answer has no client_id")
	}
	c = client{Issuer: m.Issuer, ID: got.ID, Secret: got.Secret, Method: got.Method, Redirect: h.redirect(), registered: true}
	if got.Secret != "" && got.Expiry > 0 && got.Expiry < 1<<40 {
		c.Expiry = time.Unix(int64(got.Expiry), 0).UTC()
	}
	switch c.Method {
	case methodNone, methodBasic, methodPost:
	case "":
		c.Method, err = pick(m.TokenEndpointAuthMethodsSupported, c.Secret != "", false)
	default:
		err = fmt.Errorf("the client is to say who it is by %q, which is not known here", said(c.Method))
	}
	return c, err
}

const (
	// assertionLife is for one request, with clocks that do not quite agree.
	assertionLife = time.Minute
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
)

// assertion says with a signature who the client is.
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
		return "", fmt.Errorf("sign for the client: a %T cannot be used", c.key)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: c.key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("sign for the client: %w", err)
	}
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: c.ID, Subject: c.ID, Audience: jwt.Audience{issuer}, ID: uuid.NewString(),
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(assertionLife)),
	}).Serialize()
}
