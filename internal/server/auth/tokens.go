package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/glovebox-dev/glovebox/internal/truncate"
)

const (
	// maxTokensFile and maxTokens bound the file. Each request is compared with every
	// entry, which takes about 30 µs for maxTokens.
	maxTokensFile = 1 << 20
	maxTokens     = 1000
	// maxTokenName bounds the name of a static token, in bytes.
	maxTokenName = 64
	// tokenPrefix begins each generated token, so that people and secret scanners
	// recognize it.
	tokenPrefix = "gbx_"
	// minToken is the minimum length of a static token. Shorter ones can be guessed,
	// from their hash too.
	minToken = 20
	// filesOwner begins the owner of a static token. The owner of a signed token begins
	// with a URL.
	filesOwner = "token "
)

// Token is one entry of the file of static tokens.
type Token struct {
	Name    string    // names the owner; several tokens may share it
	Hash    [32]byte  // SHA-256 of the token
	Expires time.Time // zero: never
	Scopes  Scopes
}

// ID returns the first bytes of the hash, which tell tokens of one name apart.
func (t *Token) ID() string { return hex.EncodeToString(t.Hash[:4]) }

// Owner returns the owner of the bearer's boxes.
func (t *Token) Owner() string { return filesOwner + t.Name }

// NewToken generates a token of 256 random bits. Nothing but the returned secret
// contains it.
func NewToken(name string, expires time.Time, scopes Scopes) (secret string, t Token, err error) {
	if err := checkTokenName(name); err != nil {
		return "", t, err
	}
	secret = tokenPrefix + strings.ToLower(rand.Text()+rand.Text())
	return secret, Token{Name: name, Hash: sha256.Sum256([]byte(secret)), Expires: expires, Scopes: scopes}, nil
}

// Entry returns the [[token]] table of the token.
func (t *Token) Entry() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "[[token]]\nname = %q\nsha256 = %q\n", t.Name, hex.EncodeToString(t.Hash[:]))
	if !t.Expires.IsZero() {
		fmt.Fprintf(&b, "expires = %s\n", t.Expires.UTC().Format(time.RFC3339))
	}
	names := make([]string, len(t.Scopes))
	for i, s := range t.Scopes {
		names[i] = fmt.Sprintf("%q", string(s))
	}
	fmt.Fprintf(&b, "scopes = [%s]\n", strings.Join(names, ", "))
	return b.Bytes()
}

func checkTokenName(name string) error {
	ok := name != "" && len(name) <= maxTokenName
	for i := 0; i < len(name) && ok; i++ {
		b := name[i]
		ok = b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("._-@+", b) >= 0
	}
	if ok {
		return nil
	}
	return fmt.Errorf("name %q: must be 1 to %d letters, digits, '.', '_', '-', '@' and '+'", clip(name), maxTokenName)
}

// clip shortens untrusted text for a message.
func clip(s string) string { return truncate.Bytes(s, 100) }

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
			return t, fmt.Errorf("scopes: unknown scope %q; there are %v", clip(s), AllScopes())
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
	// Do not block on a named pipe.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: not a regular file", path)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, nil, fmt.Errorf("%s: other users can write it (mode %04o) and add tokens; chmod go-w", path, info.Mode().Perm())
	}
	if uid, ok := ownerOf(info); ok && !trusted(uid) {
		return nil, nil, fmt.Errorf("%s: belongs to user %d, who could add tokens; it must belong to root or to the server's user", path, uid)
	}
	if dir, err := os.Stat(filepath.Dir(path)); err == nil && dir.Mode().Perm()&0o002 != 0 && dir.Mode()&os.ModeSticky == 0 {
		return nil, nil, fmt.Errorf("%s: other users can write its directory (mode %04o) and replace it; chmod o-w", path, dir.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTokensFile+1))
	return data, info, err
}

// unmapped is the owner that a user namespace reports for files of users that it does
// not map, such as the real root: the kernel's default.
const unmapped = 65534

func trusted(uid uint32) bool {
	return uid == 0 || int(uid) == os.Geteuid() || uid == unmapped
}

// matches compares hashes in constant time.
func (t *Token) matches(hash *[32]byte) bool {
	return subtle.ConstantTimeCompare(t.Hash[:], hash[:]) == 1
}
