package box

import (
	"strings"
	"testing"
)

// TestDisplay_CutValueIsKeptWhole: a value that is too long for the result is kept whole
// in a file, which a note names.
func TestDisplay_CutValueIsKeptWhole(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	res := run(t, b, "list(range(20_000))")
	if !strings.Contains(res.Stdout, "left out") || len(res.Stdout) > 30_000 || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "is cut: see /") {
		t.Fatalf("got %d bytes, notes %q", len(res.Stdout), res.Notes)
	}
	_, file, _ := strings.Cut(strings.TrimSuffix(res.Notes[0], "."), "see ")
	if got := run(t, b, "open('"+file+"').read() == repr(list(range(20_000)))"); got.Stdout != "True\n" {
		t.Errorf("%s does not have the complete value: %+v", file, got)
	}
}

// TestDisplay_DocumentsAreNoted: a display that a result cannot show is kept in a file,
// which a note names, unless its text is shown or can stand for it.
func TestDisplay_DocumentsAreNoted(t *testing.T) {
	f := newFixture(t, nil)
	b := f.session(t, "", "x")
	for _, c := range []struct{ name, code, stdout, note, content string }{
		{"page", "from IPython.display import HTML\nHTML('<b>hi</b>')", "<IPython.core.display.HTML object>\n", "1 HTML display is not shown: see ", "<b>hi</b>"},
		{"vector graphic", "from IPython.display import SVG, display\ndisplay(SVG('<svg/>'))", "<IPython.core.display.SVG object>\n", "1 SVG image is not shown: see ", "<svg/>"},
		{"chart", "class C:\n  def _repr_html_(self): return '<script>1</script>'\n  def __repr__(self): return 'Chart(...)'\nC()", "Chart(...)\n", "1 HTML display is not shown: see ", "<script>1</script>"},
		{"table", "class T:\n  def _repr_html_(self): return '<table></table>'\n  def __repr__(self): return 'a  1'\nT()", "a  1\n", "", ""},
		{"markdown", "from IPython.display import Markdown\nMarkdown('# Title')", "# Title\n", "", ""},
		{"an object without a representation", "class O:\n  __repr__ = lambda self: '<O object>'\nO()", "<O object>\n", "", ""},
	} {
		res := run(t, b, c.code)
		if res.Stdout != c.stdout || !res.Success {
			t.Errorf("%s: got %+v, want %q", c.name, res, c.stdout)
		}
		if c.note == "" {
			if len(res.Notes) != 0 {
				t.Errorf("%s: got the notes %q", c.name, res.Notes)
			}
			continue
		}
		if len(res.Notes) != 1 || !strings.HasPrefix(res.Notes[0], c.note) {
			t.Errorf("%s: got the notes %q, want %q", c.name, res.Notes, c.note)
			continue
		}
		file := strings.TrimSuffix(strings.TrimPrefix(res.Notes[0], c.note), ".")
		if got := run(t, b, "print(open('"+file+"').read())"); got.Stdout != c.content+"\n" {
			t.Errorf("%s: %s has %q", c.name, file, got.Stdout)
		}
	}
}
