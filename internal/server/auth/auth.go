// Package auth verifies bearer tokens: static tokens from a file, and signed tokens
// of OpenID Connect issuers. It maps each to an owner and scopes, and knows neither
// HTTP requests nor boxes.
//
// Of a static token the server stores only the SHA-256 hash. A signed token is
// accepted if its issuer, audience, times and signature are valid; this package
// fetches, caches and renews the issuer's keys.
//
// Where to look: [Verifier.Verify] in auth.go checks a token; token_file.go knows static tokens,
// signed.go signed ones, issuer.go their issuers' keys, edit.go changes the file of tokens.
// The HTTP server calls Verify in internal/server/auth.go.
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/filewatch"
)

// maxToken bounds the length of a token, in bytes. A signed token that lists many
// groups has a few thousand.
const maxToken = 16 << 10

// Identity describes the bearer of a token. It is immutable.
type Identity struct {
	// Owner owns boxes. It is unique across all issuers and the file of tokens.
	Owner  string
	Name   string // for people; not unique
	Scopes Scopes
	// Expires is when the token expires; zero: never.
	Expires time.Time

	revoked context.Context // of a static token
}

// Revoked returns a context that is cancelled with the cause [ErrRevoked] when the token
// is revoked. Expiry does not cancel it. Signed tokens cannot be revoked.
func (i *Identity) Revoked() context.Context {
	if i.revoked == nil {
		return context.Background()
	}
	return i.revoked
}

var (
	// ErrUnavailable means that the keys of the token's issuer have not been fetched
	// yet. A retry may succeed.
	ErrUnavailable = errors.New("the issuer's keys are not available")
	// ErrRevoked is the cause of the end of [Identity.Revoked].
	ErrRevoked = errors.New("the token was revoked")
)

// Reason is why a token is refused. The set is closed: it is a metric label.
type Reason string

// The closed set of reasons.
const (
	Malformed   Reason = "malformed"   // neither a static nor a signed token
	Unknown     Reason = "unknown"     // neither in the file nor signed by an issuer
	Expired     Reason = "expired"     // past its expiry
	NotYet      Reason = "not_yet"     // before its start of validity
	Algorithm   Reason = "algorithm"   // signed with an algorithm that is not accepted
	UnknownKey  Reason = "unknown_key" // signed with a key that the issuer does not publish
	Signature   Reason = "signature"   // the signature is invalid
	Issuer      Reason = "issuer"      // the issuer is not configured
	Audience    Reason = "audience"    // issued for another service
	NoSubject   Reason = "no_subject"  // the subject is missing or invalid
	NoTimeLimit Reason = "no_expiry"   // a signed token without an expiry
)

// Refusal is the error for a token that is not accepted. Its text contains no part
// of the token.
type Refusal struct {
	Reason Reason
	Text   string
}

func (r *Refusal) Error() string { return r.Text }

func refuse(reason Reason, format string, args ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, args...)}
}

// Config configures a [Verifier].
type Config struct {
	TokensFile string // "": no static tokens
	Issuers    []IssuerConfig
	Log        *slog.Logger     // nil discards
	Now        func() time.Time // nil: time.Now
}

// Verifier maps tokens to identities. All methods may be called concurrently.
type Verifier struct {
	log     *slog.Logger
	now     func() time.Time
	file    *tokenFile // nil: none
	issuers []*issuer

	base context.Context // of the goroutines
	end  context.CancelFunc
	wg   sync.WaitGroup
}

// Open reads and watches the file of tokens, and fetches the issuers' keys in the
// background. The caller closes the Verifier.
func Open(cfg Config) (*Verifier, error) {
	v := &Verifier{log: cfg.Log, now: cfg.Now}
	if v.log == nil {
		v.log = slog.New(slog.DiscardHandler)
	}
	if v.now == nil {
		v.now = time.Now
	}
	for _, c := range cfg.Issuers {
		i, err := newIssuer(c, v)
		if err != nil {
			return nil, err
		}
		v.issuers = append(v.issuers, i)
	}
	v.base, v.end = context.WithCancel(context.Background())
	if cfg.TokensFile != "" {
		v.file = &tokenFile{path: cfg.TokensFile, v: v}
		w := filewatch.New(cfg.TokensFile) // before the read, so that no change is missed
		if err := v.file.load(); err != nil {
			v.end()
			return nil, err
		}
		v.wg.Go(func() { w.Run(v.base, v.file.changed) })
	}
	for _, i := range v.issuers {
		v.wg.Go(i.run)
	}
	return v, nil
}

// Close stops watching and fetching, and waits for both to end. Verify must not be
// called afterwards.
func (v *Verifier) Close() {
	v.end()
	v.wg.Wait()
}

// Reload rereads the file of tokens. On an error the previous tokens stay valid.
func (v *Verifier) Reload() error {
	if v.file == nil {
		return nil
	}
	return v.file.load()
}

// Issuers returns the URLs of the issuers whose tokens are accepted.
func (v *Verifier) Issuers() []string {
	var urls []string
	for _, i := range v.issuers {
		urls = append(urls, i.cfg.URL)
	}
	return urls
}

// ScopesNeeded reports whether the tokens of an issuer must name scopes, so that
// clients must request them.
func (v *Verifier) ScopesNeeded() bool {
	for _, i := range v.issuers {
		if i.cfg.RequireScopes {
			return true
		}
	}
	return false
}

// Verify returns the bearer of a token. The error is a [*Refusal], ErrUnavailable
// or the cause of ctx.
func (v *Verifier) Verify(ctx context.Context, token string) (*Identity, error) {
	if token == "" || len(token) > maxToken {
		return nil, refuse(Malformed, "a token has 1 to %d bytes", maxToken)
	}
	if v.file != nil {
		id, err := v.file.verify(token)
		if id != nil || err != nil {
			return id, err
		}
	}
	if len(v.issuers) > 0 && strings.Count(token, ".") == 2 {
		return v.verifySigned(ctx, token)
	}
	return nil, refuse(Unknown, "the token is not known")
}

// SetupError is the error for a setting or a file that access control cannot use, with what to do.
type SetupError struct {
	Err error
	Fix string
}

func (e *SetupError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *SetupError) Unwrap() error { return e.Err }
