package redact

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// A Use tells what a literal of a definition does, which decides what may be masked.
type Use int

// The uses.
const (
	// Argument is an argument of a program. It may be run, so only what is certainly a
	// credential is masked.
	Argument Use = iota
	// FlagValue is an argument after a flag that takes a secret.
	FlagValue
	// Variable is the value of an environment variable that holds a secret.
	Variable
	// Address is the address of a server. Some services put a token into its path.
	Address
	// Credential is sent to the server and never run. It is masked whatever its form.
	Credential
)

// Hide returns the mask of a value, with its length.
func Hide(value string) string {
	return fmt.Sprintf("%s(%d characters)", Masked, utf8.RuneCountInString(value))
}

// Literal returns a literal of a definition to show to the user who approves it.
//
// The author of a definition chooses the names and values in it, and must not be able
// to hide what the definition does behind a name such as GITHUB_TOKEN. Literal therefore
// masks only words that have the form of a credential, and never a command, path,
// address or text with spaces or characters that a shell interprets.
func Literal(use Use, value string) string {
	switch {
	case value == "":
		return ""
	case use == Credential:
		return Hide(value)
	case use == Variable && isWord(value) && !isPath(value), use == FlagValue && isWord(value) && !isPath(value) && isMixed(value):
		return Hide(value)
	}
	if m := assignment().FindStringSubmatch(value); m != nil && NamesSecret(m[1]) && isWord(m[2]) && !isPath(m[2]) && isMixed(m[2]) {
		return m[1] + "=" + Hide(m[2])
	}
	hideWord := func(secret string) (string, bool) { return Hide(secret), isWord(secret) }
	value = replaceGroup(userInfo(), value, hideWord)
	value = replaceGroup(parameter(), value, hideWord)
	if use == Address {
		value = replaceGroup(segment(), value, func(secret string) (string, bool) { return Hide(secret), isRandom(secret) })
	}
	return definitionKeys().ReplaceAllStringFunc(value, func(key string) string {
		if isRandom(key) {
			return Hide(key)
		}
		return key
	})
}

// IsSecretFlag reports whether the argument after this one is a secret.
func IsSecretFlag(argument string) bool {
	return strings.HasPrefix(argument, "-") && !strings.ContainsAny(argument, "= ") && NamesSecret(strings.TrimLeft(argument, "-"))
}

// NamesSecret is [IsSecretName] for names whose last part is the secret: the value of
// token-command is none.
func NamesSecret(name string) bool {
	n := normalize(name)
	return endsAsKey(name) || slices.ContainsFunc(words, func(w string) bool { return strings.HasSuffix(n, w) })
}

var (
	// assignment matches NAME=value and --flag=value.
	assignment = lazyregexp.New(`^(-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(.+)$`)
	// userInfo matches the password in an address, such as that of a database.
	userInfo = lazyregexp.New(`://[A-Za-z0-9._~%+-]*:([^/@\s]+)@`)
	// parameter matches the parameters of an address that hold secrets.
	parameter = lazyregexp.New(`(?i)[?&][a-z0-9_.-]*(?:token|secret|password|key|signature)=([^&#\s]+)`)
	// segment matches long parts of the path of an address.
	segment = lazyregexp.New(`[^/]/([A-Za-z0-9_=-]{20,})`)
	// definitionKeys matches what may be a key. The names of packages, images and files
	// that merely begin like one are not random.
	definitionKeys = lazyregexp.New(serviceKey + `|` + webToken)
	// word matches text that no shell interprets.
	word = lazyregexp.New(`^[-A-Za-z0-9._~+/=:@%^,!]+$`)
	// fileName matches text that ends as the name of a file or host does.
	fileName = lazyregexp.New(`\.[A-Za-z]{1,6}$`)
)

// maxWord is the size of the largest credentials in bytes: signed tokens.
const maxWord = 8 << 10

// isWord reports whether a value may be a password or token.
func isWord(value string) bool {
	return len(value) <= maxWord && word().MatchString(value) && !fileName().MatchString(value) &&
		!strings.ContainsAny(value[:1], "-/.~") && !strings.Contains(value, "..") && !strings.Contains(value, "://")
}

// minBase64 is the length from which random text with slashes is a key in base64.
const minBase64 = 32

// isPath reports whether a value may be a path: it has a slash, and is no key in base64.
func isPath(value string) bool {
	return strings.Contains(value, "/") && (len(value) < minBase64 || !isRandom(value))
}

// isMixed reports whether a value is not simply a word of a language, or the name of a
// program.
func isMixed(value string) bool {
	return strings.ContainsAny(value, "0123456789") || value != strings.ToLower(value) && value != strings.ToUpper(value)
}

// isRandom reports whether lower-case letters, upper-case letters and digits alternate
// as often as in random text.
func isRandom(value string) bool {
	changes, last := 0, 0
	for _, c := range []byte(value) {
		class := 0
		switch {
		case 'a' <= c && c <= 'z':
			class = 1
		case 'A' <= c && c <= 'Z':
			class = 2
		case '0' <= c && c <= '9':
			class = 3
		}
		if class != 0 && last != 0 && class != last {
			changes++
		}
		if class != 0 {
			last = class
		}
	}
	mixed := value != strings.ToLower(value) // names of packages and images have no capitals
	return mixed && (changes*6 >= len(value) || strings.HasPrefix(value, "AKIA") || strings.HasPrefix(value, "ASIA"))
}
