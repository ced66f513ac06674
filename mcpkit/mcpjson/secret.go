package mcpjson

import (
	"regexp"
	"slices"
	"strings"
)

// secretWords are what names of secrets have in them, without separators.
var secretWords = []string{
	"authorization", "token", "secret", "password", "passwd", "apikey", "accesskey", "privatekey",
	"credential", "cookie", "bearer", "signature", "passphrase",
}

// saysSecret reports whether a name has one of these words in it.
func saysSecret(name string) bool {
	return slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(name, w) })
}

// isSecretName reports whether a value of that name is to be kept from eyes.
func isSecretName(name string) bool {
	p := plain(name)
	if saysSecret(p) {
		return true
	}
	return strings.HasSuffix(p, "pat") && p != "path" || strings.HasSuffix(p, "key") || p == "auth" || strings.HasSuffix(strings.ToLower(name), "_auth")
}

// secretShapes are what keys of well-known services look like.
var secretShapes = regexp.MustCompile(`\b(sk|pk|rk|pplx|xox[abprs]|gh[opsur]|github_pat|glpat|hf|AKIA|ASIA|AIza|ya29|npm|dop_v1|shpat|key)[-_A-Z0-9][-_A-Za-z0-9.]{15,}|\beyJ[-_A-Za-z0-9]{10,}\.[-_A-Za-z0-9]+|-----BEGIN [A-Z ]*PRIVATE KEY`)

// looksSecret reports whether a literal is a key, whatever its name is.
func looksSecret(value string) bool { return secretShapes.MatchString(value) }

// protocolTokens are what the protocol calls a token, and cursors that others do.
var protocolTokens = []string{"progresstoken", "pagetoken", "synctoken", "continuationtoken", "tokens", "tokentype"}

// Redact returns a string value without secrets: with [Masked] in place of those
// that are given and of what looks like a key, or Masked alone if the name of the
// value says that it is a secret. The name may be "".
func Redact(name, value string, secrets []string) string {
	if p := plain(name); value != "" && saysSecret(p) && !slices.ContainsFunc(protocolTokens, func(s string) bool { return strings.HasSuffix(p, s) }) {
		return Masked
	}
	for _, s := range secrets {
		if s != "" {
			value = strings.ReplaceAll(value, s, Masked)
		}
	}
	return secretShapes.ReplaceAllString(value, Masked)
}

// isSecret decides whether a named value is marked.
func isSecret(name string, value Text) bool {
	if isSecretName(name) {
		return true
	}
	for _, p := range value {
		if looksSecret(p.Literal) {
			return true
		}
	}
	return false
}

// plain leaves only what the spellings api_key, apiKey and api-key share.
func plain(s string) string { return separators.Replace(strings.ToLower(s)) }

var separators = strings.NewReplacer("_", "", "-", "")
