package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"maps"

	"net/url"
	"slices"
	"strings"
	"testing"
)

const (
	token = "ghp_0123456789abcdefghijABCDEFGHIJ456789"
	odd   = `p/w+d "q" & 100%~'<e>\z(!)`
)

func newSet(t testing.TB, values ...string) *Set {
	t.Helper()
	s, err := New(values...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// jsonOf returns value as the content of a JSON string.
func jsonOf(value string, escapeHTML bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(escapeHTML)
	if err := enc.Encode(value); err != nil {
		panic(err) // strings encode
	}
	return strings.TrimSuffix(strings.TrimPrefix(b.String(), `"`), "\"\n")
}

// eachByte formats every byte of value that is in which, every one if which is empty.
func eachByte(value, format, which string) string {
	var b strings.Builder
	for i := range len(value) {
		if which == "" || strings.IndexByte(which, value[i]) >= 0 {
			fmt.Fprintf(&b, format, value[i])
		} else {
			b.WriteByte(value[i])
		}
	}
	return b.String()
}

// wrapped returns text in lines.
func wrapped(text string, columns int, end string) string {
	var b strings.Builder
	for len(text) > columns {
		b.WriteString(text[:columns] + end)
		text = text[columns:]
	}
	return b.String() + text
}

// escapedBy returns value with the escapes of libraries in common use.
func escapedBy(value string) map[string]string {
	escaped := html.EscapeString(value)
	return map[string]string{
		"raw": value, "lower case": lower(value), "upper case": upper(value),
		"mixed case": upper(value[:len(value)/2]) + lower(value[len(value)/2:]),
		"query":      url.QueryEscape(value), "path": url.PathEscape(value),
		"query, lower case": lower(url.QueryEscape(value)), "query, upper case": url.QueryEscape(upper(value)),
		"encodeURIComponent":    eachByte(value, "%%%02X", " \"#$%&+,/:;<=>?@[\\]^`{|}"),
		"encodeURI":             eachByte(value, "%%%02X", " \"%<>[\\]^`{|}"),
		"quote of Python":       eachByte(value, "%%%02X", " !\"#$%&'()*+,:;<=>?@[\\]^`{|}"),
		"JSON":                  jsonOf(value, true),
		"JSON, plain":           jsonOf(value, false),
		"JSON of PHP":           strings.ReplaceAll(jsonOf(value, false), "/", `\/`),
		"System.Text.Json":      eachByte(value, `\u%04X`, "\"&'+<>`\\"),
		"Gson":                  strings.ReplaceAll(strings.ReplaceAll(jsonOf(value, true), "=", `\u003d`), "'", `\u0027`),
		"repr of Python":        strings.ReplaceAll(strings.ReplaceAll(value, `\`, `\\`), "'", `\'`),
		"HTML of Go":            escaped,
		"html/template":         strings.ReplaceAll(escaped, "+", "&#43;"),
		"HTML of names":         strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(escaped),
		"escape-html":           strings.ReplaceAll(escaped, "&#34;", "&quot;"),
		"HTML of Python":        strings.NewReplacer("&#34;", "&quot;", "&#39;", "&#x27;").Replace(escaped),
		"HTML of PHP":           strings.NewReplacer("&#34;", "&quot;", "&#39;", "&#039;").Replace(escaped),
		"HTML without quotes":   strings.NewReplacer("&#34;", `"`, "&#39;", "'").Replace(escaped),
		"Handlebars":            eachByte(value, "&#x%X;", "&<>\"'`="),
		"every byte in %":       eachByte(value, "%%%02X", ""),
		"every byte in \\u":     eachByte(value, `\u%04x`, ""),
		"every byte in \\x":     eachByte(value, `\x%02x`, ""),
		"every byte in HTML":    eachByte(value, "&#%d;", ""),
		"every byte in HTML, x": eachByte(value, "&#x%x;", ""),
	}
}

// encoded returns value in hexadecimal and base64.
func encoded(value string) map[string]string {
	in64 := base64.StdEncoding.EncodeToString([]byte("some bytes before: " + value + " some bytes after"))
	texts := map[string]string{
		"hex": hex.EncodeToString([]byte(value)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value))),
		"HEX of upper case":   strings.ToUpper(hex.EncodeToString([]byte(upper(value)))),
		"base64":              base64.StdEncoding.EncodeToString([]byte(value)),
		"base64 for URLs":     base64.RawURLEncoding.EncodeToString([]byte(value)),
		"base64, query":       url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(value))),
		"base64, JSON of PHP": strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte(value)), "/", `\/`),
		"base64, 76 columns":  wrapped(in64, 76, "\r\n"),
		"base64, 64 columns":  wrapped(in64, 64, "\n"),
		"base64, 20 columns":  wrapped(in64, 20, "\n"),
		"base64, JSON lines":  wrapped(in64, 64, `\n`),
		"base64, folded":      wrapped(in64, 60, "\r\n "),
		"base64, HTML lines":  wrapped(in64, 64, "&#13;&#10;"),
		"base64, CRLF, JSON":  wrapped(in64, 64, `\r\n`),
	}
	for _, user := range []string{"", "u", "us", "use", "x-access-token"} {
		texts["Basic, "+user] = base64.StdEncoding.EncodeToString([]byte(user + ":" + value))
		texts["Basic, lower case, "+user] = base64.StdEncoding.EncodeToString([]byte(user + ":" + lower(value)))
		texts["Basic, upper case, "+user] = base64.RawURLEncoding.EncodeToString([]byte(user + ":" + upper(value)))
		texts["Basic with more, "+user] = base64.URLEncoding.EncodeToString([]byte(user + ":" + value + "\n tail"))
	}
	return texts
}

func TestString_MasksEveryForm(t *testing.T) {
	for _, value := range []string{
		token, odd, "Pass(Word)*2024+abc/def", `Pa"ss<word>&2024/abc+d`, "It's-a-pass&word/2024+x=", token + token[:3] + hex.EncodeToString([]byte("a longer token, of a person")),
		"sv=2024-11-04&ss=b&srt=co&se=2027-01-01T00%3A00%3A00Z&sig=abc%2BdefGHIjkl%2Fmno%3D", `CORP\nightly:pass<word>&more"`, `a&lt;b"c'd&amp;ef+gh/ij`, "aB3/Kx9+0f1e2d3c4b5a69788796a5b4c3d2e1f0aB==",
	} {
		s := newSet(t, value)
		for name, text := range escapedBy(value) {
			// The text before may end with the beginning of an escape that the library does not know.
			for _, before := range []string{"<", "%", "%0", `\`, `\x0`, `\u000`, "&", "&#", "&#4"} {
				if text != value && strings.Contains(text, before[:1]) {
					continue // the library escapes its own
				}
				got := s.String(before + text + ">")
				got = strings.TrimSuffix(strings.TrimPrefix(got, before), ">")
				if len(got) != len(text) || strings.Trim(strings.ReplaceAll(got, label, ""), "*") != "" {
					t.Errorf("%s after %s: %q was masked as %q", name, before, text, got)
				}
			}
		}
		for name, text := range encoded(value) {
			got := s.String("<" + text + ">")
			if len(got) != len(text)+2 {
				t.Errorf("%s: the mask of %q has %d bytes, want %d", name, text, len(got)-2, len(text))
			}
			if !strings.Contains(got, "*") {
				t.Errorf("%s: %q was not masked", name, text)
			}
			plain := strings.NewReplacer("\r", "", "\n", "", `\n`, "", `\r`, "", " ", "", "&#13;&#10;", "").Replace(got)
			for at := 0; at+6 <= len(value); at++ {
				if part := lower(value[at : at+6]); strings.Contains(lower(plain), part) || strings.Contains(lower(decodeAll(plain)), part) {
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
		"cut " + token[:32]:           "cut " + label + strings.Repeat("*", 32-len(label)),
		// A program that guesses would learn each byte.
		"cut " + token[:31]: "cut " + token[:31],
		// So it would if the last bytes had to be right.
		token[:32] + "guess789abcdef":         label + strings.Repeat("*", 40-len(label)) + "abcdef"[:6-0],
		token[:32] + "%41%42\\u0043d&lt;fgh.": label + strings.Repeat("*", 32+20-len(label)) + ".",
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

// forms returns the encodings and escapes of value.
func forms(value string) []string {
	all := slices.Collect(maps.Values(escapedBy(value)))
	for _, v := range []string{value, lower(value), upper(value)} {
		all = append(all, hex.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v)))
	}
	return all
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

// TestStream_HoldsBackRegardlessOfTheData: what a stream holds back, and so delays, does not tell
// whether it begins a value.
func TestStream_HoldsBackRegardlessOfTheData(t *testing.T) {
	s := newSet(t, token)
	for _, text := range []string{"data: {}", "x" + token[:1], "x" + token[:30], token} {
		st := s.Stream()
		if got := st.Append(nil, []byte(text)); len(got) > 0 {
			t.Errorf("Append(%q) = %q, want nothing", text, got)
		}
		filler := strings.Repeat(".", 10_000)
		if got := st.Append(nil, []byte(filler)); len(got) != len(text)+len(filler)-s.hold {
			t.Errorf("%q: %d bytes of %d are passed on", text, len(got), len(text)+len(filler))
		}
	}
}

// TestStream_Guesses: a program that has text of its own masked does not find the value byte by
// byte, in any form: no beginning is masked before nearly the whole value.
func TestStream_Guesses(t *testing.T) {
	for _, value := range []string{token, odd, "12345678", "123456789abc", "&>k9Xw2mQp7vRz4L", `<<<"<"\"&&abcdefghij`, strings.Repeat("ab", 50)} {
		s := newSet(t, value)
		need := needed(value)
		for n := 1; n < len(value); n++ {
			for _, begun := range forms(value[:n]) {
				st := s.Stream()
				got := string(st.Yield(st.Append(nil, []byte("<"+begun))))
				if masked := got != "<"+begun; masked != (st.Matches() > 0) || masked && n < need {
					t.Fatalf("%d of %d bytes of %q in the form %q: got %q and %d matches; nothing is masked before %d bytes", n, len(value), value, begun, got, st.Matches(), need)
				}
			}
			if got := s.String("<" + value[:n]); n >= need && got == "<"+value[:n] {
				t.Fatalf("%q without its end is not masked: %q", value, got)
			}
		}
	}
}

// TestStream_Pauses: after a pause within a value the rest of it is masked.
func TestStream_Pauses(t *testing.T) {
	for _, value := range []string{token, odd, "12345678"} {
		s := newSet(t, value)
		for _, form := range forms(value) {
			for at := 1; at < len(form); at++ {
				st := s.Stream()
				out := st.Yield(st.Append(nil, []byte(form[:at])))
				out = st.Yield(st.Append(out, []byte(form[at:])))
				rest := strings.Trim(strings.ReplaceAll(string(out[at:]), label, ""), "*=")
				if len(out) != len(form) || len(rest) > 1 { // a last character of base64
					t.Fatalf("%q with a pause after %d bytes = %q", form, at, out)
				}
			}
		}
	}
}

func FuzzStream_SplitEqualsWhole(f *testing.F) {
	f.Add([]byte(token), []byte("x "+token+base64.StdEncoding.EncodeToString([]byte(":"+token))), uint16(3), uint16(50))
	f.Add([]byte("aaaaaaaa"), bytes.Repeat([]byte("a"), 40), uint16(1), uint16(9))
	f.Add([]byte(odd), []byte(eachByte(odd, "%%%02x", "")), uint16(2), uint16(7))
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

// TestStream_TriesTellNothing: a stream masks all texts with the first bytes of a value alike, so
// that a program which knows these bytes cannot find the last ones by trial.
func TestStream_TriesTellNothing(t *testing.T) {
	for _, value := range []string{token, odd, "svc-deploy-2024:x9Qv"} {
		s := newSet(t, value)
		for n := range len(value) - 1 {
			right, wrong := value[:n+1]+"zzzzzzzz.", value[:n]+"\x7fzzzzzzzz."
			if got, other := s.String(right), s.String(wrong); n+1 != needed(value) && (got == right) != (other == wrong) {
				t.Errorf("%q is masked as %q, %q as %q", right, got, wrong, other)
			}
		}
	}
}

// TestStream_SplitBeforeAnEscape: a piece that ends with the beginning of an escape does not hide a
// value that begins with an escape in the next piece.
func TestStream_SplitBeforeAnEscape(t *testing.T) {
	for _, value := range []string{`+abcDEF0123456789/ghiJKL=mn"op`, `"quoted+and/more&than<that>0123`, "/slash/first/0123456789abcdef+/"} {
		s := newSet(t, value)
		for name, text := range escapedBy(value) {
			for _, before := range []string{"%", "%4", "%D", `\u00`, `\x4`, "&", "&am", "&#6", "&#"} {
				if text != value && strings.Contains(text, before[:1]) && !strings.HasPrefix(text, before[:1]) {
					continue
				}
				st := s.Stream()
				got := string(st.Yield(st.Append(st.Append(nil, []byte(before)), []byte(text))))
				if whole := s.String(before + text); got != whole {
					t.Errorf("%s after %q in two pieces is masked as %q, in one as %q", name, before, got, whole)
				}
				if strings.HasPrefix(text, before[:1]) && got == before+text {
					t.Errorf("%s after %q is not masked: %q", name, before, got)
				}
			}
		}
	}
}

// TestStream_PeriodicValue: a text that repeats a part of a value takes linear time and is masked.
func TestStream_PeriodicValue(t *testing.T) {
	st := newSet(t, strings.Repeat("ab", MaxValue/2)).Stream()
	text := []byte(strings.Repeat("ab", 1<<20))
	if got := st.Yield(st.Append(nil, text)); bytes.Contains(got, []byte("ab")) || len(got) != len(text) || st.Matches() != 1 {
		t.Errorf("%d times ab in %d bytes, and %d matches", bytes.Count(got, []byte("ab")), len(got), st.Matches())
	}
}

// FuzzUnit: units do not depend on the pieces in which a text arrives, and end.
func FuzzUnit(f *testing.F) {
	for _, s := range []string{"%41", `\u0041\x41\"\n`, "&#65;&#x41;&amp;&quot;&;&#;&#x;", "%4", `\u00`, "&am", "&#99999999999;", "a+b"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for at := 0; at < len(text); {
			var whole, part unit
			more := whole.next(text[at:], inURL|inJSON|inHTML)
			if whole.size < 1 || whole.size > min(maxUnit, len(text)-at) || whole.n < 1 || more && whole.size != 1 {
				t.Fatalf("%q: %+v, more %v", text[at:], whole, more)
			}
			for end := at + 1; end < len(text); end++ {
				if more := part.next(text[at:end], inURL|inJSON|inHTML); !more && part != whole {
					t.Fatalf("%q is %+v, and %q is %+v", text[at:], whole, text[at:end], part)
				}
			}
			at += whole.size
		}
	})
}
