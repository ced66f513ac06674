package cleantext

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "a\tb\nc", "a\tb\nc"},
		{"unicode", "Grüße 世界 👩‍🔬", "Grüße 世界 👩‍🔬"},
		{"colour", "\x1b[1;31mred\x1b[0m", "red"},
		{"cursor", "a\x1b[2K\x1b[?25lb", "ab"},
		{"title by BEL", "a\x1b]0;title\x07b", "ab"},
		{"link by ST", "\x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\", "text"},
		{"sixel", "a\x1bPq#0;2;0;0;0#0~~\n-\x1b\\b", "ab"},
		{"kitty", "a\x1b_Gf=100;AAAA\x1b\\b", "ab"},
		{"charset", "\x1b(Bx\x1b=y", "xy"},
		{"C1 CSI", "\u009b31mx", "x"},
		{"C1 OSC", "\u009d0;t\u009cx", "x"},
		{"raw C1 byte", "\x9b31m", "\ufffd31m"},
		{"unfinished OSC ends with the line", "\x1b]0;never\nx", "\nx"},
		{"unfinished CSI at a newline", "\x1b[31\nx", "\nx"},
		{"cancelled", "\x1b]0;a\x18b", "b"},
		{"escape inside a string", "\x1bPabc\x1b[31mx", "x"},
		{"NUL and friends", "a\x00b\x07c\x08d\x7fe", "abcde"},
		{"CR LF", "a\r\nb", "a\nb"},
		{"progress bar", "a\n10%\r20%\r\nb", "a\n20%\nb"},
		{"progress bar that clears its line", "10%\r\x1b[2K20%\r\x1b[K", "20%"},
		{"carriage returns only", "a\r\r\r\nb\r", "a\nb"},
		{"tab after a carriage return", "a\r\tb", "\tb"},
		{"bidi", "a\u202eb\u2066c\u200fd", "abcd"},
		{"tags", "a\U000e0041b", "ab"},
		{"bad UTF-8", "a\xff\xc3b\xe4\xb8", "a\ufffd\ufffdb\ufffd\ufffd"},
		{"endless DCS", "\x1bP" + strings.Repeat("x", maxSequence-1) + "tail", "tail"},
	} {
		if got := Clean(tt.in); got != tt.want {
			t.Errorf("%s: got %.200q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestClean_ProgressBarTakesLinearTime: a megabyte of one line that is written anew
// all the time is cleaned in much less than the square of its length.
func TestClean_ProgressBarTakesLinearTime(t *testing.T) {
	for name, in := range map[string]string{
		"short states":       strings.Repeat("10%\r", 1<<20),
		"carriage returns":   strings.Repeat("x", 1<<20) + strings.Repeat("\r", 1<<20) + "y",
		"sequences amid":     strings.Repeat("\r\x1b[K", 1<<20) + "y",
		"one long last line": strings.Repeat("x\n", 1<<20) + strings.Repeat("z\r", 1<<20) + "y",
	} {
		start := time.Now()
		got := Clean(in)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: %d bytes took %v", name, len(in), took)
		}
		if !strings.HasSuffix(got, "y") && got != "10%" || strings.HasSuffix(got, "zy") {
			t.Errorf("%s: got %.20q", name, got)
		}
	}
}

// TestCleaner_AppendOnly: in output that has left already, each state of a line is a
// line.
func TestCleaner_AppendOnly(t *testing.T) {
	c := Cleaner{AppendOnly: true}
	var got string
	for _, part := range []string{"10%\r", "20%\r\n", "a\r", "\nb\r\r", "c\n"} {
		got += string(c.Append(nil, []byte(part)))
	}
	if want := "10%\n20%\na\nb\nc\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"a\x1b[31mb", "\x1b]0;t\x1b\\x", "\u009bm\r\n\r", "\xe4\xb8\x96\xff\xc3", "\x1bP\x1b\x1b[\x18", "\u202e\x00"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		whole := Clean(string(in))
		if !utf8.ValidString(whole) {
			t.Fatalf("Clean(%q) is not UTF-8: %q", in, whole)
		}
		for _, r := range whole {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || invisible(r) {
				t.Fatalf("Clean(%q): %U is left in %q", in, r, whole)
			}
		}
		if again := Clean(whole); again != whole {
			t.Fatalf("clean twice: got %q, want %q", again, whole)
		}
		if len(in) > 0 {
			cut = int(uint(cut) % uint(len(in)+1))
		} else {
			cut = 0
		}
		var c Cleaner
		got := c.Append(nil, in[:cut])
		got = c.Append(got, in[cut:])
		if got = c.Flush(got); string(got) != whole {
			t.Fatalf("cut at %d of %q: got %q, want %q", cut, in, got, whole)
		}
	})
}
