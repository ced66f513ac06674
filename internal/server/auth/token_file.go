package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/glovebox-dev/glovebox/internal/logkey"
	"github.com/glovebox-dev/glovebox/internal/owned"
	"github.com/glovebox-dev/glovebox/internal/regular"
)

// tokenFile holds the static tokens of the last valid version of the file.
type tokenFile struct {
	path string
	v    *Verifier

	loading sync.Mutex // one load at a time; before mu

	mu     sync.RWMutex
	tokens []*staticToken // guarded by mu
}

// staticToken is a valid token. revoke cancels revoked.
type staticToken struct {
	Token
	revoked context.Context
	revoke  context.CancelCauseFunc
}

// load replaces the tokens by those in the file. It revokes tokens that were removed from
// the file or whose entry changed.
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
		s.revoked, s.revoke = context.WithCancelCause(f.v.base)
		now = append(now, s)
	}
	for _, gone := range f.tokens {
		gone.revoke(ErrRevoked)
	}
	revoked := len(f.tokens)
	f.tokens = now
	f.v.log.Info("tokens read", logkey.File, f.path, logkey.Tokens, len(now), logkey.Revoked, revoked)
	return nil
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
	return &Identity{Owner: found.Owner(), Name: found.Name, Scopes: found.Scopes, Expires: found.Expires, revoked: found.revoked}, nil
}

// entry is a [[token]] table.
type entry struct {
	Name    string   `toml:"name"`
	SHA256  string   `toml:"sha256"`
	Expires any      `toml:"expires"`
	Scopes  []string `toml:"scopes"`
}

// ParseTokens parses a file of tokens. Errors name the line or the entry.
func ParseTokens(data []byte) ([]Token, error) {
	if len(data) > maxTokensFile {
		return nil, fmt.Errorf("larger than %d bytes", maxTokensFile)
	}
	var file struct {
		Token []entry `toml:"token"`
	}
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, located(err)
	}
	if len(file.Token) > maxTokens {
		return nil, fmt.Errorf("%d tokens, at most %d are allowed", len(file.Token), maxTokens)
	}
	tokens := make([]Token, 0, len(file.Token))
	seen := make(map[[32]byte]int)
	for i, e := range file.Token {
		t, err := e.token()
		if err == nil && seen[t.Hash] != 0 {
			err = fmt.Errorf("sha256: the same token as in entry %d", seen[t.Hash])
		}
		if err != nil {
			return nil, fmt.Errorf("token entry %d (%q): %w", i+1, clip(e.Name), err)
		}
		seen[t.Hash] = i + 1
		tokens = append(tokens, t)
	}
	return tokens, nil
}

// located adds the line to an error of the decoder.
func located(err error) error {
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(strict.Errors) > 0 {
		row, _ := strict.Errors[0].Position()
		return fmt.Errorf("line %d: unknown key %q", row, clip(strings.Join(strict.Errors[0].Key(), ".")))
	}
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := bad.Position()
		return fmt.Errorf("line %d, column %d: %s", row, column, clip(strings.TrimPrefix(bad.Error(), "toml: ")))
	}
	return fmt.Errorf("not TOML: %s", clip(err.Error()))
}

func (e *entry) token() (t Token, err error) {
	if err := checkTokenName(e.Name); err != nil {
		return t, err
	}
	t.Name = e.Name
	hash, err := hex.DecodeString(e.SHA256)
	if err != nil || len(hash) != len(t.Hash) {
		return t, fmt.Errorf("sha256: must be 64 hexadecimal digits, got %d characters", len(e.SHA256))
	}
	copy(t.Hash[:], hash)
	if t.Expires, err = expiry(e.Expires); err != nil {
		return t, err
	}
	if e.Scopes == nil {
		t.Scopes = Scopes{Use}
		return t, nil
	}
	for _, s := range e.Scopes {
		if !slices.Contains(AllScopes(), Scope(s)) {
			return t, fmt.Errorf("scopes: unknown scope %q; the scopes are: read, use, metrics", clip(s))
		}
		t.Scopes = append(t.Scopes, Scope(s))
	}
	return t, nil
}

// expiry parses a time, or a date, which is valid through its end in UTC.
func expiry(v any) (time.Time, error) {
	switch v := v.(type) {
	case nil:
		return time.Time{}, nil
	case time.Time:
		return v, nil
	case toml.LocalDate:
		return v.AsTime(time.UTC).AddDate(0, 0, 1), nil
	}
	return time.Time{}, errors.New("expires: must be a date (2027-01-31) or a time with a zone (2027-01-31T12:00:00Z), without quotes")
}

// ReadTokens reads a file of tokens, which only its owner and root may be able to
// write. open reports that other users can read it, and so see names and hashes.
func ReadTokens(path string) (tokens []Token, open bool, err error) {
	data, info, err := readPrivate(path)
	if err != nil {
		return nil, false, fmt.Errorf("read tokens: %w", err)
	}
	if tokens, err = ParseTokens(data); err != nil {
		return nil, false, fmt.Errorf("read tokens: %s: %w", path, err)
	}
	return tokens, info.Mode().Perm()&0o004 != 0, nil
}

// readPrivate reads a small regular file if only its owner and root can change it.
func readPrivate(path string) ([]byte, os.FileInfo, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, nil, &SetupError{
			Err: fmt.Errorf("%s: other users can write it (mode %04o) and add tokens", path, info.Mode().Perm()),
			Fix: fmt.Sprintf("type: chmod go-w %s; then see with glovebox token ls that every token in it is yours", path),
		}
	}
	if err := owned.Above(path); err != nil {
		return nil, nil, &SetupError{
			Err: fmt.Errorf("%s: other users can replace it, by its directory: %w", path, err),
			Fix: "keep the file in a directory that only root or the server's user can write",
		}
	}
	err = owned.Info(path, info) // the file that was opened
	if err == nil {
		err = owned.File(path) // the entry that led to it
	}
	if err != nil {
		return nil, nil, &SetupError{
			Err: fmt.Errorf("other users could add tokens to the file, which must belong to root or to the server's user: %w", err),
			Fix: fmt.Sprintf("give it to the server's user with: chown USER %s", path),
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTokensFile+1))
	return data, info, err
}
