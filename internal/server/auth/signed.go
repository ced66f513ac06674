package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// skew is the tolerated difference between the clocks of issuer and server.
	skew = 30 * time.Second
	// maxSubject bounds the subject, in bytes, as OpenID Connect does.
	maxSubject = 255
	// maxOwner bounds the owner of boxes, in bytes, as their records on disk do.
	maxOwner = 256
	// maxKeyID bounds the id of a key, in bytes.
	maxKeyID = 256
	// maxTried bounds the keys tried for a token that names none.
	maxTried = 8
)

// algorithms are the accepted signature algorithms. None uses a shared secret: an
// attacker could then sign with the public key as the secret.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// claims are the claims of a signed token, the registered ones parsed.
type claims struct {
	jwt.Claims
	all map[string]any
}

// verifySigned returns the bearer of a token that one of the issuers signed.
func (v *Verifier) verifySigned(ctx context.Context, token string) (*Identity, error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		if _, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
			return nil, refuse(Algorithm, "the token is signed in a way that is not accepted; accepted are %v", algorithms)
		}
		return nil, refuse(Malformed, "the token cannot be read")
	}
	if len(parsed.Headers) != 1 || len(parsed.Headers[0].KeyID) > maxKeyID || !isAccessToken(parsed.Headers[0].ExtraHeaders) {
		return nil, refuse(Malformed, "the token is not an access token")
	}
	// Unverified claims only select the issuer whose keys verify the signature.
	var unverified jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&unverified); err != nil {
		return nil, refuse(Malformed, "the token cannot be read")
	}
	for _, i := range v.issuers {
		if i.cfg.URL == unverified.Issuer {
			return i.verify(ctx, parsed)
		}
	}
	return nil, refuse(Issuer, "the issuer of the token is not trusted")
}

// isAccessToken reports whether the typ header is that of an access token, or absent.
func isAccessToken(header map[jose.HeaderKey]any) bool {
	kind, there := header[jose.HeaderType]
	if !there {
		return true
	}
	text, _ := kind.(string)
	switch strings.TrimPrefix(strings.ToLower(text), "application/") {
	case "jwt", "at+jwt":
		return true
	}
	return false
}

func (i *issuer) verify(ctx context.Context, token *jwt.JSONWebToken) (*Identity, error) {
	header := token.Headers[0]
	keys, err := i.find(ctx, header.KeyID)
	if err != nil {
		return nil, err
	}
	var c claims
	tried, good := 0, false
	for k := range keys {
		key := &keys[k]
		if key.Algorithm != "" && key.Algorithm != header.Algorithm || tried == maxTried {
			continue
		}
		tried++
		if token.Claims(key.Key, &c.Claims, &c.all) == nil {
			good = true
			break
		}
	}
	if !good {
		return nil, refuse(Signature, "the signature of the token is wrong")
	}
	return i.identity(&c)
}

// identity validates the claims of a token whose signature is valid.
func (i *issuer) identity(c *claims) (*Identity, error) {
	if c.Expiry == nil {
		return nil, refuse(NoTimeLimit, "the token has no exp claim")
	}
	err := c.ValidateWithLeeway(jwt.Expected{Issuer: i.cfg.URL, AnyAudience: i.cfg.Audiences, Time: i.v.now()}, skew)
	switch {
	case err == nil:
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return nil, refuse(Issuer, "the issuer of the token is not trusted")
	case errors.Is(err, jwt.ErrInvalidAudience):
		return nil, refuse(Audience, "the token is meant for another service")
	case errors.Is(err, jwt.ErrExpired):
		return nil, refuse(Expired, "the token expired at %s", c.Expiry.Time().UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		return nil, refuse(NotYet, "the token is not valid yet; is the clock right?")
	default:
		return nil, refuse(Malformed, "the token has invalid claims")
	}
	subject, _ := c.all[i.cfg.SubjectClaim].(string)
	if !plainSubject(subject) {
		return nil, refuse(NoSubject, "the claim %s of the token is no text of 1 to %d printable ASCII characters without spaces", i.cfg.SubjectClaim, maxSubject)
	}
	return &Identity{
		Owner: subjectOwner(i.cfg.URL, subject), Name: subject,
		Scopes: i.scopes(c.all[i.cfg.ScopeClaim]), Expires: c.Expiry.Time().Add(skew),
	}, nil
}

// subjectOwner returns the owner for a subject of an issuer. One that is too long for the records
// of boxes is replaced by its hash, which has no space and so equals no other owner.
func subjectOwner(issuer, subject string) string {
	owner := issuer + " " + subject
	if len(owner) > maxOwner {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(owner)))
	}
	return owner
}

// plainSubject reports whether a subject is printable ASCII without spaces, so that no
// two look alike.
func plainSubject(s string) bool {
	if s == "" || len(s) > maxSubject {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// scopes parses the scope claim: a string of words, or a list. It ignores scopes of
// other services.
func (i *issuer) scopes(claim any) Scopes {
	var words []string
	switch claim := claim.(type) {
	case string:
		words = strings.Fields(claim)
	case []any:
		for _, w := range claim {
			if w, ok := w.(string); ok {
				words = append(words, w)
			}
		}
	}
	var scopes Scopes
	for _, w := range words {
		for _, s := range AllScopes() {
			if w == s.Public() {
				scopes = append(scopes, s)
			}
		}
	}
	if scopes == nil && !i.cfg.RequireScopes {
		return Scopes{Use}
	}
	return scopes
}
