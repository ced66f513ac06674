package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"strings"
	"testing"
)

const (
	token = "ghp_0123456789abcdefghijABCDEFGHIJ456789"
	odd   = `p/w+d "q" & 100%~<é>\z`
)

func newSet(t testing.TB, values ...string) *Set {
	t.Helper()
	s, err := New(values...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestString_MasksEveryForm(t *testing.T) {
	for _, value := range []string{token, odd} {
		s := newSet(t, value)
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		ascii := strings.ReplaceAll(string(quoted), "/", `\/`)
		texts := map[string]string{
			"raw":               value,
			"twice":             value + value,
			"hex":               hex.EncodeToString([]byte(value)),
			"HEX":               strings.ToUpper(hex.EncodeToString([]byte(value))),
			"query":             url.QueryEscape(value),
			"path":              url.PathEscape(value),
			"query, lower case": lower(url.QueryEscape(value)),
			"lower case":        lower(value),
			"upper case":        upper(value),
			"mixed case":        upper(value[:len(value)/2]) + lower(value[len(value)/2:]),
			"HEX of upper case": strings.ToUpper(hex.EncodeToString([]byte(upper(value)))),
			"query, upper case": url.QueryEscape(upper(value)),
			"JSON":              strings.Trim(string(quoted), `"`),
			"JSON, slashes":     inJSON(value, false),
			"JSON of PHP":       strings.Trim(strings.NewReplacer(`\u0026`, "&", `\u003c`, "<", `\u003e`, ">").Replace(ascii), `"`),
			"HTML":              html.EscapeString(value),
			"every byte in %":   eachByte(value, "%%%02X"),
			"every byte in \\u": eachByte(value, `\u%04x`),
			"base64":            base64.StdEncoding.EncodeToString([]byte(value)),
			"base64 for URLs":   base64.RawURLEncoding.EncodeToString([]byte(value)),
		}
		for _, user := range []string{"", "u", "us", "use", "x-access-token"} {
			texts["Basic, "+user] = base64.StdEncoding.EncodeToString([]byte(user + ":" + value))
			texts["Basic, lower case, "+user] = base64.StdEncoding.EncodeToString([]byte(user + ":" + lower(value)))
			texts["Basic, upper case, "+user] = base64.RawURLEncoding.EncodeToString([]byte(user + ":" + upper(value)))
			texts["Basic with more, "+user] = base64.URLEncoding.EncodeToString([]byte(user + ":" + value + "\n tail"))
		}
		for name, text := range texts {
			got := s.String("<" + text + ">")
			if len(got) != len(text)+2 {
				t.Errorf("%s: the mask of %q has %d bytes, want %d", name, text, len(got)-2, len(text))
			}
			// At each end at most two characters of base64, which have bits of the
			// neighbouring bytes, are left, and the characters of the user's name.
			left := strings.Trim(got[1:len(got)-1], "*=")
			left = strings.ReplaceAll(strings.ReplaceAll(left, label, ""), "*", "")
			prefix := 2
			if strings.HasPrefix(name, "Basic") {
				prefix = base64.StdEncoding.EncodedLen(len("x-access-token:")+len("\n tail")) + 4
			}
			if len(left) > prefix {
				t.Errorf("%s: %q was masked as %q, which leaves %q", name, text, got, left)
			}
			for at := 0; at+8 <= len(value); at++ {
				if part := lower(value[at : at+8]); strings.Contains(lower(got), part) || strings.Contains(lower(decodeAll(got)), part) {
					t.Fatalf("%s: %q was masked as %q, which discloses %q", name, text, got, part)
				}
			}
		}
	}
}

// decodeAll returns what the runs of base64 in text decode to.
func decodeAll(text string) string {
	var b strings.Builder
	runs := strings.FieldsFunc(text, func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_", r)
	})
	for _, run := range runs {
		run = strings.NewReplacer("-", "+", "_", "/").Replace(run)
		for skip := range min(4, len(run)) {
			cut := run[skip:]
			decoded, _ := base64.RawStdEncoding.DecodeString(cut[:len(cut)&^3])
			b.Write(decoded)
			b.WriteByte(' ')
		}
	}
	return b.String()
}

func TestString_LeavesTheRest(t *testing.T) {
	s := newSet(t, token, "another-secret-value")
	for text, want := range map[string]string{
		"":                             "",
		"nothing here":                 "nothing here",
		"ghp":                          "ghp",
		"ghp_":                         "ghp_",
		"ghp_x" + token[4:]:            "ghp_x" + token[4:],
		token[:20] + " " + token:       token[:20] + " " + label + strings.Repeat("*", len(token)-len(label)),
		"a" + token + "b":              "a" + label + strings.Repeat("*", len(token)-len(label)) + "b",
		"another-secret-value" + token: label + "********" + label + strings.Repeat("*", len(token)-len(label)),
		// The rest may have been cut off.
		"cut " + token[:len(token)-1]: "cut " + label + strings.Repeat("*", len(token)-1-len(label)),
	} {
		if got := s.String(text); got != want {
			t.Errorf("String(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestString_OverlappingValues(t *testing.T) {
	s := newSet(t, "abcdabcd12", "cd12abcdab", "12abcdab")
	if got := s.String("-abcdabcd12abcdab-"); got[0] != '-' || got[17] != '-' || strings.ContainsAny(got[1:17], "12") {
		t.Errorf("String of overlapping values = %q", got)
	}
	if got := newSet(t, "aaaaaaaa").String(strings.Repeat("a", 20) + "."); strings.Count(got, "a") > 2*strings.Count(got, label) {
		t.Errorf("String of a periodic value = %q", got)
	}
}

func TestInName(t *testing.T) {
	s := newSet(t, token)
	for name, want := range map[string]bool{
		"X-Request-Id": false, "Content-Type": false, "X": false,
		token: true, "X-Ghp_0123456789abcdefghijabcdefghij456789-Y": true,
		"X-" + hex.EncodeToString([]byte(token)): true,
	} {
		if got := s.InName(name); got != want {
			t.Errorf("InName(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestNew_RefusesWithoutTheValue(t *testing.T) {
	for _, values := range [][]string{{"short"}, {strings.Repeat("long", 1025)}, make([]string, MaxValues+1)} {
		_, err := New(values...)
		if err == nil || strings.Contains(err.Error(), "short'") || strings.Contains(err.Error(), "long") {
			t.Errorf("New of %d values: error %v, want one without the value", len(values), err)
		}
	}
	if s := newSet(t); s.String(token) != token {
		t.Error("an empty set masks")
	}
}

// inPieces masks text in pieces that end at the given offsets.
func inPieces(s *Set, text []byte, ends ...int) []byte {
	st, out, at := s.Stream(), []byte(nil), 0
	for _, end := range ends {
		out = st.Append(out, text[at:end])
		at = end
	}
	return st.Yield(st.Append(out, text[at:]))
}

func TestStream_SplitAtEveryOffsetEqualsWhole(t *testing.T) {
	for _, value := range []string{token, odd, "aaaaaaaa"} {
		s := newSet(t, value, "hp_0123456")
		for _, form := range forms(value) {
			text := []byte("x" + form[:len(form)/2] + form + form + "y")
			whole := inPieces(s, text)
			each := make([]int, len(text))
			for i := range text {
				each[i] = i
				if got := inPieces(s, text, i); !bytes.Equal(got, whole) {
					t.Fatalf("%q split at %d = %q, want %q", text, i, got, whole)
				}
			}
			if got := inPieces(s, text, each...); !bytes.Equal(got, whole) {
				t.Fatalf("%q byte by byte = %q, want %q", text, got, whole)
			}
		}
	}
}

func TestStream_HoldsBackOnlyWhatMayBeginAValue(t *testing.T) {
	st := newSet(t, token).Stream()
	for _, step := range []struct{ in, out string }{
		{"data: {\"a\":1}\n\n", "data: {\"a\":1}\n\n"},
		{"x" + token[:30], "x"},
		{"no", token[:30] + "no"},
		{"done.\n", "done.\n"},
	} {
		if got := st.Append(nil, []byte(step.in)); string(got) != step.out {
			t.Errorf("Append(%q) = %q, want %q", step.in, got, step.out)
		}
	}
}

// A pause after each byte must not disclose the value.
func TestStream_YieldAfterEachByte(t *testing.T) {
	for _, value := range []string{token, odd, "12345678"} {
		s := newSet(t, value)
		for _, form := range forms(value) {
			st := s.Stream()
			var out []byte
			for i := range len(form) {
				out = st.Yield(st.Append(out, []byte{form[i]}))
			}
			if len(out) != len(form) {
				t.Fatalf("%q with pauses has %d bytes, want %d", form, len(out), len(form))
			}
			seen := 0
			for i := range out {
				if out[i] == form[i] && out[i] != '*' {
					seen++
				}
			}
			// Letters of the label may be the value's by chance.
			if limit := min(maxEarly, len(value)/8) + len(label); string(out[maxEarly:]) == form[maxEarly:] || seen > limit {
				t.Errorf("%q with pauses = %q: %d bytes disclosed", form, out, seen)
			}
		}
	}
}

func FuzzStream_SplitEqualsWhole(f *testing.F) {
	f.Add([]byte(token), []byte("x "+token+base64.StdEncoding.EncodeToString([]byte(":"+token))), uint16(3), uint16(50))
	f.Add([]byte("aaaaaaaa"), bytes.Repeat([]byte("a"), 40), uint16(1), uint16(9))
	f.Add([]byte(odd), []byte(eachByte(odd, "%%%02x")), uint16(2), uint16(7))
	f.Fuzz(func(t *testing.T, value, text []byte, a, b uint16) {
		if len(value) < MinValue || len(value) > 64 || len(text) > 4<<10 {
			return
		}
		s := newSet(t, string(value))
		text = append(append(append([]byte(nil), text...), value...), text...)
		i, j := int(a)%(len(text)+1), int(b)%(len(text)+1)
		i, j = min(i, j), max(i, j)
		whole := inPieces(s, text)
		if got := inPieces(s, text, i, j); !bytes.Equal(got, whole) {
			t.Fatalf("mask %q in %q split at %d and %d: %q, want %q", value, text, i, j, got, whole)
		}
		if len(whole) != len(text) {
			t.Fatalf("mask %q in %q: %d bytes, want %d", value, text, len(whole), len(text))
		}
		for _, form := range forms(string(value)) {
			if bytes.Contains(whole, []byte(form)) && !strings.Contains(label+strings.Repeat("*", 64), form) {
				checkNew(t, text, whole, form)
			}
		}
	})
}

// checkNew fails unless the form in masked consists in part of masks.
func checkNew(t *testing.T, text, masked []byte, form string) {
	t.Helper()
	for at := 0; ; {
		i := bytes.Index(masked[at:], []byte(form))
		if i < 0 {
			return
		}
		at += i
		if bytes.Equal(text[at:at+len(form)], []byte(form)) {
			t.Fatalf("%q is left in %q, masked as %q", form, text, masked)
		}
		at++
	}
}

func BenchmarkStream(b *testing.B) {
	s := newSet(b, token)
	for name, text := range map[string][]byte{
		"text":    bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog. 0123456789 {\"a\": 1}\n"), 500),
		"base64":  []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1, 7, 200, 93, 18, 255, 4}, 3500))),
		"matches": bytes.Repeat([]byte(token), 800),
	} {
		b.Run(name, func(b *testing.B) {
			st, dst := s.Stream(), make([]byte, 0, 64<<10)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				dst = st.Append(dst[:0], text)
			}
		})
	}
}
