// Package auth says who bears a token: names and what they may, from a file of
// static tokens and from the signed tokens of OpenID Connect issuers. It knows
// neither HTTP requests nor boxes.
//
// A static token is known by its SHA-256 hash only. A signed one is believed if
// its issuer, audience, times and signature are right; the issuer's keys are
// fetched, kept and renewed here.
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

// maxToken bounds what is looked at, in bytes: signed tokens with many groups in
// them have some thousand.
const maxToken = 16 << 10

// Identity says who bears a token. It is not to be changed.
type Identity struct {
	// Owner is unique among all bearers of all issuers and of the file; boxes
	// belong to it.
	Owner  string
	Name   string // for people; not unique
	Scopes Scopes
	// Expires is when the token ends; zero: never.
	Expires time.Time

	life context.Context // of a token of the file
}

// Life returns a context that ends when the token is revoked; that it expires
// does not end it.
func (i *Identity) Life() context.Context {
	if i.life == nil {
		return context.Background()
	}
	return i.life
}

var (
	// ErrUnavailable says that nothing can be said about the token now: the keys of
	// its issuer have not been fetched yet. Trying again later may help.
	ErrUnavailable = errors.New("the issuer's keys are not available")
	// ErrRevoked is the cause with which [Identity.Life] ends.
	ErrRevoked = errors.New("the token was revoked")
)

// Reason says why a token is refused. It is a closed set: a metric label.
type Reason string

// The closed set of reasons.
const (
	Malformed   Reason = "malformed"   // no token that we could know
	Unknown     Reason = "unknown"     // not in the file, and no issuer's
	Expired     Reason = "expired"     // its time is over
	NotYet      Reason = "not_yet"     // its time has not come
	Algorithm   Reason = "algorithm"   // signed in a way that is not accepted
	UnknownKey  Reason = "unknown_key" // signed with a key that the issuer does not publish
	Signature   Reason = "signature"   // not signed by the key that it names
	Issuer      Reason = "issuer"      // of an issuer that is not trusted
	Audience    Reason = "audience"    // meant for another service
	NoSubject   Reason = "no_subject"  // does not say, or not well, who bears it
	NoTimeLimit Reason = "no_expiry"   // a signed token that never ends
)

// Refusal is the error for a token that is not believed. Its text has nothing of
// the token in it.
type Refusal struct {
	Reason Reason
	Text   string
}

func (r *Refusal) Error() string { return r.Text }

func refuse(reason Reason, format string, args ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, args...)}
}

// Config says whom a [Verifier] believes.
type Config struct {
	TokensFile string // "": no static tokens
	Issuers    []IssuerConfig
	Log        *slog.Logger     // nil discards
	Now        func() time.Time // nil: time.Now
}

// Verifier tells who bears a token. All methods may be called concurrently.
type Verifier struct {
	log     *slog.Logger
	now     func() time.Time
	file    *tokenFile // nil: none
	issuers []*issuer

	base context.Context // of the goroutines
	end  context.CancelFunc
	wg   sync.WaitGroup
}

// Open reads the file of tokens and begins to watch it, and begins to fetch the
// issuers' keys without waiting for them. The caller closes the Verifier.
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
		w := filewatch.New(cfg.TokensFile) // before it is read, so that no change is missed
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

// Close stops watching and fetching, and waits for both. Verify must not be
// called afterwards.
func (v *Verifier) Close() {
	v.end()
	v.wg.Wait()
}

// Reload reads the file of tokens again, now. If it cannot be used the error says
// why, and the tokens that are in force stay.
func (v *Verifier) Reload() error {
	if v.file == nil {
		return nil
	}
	return v.file.load()
}

// Issuers returns the issuers whose tokens are believed, as clients know them.
func (v *Verifier) Issuers() []string {
	var urls []string
	for _, i := range v.issuers {
		urls = append(urls, i.cfg.URL)
	}
	return urls
}

// ScopesNeeded reports whether an issuer's tokens have to say what their bearer
// may, so that clients have to be told to ask for it.
func (v *Verifier) ScopesNeeded() bool {
	for _, i := range v.issuers {
		if i.cfg.RequireScopes {
			return true
		}
	}
	return false
}

// Verify says who bears the token. The error is a [*Refusal], ErrUnavailable, or
// the cause of ctx.
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
