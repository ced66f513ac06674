package auth

import (
	"crypto/rsa"
	"errors"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// TestVerify_Bounds: signed tokens at the bounds that docs/security.md promises: times with a
// tolerance of 30 seconds, the characters and the length of a subject, the type, and the length from
// which on an owner is a hash.
func TestVerify_Bounds(t *testing.T) {
	r := newRealm(t)
	k := newEC(t, "k")
	r.publish(k)
	now := time.Now().Truncate(time.Second)
	v := open(t, Config{Issuers: []IssuerConfig{{URL: r.issuer(), Audiences: []string{"boxes"}}}, Now: func() time.Time { return now }})
	soon(t, v, k.sign(t, r.with(nil), nil))
	at := func(claim string, seconds int) set { return set{claim: now.Unix() + int64(seconds)} }
	of := func(c byte) set { return set{"sub": "a" + string(rune(c))} }
	for _, c := range []struct {
		name            string
		claims, headers set
		want            Reason // "": accepted
	}{
		{"expired 30 s ago", at("exp", -30), nil, ""},
		{"expired 31 s ago", at("exp", -31), nil, Expired},
		{"valid in 30 s", at("nbf", 30), nil, ""},
		{"valid in 31 s", at("nbf", 31), nil, NotYet},
		{"issued in 30 s", at("iat", 30), nil, ""},
		{"issued in 31 s", at("iat", 31), nil, NotYet},
		{"without nbf and iat", set{"nbf": nil, "iat": nil}, nil, ""},
		{"a subject of 255 bytes", set{"sub": strings.Repeat("x", 255)}, nil, ""},
		{"the first character that may be in a subject", of('!'), nil, ""},
		{"the last character that may be in a subject", of('~'), nil, ""},
		{"a space in a subject", of(' '), nil, NoSubject},
		{"DEL in a subject", of(0x7f), nil, NoSubject},
		{"a letter beyond ASCII in a subject", set{"sub": "é"}, nil, NoSubject},
		{"a subject that is a number", set{"sub": 7}, nil, NoSubject},
		{"a type in small letters", nil, set{"typ": "jwt"}, ""},
		{"a type with its prefix", nil, set{"typ": "Application/AT+jwt"}, ""},
		{"a type of another kind", nil, set{"typ": "application/json"}, Malformed},
		{"a type that is a number", nil, set{"typ": 7}, Malformed},
		{"an empty type", nil, set{"typ": ""}, Malformed},
	} {
		id, err := v.Verify(t.Context(), k.sign(t, r.with(c.claims), c.headers))
		refusal := &Refusal{}
		switch {
		case c.want == "" && err != nil, c.want != "" && id != nil:
			t.Errorf("%s: got %+v, %v", c.name, id, err)
		case c.want != "" && (!errors.As(err, &refusal) || refusal.Reason != c.want && !(c.want == NoSubject && refusal.Reason == Malformed)):
			t.Errorf("%s: got %v, want a refusal for %s", c.name, err, c.want)
		}
	}
	fits := strings.Repeat("x", 256-len(r.issuer())-1)
	for subject, hashed := range map[string]bool{fits: false, fits + "x": true} {
		id, err := v.Verify(t.Context(), k.sign(t, r.with(set{"sub": subject}), nil))
		if err != nil || strings.HasPrefix(id.Owner, "sha256:") != hashed || !hashed && id.Owner != r.issuer()+" "+subject {
			t.Errorf("issuer and subject of %d bytes: got %+v, %v; want a hash: %t", len(r.issuer())+1+len(subject), id, err, hashed)
		}
	}
}

// TestUsable_Bounds: RSA keys of 2048 to 8192 bits are used, and no key that is published for
// something else than signatures.
func TestUsable_Bounds(t *testing.T) {
	for _, c := range []struct {
		bits uint
		use  string
		want bool
	}{
		{2047, "sig", false}, {2048, "sig", true}, {8192, "sig", true}, {8193, "sig", false},
		{2048, "", true}, {2048, "enc", false},
	} {
		n := new(big.Int).Lsh(big.NewInt(1), c.bits-1)
		key := &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}
		if got := usable(&jose.JSONWebKey{Key: key, KeyID: "k", Use: c.use}); got != c.want {
			t.Errorf("an RSA key of %d bits for %q is used: %t, want %t", c.bits, c.use, got, c.want)
		}
	}
}

// TestVerify_StaticBounds: a token of the file is valid before its time, or through its day in UTC,
// and not at the end of either.
func TestVerify_StaticBounds(t *testing.T) {
	for expires, end := range map[string]time.Time{
		"2027-01-31":                time.Date(2027, 2, 1, 0, 0, 0, 0, time.UTC),
		"2027-01-31T12:00:00Z":      time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC),
		"2027-01-31T12:00:00+02:00": time.Date(2027, 1, 31, 10, 0, 0, 0, time.UTC),
	} {
		path := filepath.Join(t.TempDir(), "tokens.toml")
		secret, token := newToken(t, "alice", time.Time{}, Use)
		entry := strings.Replace(string(token.Entry()), "scopes", "expires = "+expires+"\nscopes", 1)
		write(t, path, []byte(entry))
		now := end.Add(-time.Nanosecond)
		v := open(t, Config{TokensFile: path, Now: func() time.Time { return now }})
		if _, err := v.Verify(t.Context(), secret); err != nil {
			t.Errorf("just before the end of %s: %v", expires, err)
		}
		now = end
		if _, err := v.Verify(t.Context(), secret); refusedFor(t, err) != Expired {
			t.Errorf("at the end of %s: %v, want a refusal", expires, err)
		}
	}
}
