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
	// maxTokensFile and maxTokens bound the file: every request is compared with
	// every entry, which takes some 30 µs for as many.
	maxTokensFile = 1 << 20
	maxTokens     = 1000
	// maxTokenName bounds the name of a static token, in bytes.
	maxTokenName = 64
	// tokenPrefix is what a static token begins with, so that people and scanners
	// of leaked secrets see what it is.
	tokenPrefix = "gbx_"
	// minToken is the least length of a static token: shorter ones can be guessed,
	// and found from their hash.
	minToken = 20
	// filesOwner is the owner of boxes of a bearer of the file. No issuer's begins
	// so: they begin with a URL.
	filesOwner = "token "
)

// Token is one entry of the file of static tokens.
type Token struct {
	Name    string    // the owner of boxes; several tokens may have one
	Hash    [32]byte  // SHA-256 of the token
	Expires time.Time // zero: never
	Scopes  Scopes
}

// ID is what tells the tokens of one name apart: the beginning of the hash.
func (t *Token) ID() string { return hex.EncodeToString(t.Hash[:4]) }

// Owner is who boxes of the bearer belong to.
func (t *Token) Owner() string { return filesOwner + t.Name }

// NewToken makes a token of 256 random bits. The secret is in what it returns
// first and nowhere else.
func NewToken(name string, expires time.Time, scopes Scopes) (secret string, t Token, err error) {
	if err := checkTokenName(name); err != nil {
		return "", t, err
	}
	secret = tokenPrefix + strings.ToLower(rand.Text()+rand.Text())
	return secret, Token{Name: name, Hash: sha256.Sum256([]byte(secret)), Expires: expires, Scopes: scopes}, nil
}

// Entry is the token as the file has it.
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

// clip shortens what is somebody else's for a message.
func clip(s string) string { return truncate.Bytes(s, 100) }

// entry is a [[token]] table.
type entry struct {
	Name    string   `toml:"name"`
	SHA256  string   `toml:"sha256"`
	Expires any      `toml:"expires"`
	Scopes  []string `toml:"scopes"`
}

// ParseTokens reads a file of tokens. Errors name the line or the entry.
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

// located puts the line into an error of the decoder.
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

// expiry reads a date, whose whole day in UTC counts, or a time.
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

// ReadTokens reads a file of tokens that nobody but its owner may write. open
// says that others may read it, which shows them names and hashes.
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

// readPrivate reads a small regular file if nobody but its owner and root can
// change what is in it.
func readPrivate(path string) ([]byte, os.FileInfo, error) {
	// A pipe must not hold us up.
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
		return nil, nil, fmt.Errorf("%s: others may write it (mode %04o), and so could let themselves in; chmod go-w", path, info.Mode().Perm())
	}
	if uid, ok := ownerOf(info); ok && !trusted(uid) {
		return nil, nil, fmt.Errorf("%s: belongs to the user %d, who could let themselves in; it must belong to root or to the user of the server", path, uid)
	}
	if dir, err := os.Stat(filepath.Dir(path)); err == nil && dir.Mode().Perm()&0o002 != 0 && dir.Mode()&os.ModeSticky == 0 {
		return nil, nil, fmt.Errorf("%s: others may write its directory (mode %04o), and so replace it; chmod o-w", path, dir.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxTokensFile+1))
	return data, info, err
}

// unmapped is how the files of users that a user namespace does not know look in
// it: also those of the real root. The kernel's default, which nobody changes.
const unmapped = 65534

func trusted(uid uint32) bool {
	return uid == 0 || int(uid) == os.Geteuid() || uid == unmapped
}

// matches compares a hash in the same time whatever is in the two.
func (t *Token) matches(hash *[32]byte) bool {
	return subtle.ConstantTimeCompare(t.Hash[:], hash[:]) == 1
}
