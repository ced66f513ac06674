package redact

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
)

// sink records what is written.
type sink struct {
	buf bytes.Buffer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	return s.buf.Write(p)
}

func (s *sink) String() string { return s.buf.String() }

func TestWriter_PassesOnMessages(t *testing.T) {
	var out sink
	var turn sync.Mutex
	w := newSet(t, token).NewWriter(&out, &turn)
	defer w.Abort()
	all := ""
	for _, part := range []struct {
		text string
		ends bool
	}{{"event\n\n", true}, {"ping", false}, {" pong\r\n", true}, {"g", false}, {"\n", true}} {
		before := out.String()
		io.WriteString(w, part.text)
		all += part.text
		want := before
		if part.ends {
			want = all
		}
		if got := out.String(); got != want {
			t.Errorf("after %q: got %q, want %q", part.text, got, want)
		}
	}
}

// TestWriter_BeginningWaits: wherever the source pauses within a value, and however long the text
// before it is, no byte of the value is written before the rest comes.
func TestWriter_BeginningWaits(t *testing.T) {
	set := newSet(t, token)
	forms := []string{token, base64.StdEncoding.EncodeToString([]byte("Bearer " + token)), percent(token)}
	for _, form := range forms {
		for n := 1; n < len(form); n++ {
			for _, before := range []string{"", "event\n\n", strings.Repeat(".", piece)} {
				var out sink
				w := set.NewWriter(&out, nil)
				io.WriteString(w, before+form[:n])
				if got := out.String(); !strings.HasPrefix(before, got) {
					t.Fatalf("%d bytes of %q: got %q", n, form, strings.TrimPrefix(got, before))
				}
				io.WriteString(w, form[n:]+"\n\n")
				w.Close()
				if got := out.String(); got != before+set.String(form)+"\n\n" || set.String(form) == form {
					t.Fatalf("the rest after %d bytes of %q: got %q", n, form, strings.TrimPrefix(got, before))
				}
			}
		}
	}
}

// percent returns text with an escape for each byte.
func percent(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		b.WriteString("%" + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]))
	}
	return b.String()
}

// TestWriter_LinesOfBase64: lines that a value in base64 may go on after are no ends of messages.
func TestWriter_LinesOfBase64(t *testing.T) {
	set := newSet(t, token)
	for _, end := range []string{"\r\n", "\n", "\r\r\n", "&#13;\n", "\r\n  "} {
		for pad := range 60 {
			width := 60 + pad%4*4 // 60 to 72
			encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", pad) + token + strings.Repeat("y", 60)))
			var lines []string
			for len(encoded) > width {
				lines, encoded = append(lines, encoded[:width]+end), encoded[width:]
			}
			lines = append(lines, encoded+"\r\n")
			var out sink
			w := set.NewWriter(&out, nil)
			for _, line := range lines { // the source writes each by itself
				io.WriteString(w, line)
			}
			w.Close()
			if got, want := out.String(), set.String(strings.Join(lines, "")); got != want || !strings.Contains(got, "*") {
				t.Fatalf("width %d, line end %q, %d bytes before: got %q, want %q", width, end, pad, got, want)
			}
		}
	}
}

func TestWriter_CloseWritesTheRest(t *testing.T) {
	var out sink
	w := newSet(t, token).NewWriter(&out, nil)
	io.WriteString(w, strings.Repeat("x", 2*piece)+token+"gh")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); len(got) != 2*piece+len(token)+2 || !strings.HasSuffix(got, "*gh") || w.Matches() != 1 {
		t.Errorf("%d bytes ending in %q and %d matches, want %d, the rest, and 1", len(got), got[len(got)-5:], w.Matches(), 2*piece+len(token)+2)
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write after Close: %v, want %v", err, io.ErrClosedPipe)
	}
}

func TestWriter_KeepsTheError(t *testing.T) {
	broken := errors.New("broken")
	out := sink{err: broken}
	w := newSet(t, token).NewWriter(&out, nil)
	if _, err := io.WriteString(w, strings.Repeat("x", piece)); !errors.Is(err, broken) {
		t.Errorf("Write: %v, want %v", err, broken)
	}
	if err := w.Close(); !errors.Is(err, broken) {
		t.Errorf("Close: %v, want %v", err, broken)
	}
}

func TestLines_End(t *testing.T) {
	long := strings.Repeat("a", base64End)
	for text, want := range map[string]int{
		"": 0, "a": 0, "\n": 1, "\r\n": 2, "a\n": 2, "a\n\n": 3, "a\nb": 2, "\r": 0, "step 1 done\nstep 2: ": 12,
		long + "\n": 0, long + "\r\n": 0, long + "\r\r\n": 0, long + ".\n": base64End + 2, " " + long[1:] + "\n": base64End + 1,
		long + "\n\n": base64End + 2, "==" + long + "\n": 0, "x\n" + long + "\n": 2, long + "&#13;\n": 0, long + "\\n\n": 0,
	} {
		for split := range len(text) + 1 {
			var l lines
			got := l.end([]byte(text[:split]))
			if n := l.end([]byte(text[split:])); n > 0 {
				got = split + n
			}
			if got != want {
				t.Errorf("%q and %q: got %d, want %d", text[:split], text[split:], got, want)
			}
		}
	}
}
