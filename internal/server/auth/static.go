package auth

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/logkey"
)

// tokenFile holds the static tokens of the last valid version of the file.
type tokenFile struct {
	path string
	v    *Verifier

	loading sync.Mutex // one load at a time; before mu

	mu     sync.RWMutex
	tokens []*staticToken // guarded by mu
}

// staticToken is a valid token and its lifetime.
type staticToken struct {
	Token
	life context.Context
	end  context.CancelCauseFunc
}

// load replaces the tokens by those in the file. It revokes tokens that the file has
// no more, or has with other properties.
func (f *tokenFile) load() error {
	f.loading.Lock()
	defer f.loading.Unlock()
	read, open, err := ReadTokens(f.path)
	if err != nil {
		return err
	}
	if open {
		f.v.log.Warn("tokens file is readable by every user: it reveals names and hashes, not tokens; chmod 600", logkey.File, f.path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var now []*staticToken
	for _, t := range read {
		i := slices.IndexFunc(f.tokens, func(old *staticToken) bool { return old.same(&t) })
		if i >= 0 {
			now = append(now, f.tokens[i])
			f.tokens = slices.Delete(f.tokens, i, i+1)
			continue
		}
		s := &staticToken{Token: t}
		s.life, s.end = context.WithCancelCause(f.v.base)
		now = append(now, s)
	}
	for _, gone := range f.tokens {
		gone.end(ErrRevoked)
	}
	revoked := len(f.tokens)
	f.tokens = now
	f.v.log.Info("tokens read", logkey.File, f.path, logkey.Tokens, len(now), logkey.Revoked, revoked)
	return nil
}

func (t *Token) same(o *Token) bool {
	return t.Name == o.Name && t.Hash == o.Hash && t.Expires.Equal(o.Expires) && slices.Equal(t.Scopes, o.Scopes)
}

// changed reloads the file. filewatch calls it.
func (f *tokenFile) changed() {
	if err := f.load(); err != nil {
		f.v.log.Error("tokens not reloaded; the previous ones stay valid", logkey.Error, err)
	}
}

// verify returns the bearer of a token, and nil without an error if the file does not
// have it. It compares in constant time.
func (f *tokenFile) verify(token string) (*Identity, error) {
	hash := sha256.Sum256([]byte(token))
	var found *staticToken
	f.mu.RLock()
	for _, t := range f.tokens {
		if t.matches(&hash) {
			found = t
		}
	}
	f.mu.RUnlock()
	if found == nil || len(token) < minToken {
		return nil, nil
	}
	if !found.Expires.IsZero() && !f.v.now().Before(found.Expires) {
		return nil, refuse(Expired, "the token expired at %s", found.Expires.UTC().Format(time.RFC3339))
	}
	return &Identity{Owner: found.Owner(), Name: found.Name, Scopes: found.Scopes, Expires: found.Expires, life: found.life}, nil
}
