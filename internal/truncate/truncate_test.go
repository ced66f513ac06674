package truncate

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc…"},
		{"abc", 0, "…"},
		{"aé", 3, "aé"},
		{"aéb", 2, "a…"}, // é has two bytes
		{"a世界", 6, "a世…"},
		{"a\xffbcd", 4, "abc…"},
		{"a\xff", 2, "a\xff"},
	} {
		if got := Bytes(c.text, c.limit); got != c.want {
			t.Errorf("Bytes(%q, %d): got %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}

func TestRunes(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 1, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "ab…"},
		{"世界世界", 3, "世界…"},
		{"ab", 1, "…"},
	} {
		if got := Runes(c.text, c.limit); got != c.want {
			t.Errorf("Runes(%q, %d): got %q, want %q", c.text, c.limit, got, c.want)
		}
	}
}

func FuzzBytes(f *testing.F) {
	f.Add("aé世", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		if limit < 0 {
			t.Skip()
		}
		got := Bytes(s, limit)
		if kept, cut := strings.CutSuffix(got, mark); len(s) > limit && (!cut || len(kept) > limit || !utf8.ValidString(got)) {
			t.Errorf("Bytes(%q, %d): got %q", s, limit, got)
		}
	})
}
