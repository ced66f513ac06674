// Package redact recognizes values that are probably credentials, by their names and
// by their form, and masks them.
//
// Recordings and definitions need different rules. In a recording, masking too much
// costs little. In a definition that the user is asked to approve, a masked part is one
// that the user cannot judge: see [Literal].
package redact

import (
	"regexp"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
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
func IsSecretName(name string) bool { return hasWord(normalize(name)) || endsAsKey(name) }

// endsAsKey reports whether the last part of a name denotes a key.
func endsAsKey(name string) bool {
	n := normalize(name)
	return strings.HasSuffix(n, "pat") && n != "path" || strings.HasSuffix(n, "key") || n == "auth" || strings.HasSuffix(strings.ToLower(name), "_auth")
}

const (
	serviceKey = `\b(?:sk|pk|rk|pplx|xox[abprs]|gh[opsur]|github_pat|glpat|hf|AKIA|ASIA|AIza|ya29|npm|dop_v1|shpat|key)[-_A-Z0-9][-_A-Za-z0-9.]{15,}`
	webToken   = `\beyJ[-_A-Za-z0-9]{10,}\.[-_A-Za-z0-9]+(?:\.[-_A-Za-z0-9]*)?`
	privateKey = `-----BEGIN [A-Z ]*PRIVATE KEY(?s:.*?)-----END [A-Z ]*PRIVATE KEY-----|-----BEGIN [A-Z ]*PRIVATE KEY(?s:.*)`
)

// keys matches keys of well-known services.
var keys = lazyregexp.New(serviceKey + `|` + webToken + `|` + privateKey)

// IsKey reports whether a value contains a key of a well-known service.
func IsKey(value string) bool { return keys().MatchString(value) }

// MaskKeys replaces the keys of well-known services in a value by [Masked].
func MaskKeys(value string) string { return keys().ReplaceAllString(value, Masked) }

// afterScheme finds the credentials after the scheme of a header. Those without a digit
// are words of a sentence.
var afterScheme = lazyregexp.New(`(?i)\b(?:bearer|basic)\s+([a-z0-9._~+/-]{8,}=*)`)

// inAddress finds credentials in addresses and their parameters. The group is the credential.
var inAddress = []func() *regexp.Regexp{
	lazyregexp.New(`://[^/\s@:"]*:([^/\s@"]+)@`),
	lazyregexp.New(`(?i)[?&#;][a-z0-9_.\[\]-]*(?:token|secret|password|passwd|api[-_]?key|access[-_]?key|signature|credential|sig|jwt|assertion|code_verifier)=([^&#\s"'<>]+)`),
}

// notSecret are endings of member names that contain a word of the list but hold no
// secret: the protocol's own tokens, and cursors of well-known services.
var notSecret = []string{"progresstoken", "pagetoken", "synctoken", "continuationtoken", "tokens", "tokentype"}

// Mask returns the value of a JSON member with [Masked] in place of the known secrets,
// of keys of well-known services, and of credentials in addresses and headers that the
// value quotes. If the member's name marks it as a secret, the whole value is masked.
// The name may be empty.
func Mask(name, value string, known []string) string {
	if n := normalize(name); value != "" && hasWord(n) && !slices.ContainsFunc(notSecret, func(s string) bool { return strings.HasSuffix(n, s) }) {
		return Masked
	}
	for _, s := range known {
		if s != "" {
			value = strings.ReplaceAll(value, s, Masked)
		}
	}
	value = MaskKeys(value)
	value = replaceGroup(afterScheme(), value, func(secret string) (string, bool) {
		return Masked, strings.ContainsAny(secret, "0123456789")
	})
	for _, re := range inAddress {
		value = replaceGroup(re(), value, func(string) (string, bool) { return Masked, true })
	}
	return value
}

// normalize maps api_key, apiKey and api-key to the same name.
func normalize(s string) string { return separators.Replace(strings.ToLower(s)) }

var separators = strings.NewReplacer("_", "", "-", "")

// replaceGroup replaces the first group of each match, unless the function refuses to.
func replaceGroup(re *regexp.Regexp, value string, mask func(secret string) (string, bool)) string {
	var b strings.Builder
	from := 0
	for _, at := range re.FindAllStringSubmatchIndex(value, -1) {
		if masked, ok := mask(value[at[2]:at[3]]); ok {
			b.WriteString(value[from:at[2]] + masked)
			from = at[3]
		}
	}
	return b.String() + value[from:]
}
