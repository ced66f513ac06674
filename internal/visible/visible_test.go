package visible

import (
	"encoding/json"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestEscapes(t *testing.T) {
	for _, tt := range []struct{ name, in, line, text string }{
		{"plain", "a b-c_é 日本 🙂", "a b-c_é 日本 🙂", "a b-c_é 日本 🙂"},
		{"ANSI", "a\x1b[2Jb", `a\x1b[2Jb`, `a\x1b[2Jb`},
		{"title of the window", "\x1b]0;x\x07", `\x1b]0;x\x07`, `\x1b]0;x\x07`},
		{"C1", "a\u009b2Jb", `a\u009b2Jb`, `a\u009b2Jb`},
		{"carriage return", "safe\revil", `safe\revil`, `safe\revil`},
		{"line break", "a\n\tb", `a\n\tb`, "a\n\tb"},
		{"bidi", "a\u202eb\u2066c\u200fd", `a\u202eb\u2066c\u200fd`, `a\u202eb\u2066c\u200fd`},
		{"zero width", "a\u200bb\ufeffc\u2060d", `a\u200bb\ufeffc\u2060d`, `a\u200bb\ufeffc\u2060d`},
		{"tags", "a\U000e0041\U000e007fb", `a\U000e0041\U000e007fb`, `a\U000e0041\U000e007fb`},
		{"variation selectors", "a\U000e0100b\ufe01", `a\U000e0100b\ufe01`, `a\U000e0100b\ufe01`},
		{"fillers", "a\u3164b\u2800c\u034f", `a\u3164b\u2800c\u034f`, `a\u3164b\u2800c\u034f`},
		{"soft hyphen", "a\u00adb", `a\u00adb`, `a\u00adb`},
		{"line separators", "a\u2028b\u2029", `a\u2028b\u2029`, `a\u2028b\u2029`},
		{"spaces", "a\u00a0b\u3000c", `a\u00a0b\u3000c`, "a\u00a0b\u3000c"},
		{"joiners", "👩\u200d💻 ❤\ufe0f", `👩\u200d💻 ❤\ufe0f`, "👩\u200d💻 ❤\ufe0f"},
		{"invalid UTF-8", "a\xffb", `a\xffb`, `a\xffb`},
		{"replacement character", "a\ufffdb", "a\ufffdb", "a\ufffdb"},
	} {
		if got := Line(tt.in); got != tt.line {
			t.Errorf("%s: Line(%q) = %q, want %q", tt.name, tt.in, got, tt.line)
		}
		if got := Text(tt.in); got != tt.text {
			t.Errorf("%s: Text(%q) = %q, want %q", tt.name, tt.in, got, tt.text)
		}
	}
}

func TestSchema(t *testing.T) {
	decode := func(text string) (v any) {
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, tt := range []struct {
		in, want string
		ok       bool
	}{
		{`{"type":"object","properties":{"a":{"type":"string","description":"x\u202ey"}},"required":["a"]}`,
			`{"properties":{"a":{"description":"x\\u202ey","type":"string"}},"required":["a"],"type":"object"}`, true},
		{`{"properties":{"a":{"enum":["x\u200by"]}}}`, "", false},
		{`{"properties":{"a\u202e":{}}}`, "", false},
		{`{"properties":{"a":{"default":"\u001b[2J"}}}`, "", false},
		{`{"properties":{"title":{"type":"string"}},"maximum":1,"x":null}`, `{"maximum":1,"properties":{"title":{"type":"string"}},"x":null}`, true},
	} {
		got, ok := Schema(decode(tt.in))
		text, err := json.Marshal(got)
		if err != nil || ok != tt.ok || ok && string(text) != tt.want {
			t.Errorf("Schema(%s) = %s, %v, want %s, %v", tt.in, text, ok, tt.want, tt.ok)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\x1b[2J\u202e\U000e0041\xff")
	f.Add("\u2065\ufff0\U000c0041\ue000") // unassigned and private characters
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Line(s) {
			if !unicode.IsPrint(r) {
				t.Errorf("Line(%q) has %U", s, r)
			}
		}
		if !utf8.ValidString(s) {
			return
		}
		document, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal(JSON(document), &back); err != nil || back != s {
			t.Errorf("JSON(%s) = %s, which reads as %q, %v", document, JSON(document), back, err)
		}
	})
}
