// Package redact recognizes values that are probably credentials, by their names and
// by their form, and masks them.
package redact

import (
	"regexp"
	"slices"
	"strings"
)

// Masked replaces a masked value, or the part of it that is secret.
const Masked = "••••"

// words occur in the names of secrets, which are compared without separators.
var words = []string{
	"authorization", "token", "secret", "password", "passwd", "apikey", "accesskey", "privatekey",
	"credential", "cookie", "bearer", "signature", "passphrase",
}

// hasWord reports whether a normalized name contains one of these words.
func hasWord(name string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
}

// IsSecretName reports whether a setting, variable or header of that name holds a secret.
func IsSecretName(name string) bool {
	n := normalize(name)
	if hasWord(n) {
		return true
	}
	return strings.HasSuffix(n, "pat") && n != "path" || strings.HasSuffix(n, "key") || n == "auth" || strings.HasSuffix(strings.ToLower(name), "_auth")
}

// keys matches keys of well-known services.
var keys = regexp.MustCompile(`\b(sk|pk|rk|pplx|xox[abprs]|gh[opsur]|github_pat|glpat|hf|AKIA|ASIA|AIza|ya29|npm|dop_v1|shpat|key)[-_A-Z0-9][-_A-Za-z0-9.]{15,}|\beyJ[-_A-Za-z0-9]{10,}\.[-_A-Za-z0-9]+|-----BEGIN [A-Z ]*PRIVATE KEY`)

// IsKey reports whether a value contains a key of a well-known service.
func IsKey(value string) bool { return keys.MatchString(value) }

// MaskKeys replaces the keys of well-known services in a value by [Masked].
func MaskKeys(value string) string { return keys.ReplaceAllString(value, Masked) }

// notSecret are endings of member names that contain a word of the list but hold no
// secret: the protocol's own tokens, and cursors of well-known services.
var notSecret = []string{"progresstoken", "pagetoken", "synctoken", "continuationtoken", "tokens", "tokentype"}

// Mask returns the value of a JSON member with [Masked] in place of the known secrets
// and of keys of well-known services. If the member's name tells that it holds a
// secret, the whole value is masked. The name may be empty.
func Mask(name, value string, known []string) string {
	if n := normalize(name); value != "" && hasWord(n) && !slices.ContainsFunc(notSecret, func(s string) bool { return strings.HasSuffix(n, s) }) {
		return Masked
	}
	for _, s := range known {
		if s != "" {
			value = strings.ReplaceAll(value, s, Masked)
		}
	}
	return MaskKeys(value)
}

// normalize maps api_key, apiKey and api-key to the same name.
func normalize(s string) string { return separators.Replace(strings.ToLower(s)) }

var separators = strings.NewReplacer("_", "", "-", "")
