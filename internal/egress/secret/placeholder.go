package secret

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/egress"
)

const (
	// boxSize is how many characters of a placeholder depend on the box alone: 40 bits.
	boxSize = 8
	// proofSize is how many characters prove that the placeholder was made here for the
	// secret and the owner: 90 bits.
	proofSize = 18
)

var placeholderText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// A placeholder is prefix, box and proof. Any box of the owner may use it, since each has
// one of its own anyway: so the programs in a fork of a box can go on with theirs, and
// nothing needs to be remembered.

// placeholder returns the text that stands for the secret in a box.
func (s *secret) placeholder(master []byte, owner, box string) string {
	id := digest(master, "box", box)[:boxSize]
	return s.prefix() + id + s.proof(master, owner, id)
}

func (s *secret) prefix() string {
	if s.Like != "" {
		return s.Like
	}
	return "gbx-secret-" + s.Name + "-"
}

func (s *secret) proof(master []byte, owner, id string) string {
	return digest(master, "secret", owner, s.Name, id)[:proofSize]
}

// digest returns 256 bits as text. The parts cannot be confused with each other.
func digest(master []byte, parts ...string) string {
	mac := hmac.New(sha256.New, master)
	for _, p := range parts {
		sum := sha256.Sum256([]byte(p))
		mac.Write(sum[:])
	}
	return placeholderText.EncodeToString(mac.Sum(nil))
}

// inToken reports whether c continues a token, so that a placeholder beside it is not
// whole.
func inToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}

// maxProofs bounds the proofs that one request makes the server compute. A request needs one or
// two for each secret, as many as there are secrets if their placeholders begin alike, and a
// header has room for thousands of texts that look like a placeholder.
const maxProofs = 256

// proofs counts down the proofs that a request may still have computed.
type proofs int

// replace returns text with the whole placeholders of the secret replaced by its value, and how
// many it replaced. It stops after more than maxReplaced, or when no proof is left.
func (s *secret) replace(text string, master []byte, owner string, left *proofs) (string, int) {
	prefix := s.prefix()
	var b strings.Builder
	n, from := 0, 0
	for at := 0; n <= maxReplaced; {
		i := strings.Index(text[at:], prefix)
		if i < 0 {
			break
		}
		i += at
		at = i + 1
		end := i + len(prefix) + boxSize + proofSize
		if end > len(text) || end < len(text) && inToken(text[end]) || i > 0 && inToken(text[i-1]) {
			continue
		}
		if *left--; *left < 0 {
			return text, 0
		}
		id := text[end-proofSize-boxSize : end-proofSize]
		if !hmac.Equal([]byte(text[end-proofSize:end]), []byte(s.proof(master, owner, id))) {
			continue
		}
		b.WriteString(text[from:i])
		b.WriteString(s.value)
		from, at = end, end
		n++
	}
	if n == 0 {
		return text, 0
	}
	b.WriteString(text[from:])
	return b.String(), n
}

// maxReplaced bounds the placeholders of a header value: Basic has two.
const maxReplaced = 2

// maxSwapped bounds the header values of a request that get a secret: a value can be a
// hundred times as long as its placeholder.
const maxSwapped = 8

// swap replaces the secret's placeholders in one value of a header, plain or in the
// credentials of Basic, and reports whether there was one. A value with more than two is
// left as it is: nothing needs them, and it would grow.
func (s *secret) swap(value string, master []byte, owner string, left *proofs) (string, bool) {
	if swapped, n := s.replace(value, master, owner, left); n > 0 {
		return swapped, n <= maxReplaced
	}
	scheme, encoded, ok := strings.Cut(value, " ")
	if !ok || !strings.EqualFold(scheme, "basic") {
		return value, false
	}
	credentials, err := base64.StdEncoding.DecodeString(strings.TrimLeft(encoded, " "))
	if err != nil {
		return value, false
	}
	swapped, n := s.replace(string(credentials), master, owner, left)
	if n == 0 || n > maxReplaced {
		return value, false
	}
	return scheme + " " + base64.StdEncoding.EncodeToString([]byte(swapped)), true
}

// swap replaces placeholders in the headers of a request to the host: each secret only in
// its headers, and not more than maxSwapped values. After maxProofs proofs, the rest of the
// request goes out as it is. It returns the names of the secrets
// that the request now has. No other byte changes.
func (h *hostSecrets) swap(header http.Header, master []byte, owner string) (used []string) {
	left, budget := maxSwapped, proofs(maxProofs)
	for _, s := range h.secrets {
		for _, name := range s.Headers {
			values := header[http.CanonicalHeaderKey(name)]
			for i, v := range values {
				if left == 0 {
					return used
				}
				if swapped, ok := s.swap(v, master, owner, &budget); ok {
					values[i] = swapped
					left--
					if !slices.Contains(used, s.Name) {
						used = append(used, s.Name)
					}
				}
			}
		}
	}
	return used
}

// misplaced returns where else the request has something like a placeholder of a secret:
// "URL", "header NAME" or "".
func (s *secret) misplaced(u *url.URL, header http.Header) string {
	prefix := s.prefix()
	if s.Like != "" {
		return "" // the prefix is that of other tokens, too
	}
	if strings.Contains(u.Path, prefix) || strings.Contains(u.RawQuery, prefix) {
		return "URL"
	}
	for name, values := range header {
		if slices.ContainsFunc(s.Headers, func(h string) bool { return strings.EqualFold(h, name) }) {
			continue
		}
		for _, v := range values {
			if strings.Contains(v, prefix) {
				return "header " + name
			}
		}
	}
	return ""
}

// Plain implements egress.Interceptor: it reports placeholders that a request of plain HTTP
// has where a request inside of TLS would get the secret.
func (i *Interceptor) Plain(b egress.Box, host string, r *http.Request) (names []string) {
	h := i.host(b, host)
	if h == nil {
		return nil
	}
	left := proofs(maxProofs)
	for _, s := range h.secrets {
		for _, name := range s.Headers {
			for _, v := range r.Header[http.CanonicalHeaderKey(name)] {
				if _, ok := s.swap(v, i.opts.Key, b.Owner, &left); ok && !slices.Contains(names, s.Name) {
					names = append(names, s.Name)
				}
			}
		}
	}
	if len(names) > 0 {
		i.report(Event{Box: b, Host: host, Kind: Unencrypted, Secrets: names})
	}
	return names
}
