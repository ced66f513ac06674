package mcpjson

import (
	"regexp"
	"strings"
)

// secretWords are what names of secrets have in them, without separators.
var secretWords = []string{
	"authorization", "token", "secret", "password", "passwd", "apikey", "accesskey", "privatekey",
	"credential", "cookie", "bearer", "signature", "passphrase",
}

// isSecretName reports whether a value of that name is to be kept from eyes.
func isSecretName(name string) bool {
	p := plain(name)
	for _, w := range secretWords {
		if strings.Contains(p, w) {
			return true
		}
	}
	return strings.HasSuffix(p, "pat") && p != "path" || strings.HasSuffix(p, "key") || p == "auth" || strings.HasSuffix(strings.ToLower(name), "_auth")
}

// secretShapes are what keys of well-known services look like.
var secretShapes = regexp.MustCompile(`\b(sk|pk|rk|pplx|xox[abprs]|gh[opsur]|github_pat|glpat|hf|AKIA|ASIA|AIza|ya29|npm|dop_v1|shpat|key)[-_A-Z0-9][-_A-Za-z0-9.]{15,}|\beyJ[-_A-Za-z0-9]{10,}\.[-_A-Za-z0-9]+|-----BEGIN [A-Z ]*PRIVATE KEY`)

// looksSecret reports whether a literal is a key, whatever its name is.
func looksSecret(value string) bool { return secretShapes.MatchString(value) }

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
