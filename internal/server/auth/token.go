package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

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

// matches compares hashes in constant time.
func (t *Token) matches(hash *[32]byte) bool {
	return subtle.ConstantTimeCompare(t.Hash[:], hash[:]) == 1
}

// same reports whether two tokens have the same properties.
func (t *Token) same(o *Token) bool {
	return t.Name == o.Name && t.Hash == o.Hash && t.Expires.Equal(o.Expires) && slices.Equal(t.Scopes, o.Scopes)
}
