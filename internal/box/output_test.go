package box

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/box/cleantext"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

func smallConfig() *Config {
	c := DefaultConfig()
	c.OutputHead, c.OutputTail, c.MaxImages, c.MaxImageSize = 1000, 100, 2, 1000
	return &c
}

// The collector does not trust the agent's own bounds.
func TestCollector_Bounds(t *testing.T) {
	c := newCollector(smallConfig(), nil)
	for range 10_000 {
		c.Output(protocol.Stdout, []byte(strings.Repeat("x", 997)+"\n"))
	}
	for range 1000 {
		c.Display(protocol.Display{Result: true, Data: map[string]string{"text/plain": strings.Repeat("v", 500)}})
		c.Display(protocol.Display{Data: map[string]string{"image/png": tinyPNG, "text/plain": "<P>"}})
	}
	out, notes := c.stdout.text(protocol.Output{Bytes: -5, Omitted: -7, Path: "/x\n\x1b[31m" + strings.Repeat("p", 10_000)}, nil)
	if len(out) > 4000 || !strings.Contains(out, "9978900 of 9980000 bytes left out here; whole output in /xp") {
		t.Errorf("got %d bytes: %.3000q", len(out), out)
	}
	if len(notes) != 1 || len(notes[0]) > 500 {
		t.Errorf("notes: got %q", notes)
	}
	if len(c.images) != 2 || c.skipped[skipNumber] != 998-protocol.MaxDisplays || len(c.unshown) != protocol.MaxDisplays || c.skipped[skipDocument] == 0 || len(c.documents) != maxDocuments {
		t.Errorf("got %d images and %d documents, %v left out", len(c.images), len(c.documents), c.skipped)
	}
	got := c.notes(0)
	if len(got) != 3+maxDocuments || got[0] != "958 images were left out: a result has at most 2." ||
		got[1] != "40 images not shown: a result has at most 2. 40 could not be saved." {
		t.Errorf("notes: got %q", got)
	}
}

// TestCollector_DocumentsAreBounded: a run cannot make the server keep more than
// maxDocumentBytes of what it displays.
func TestCollector_DocumentsAreBounded(t *testing.T) {
	c := newCollector(smallConfig(), nil)
	for range maxDocuments + 1 {
		c.Display(protocol.Display{Data: map[string]string{"image/svg+xml": strings.Repeat("x", maxDocumentBytes/2)}})
	}
	if len(c.documents) != 2 || c.skipped[skipDocument] != maxDocuments-1 {
		t.Errorf("got %d documents, %v left out", len(c.documents), c.skipped)
	}
	if notes := c.notes(0); len(notes) != 3 || !strings.HasPrefix(notes[2], "4 more displays not shown") {
		t.Errorf("notes: got %q", notes)
	}
}

// A result names the files of the images that it has no room for.
func TestCollector_UnshownImages(t *testing.T) {
	c := newCollector(smallConfig(), nil)
	for range 4 {
		c.Display(protocol.Display{Data: map[string]string{"image/png": tinyPNG}})
	}
	c.unshown[0].Path, c.unshown[1].Path = "/home/user/.outputs/figure-3.png", "/home/user/.outputs/figure-4.png"
	want := []string{
		"2 images not shown: a result has at most 2. 2 files in /home/user/.outputs: figure-3.png, figure-4.png.",
		"7 displays left out: a call keeps at most 40, of 8 MB each. Save figures to files with savefig, or show fewer in one call.",
	}
	if got := c.notes(7); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The traceback of an uncaught error is kept if the result shows a part of it.
func TestCollector_LongTraceback(t *testing.T) {
	c := newCollector(smallConfig(), nil)
	c.keepTraceback(nil)
	c.keepTraceback(&protocol.RunError{Traceback: strings.Repeat("x", maxTraceback)})
	if len(c.documents) != 0 {
		t.Errorf("kept %d tracebacks that are shown", len(c.documents))
	}
	long := strings.Repeat("x", maxTraceback) + "y"
	c.keepTraceback(&protocol.RunError{Traceback: long})
	if len(c.documents) != 1 || c.documents[0].data != long {
		t.Fatalf("kept %d documents, want the traceback", len(c.documents))
	}
	c.documents[0].path = "/x"
	if got, want := c.notes(0), []string{"The traceback of 8193 bytes is cut: see /x."}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCollector_Order(t *testing.T) {
	c := newCollector(smallConfig(), nil)
	c.Output(protocol.Stdout, []byte("a\xe2\x82"))
	c.Output(protocol.Stdout, []byte("\xac\n"))
	c.Display(protocol.Display{Result: true, Data: map[string]string{"text/plain": "1"}})
	c.Output(protocol.Stderr, []byte("e"))
	c.Output(protocol.Stdout, []byte("b"))
	c.Display(protocol.Display{Data: map[string]string{"text/plain": "\x1b[1m2"}})
	c.Display(protocol.Display{Data: map[string]string{"text/plain": ""}})
	out, notes := c.stdout.text(protocol.Output{}, nil)
	if out != "a€\n1\nb\n2\n" || notes != nil || len(c.notes(0)) != 0 {
		t.Errorf("got %q, %q, %q", out, notes, c.notes(0))
	}
	if got, _ := c.stderr.text(protocol.Output{}, nil); got != "e" {
		t.Errorf("stderr: got %q", got)
	}
}

func TestDecodeImage(t *testing.T) {
	lines := tinyPNG[:40] + "\n" + tinyPNG[40:] + "\n"
	if img, err := decodeImage("image/png", lines, 1000); err != nil || img == nil {
		t.Errorf("base64 in lines: got %v, %v", img, err)
	}
	for _, tt := range []struct{ mime, data string }{
		{"image/jpeg", tinyPNG},
		{"image/png", "not base64!"},
		{"image/png", ""},
		{"image/gif", base64.StdEncoding.EncodeToString([]byte("<script>"))},
	} {
		if img, err := decodeImage(tt.mime, tt.data, 1000); err == nil {
			t.Errorf("%s %.20q: got %d bytes, want an error", tt.mime, tt.data, len(img))
		}
	}
	if img, err := decodeImage("image/png", strings.Repeat("A", 1<<20), 1000); img != nil || err != nil {
		t.Errorf("large: got %d bytes, %v; want nothing", len(img), err)
	}
}

func TestHeadTail(t *testing.T) {
	for _, n := range []int{0, 100, 300, 301, 5000} {
		s := strings.Repeat("€", n)
		for _, max := range []int{0, 10, 256, 300, 301, 302, 4000} {
			got := headTail(s, max)
			if len(got) > len(s) || len(s) > max && len(got) > max || strings.ToValidUTF8(got, "?") != got {
				t.Errorf("headTail of %d bytes to %d: got %d bytes", len(s), max, len(got))
			}
		}
	}
}

func BenchmarkClean(b *testing.B) {
	plain := strings.Repeat("a line of plain text\n", 1000)
	mixed := strings.Repeat("\x1b[32mgrün\x1b[0m und 世界\r\n", 1000)
	for name, s := range map[string]string{"plain": plain, "mixed": mixed} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(s)))
			for b.Loop() {
				cleantext.Clean(s)
			}
		})
	}
}
