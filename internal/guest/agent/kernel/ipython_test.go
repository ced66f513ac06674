package kernel

import (
	"os"
	"os/exec"
	"testing"
)

// TestIPython runs magics that only IPython has, where it is installed: they see the
// names of cells, and their displays appear.
func TestIPython(t *testing.T) {
	tried := 0
	for _, py := range pythons(t) {
		if exec.Command(py, "-c", "import IPython").Run() != nil {
			continue
		}
		tried++
		t.Run(py, func(t *testing.T) {
			runCells(t, start(t, Python, py), []cell{
				{code: "[n for n in dir() if n[0] != '_']", value: "[]"},
				{code: "In = 'mine'; hasattr(get_ipython(), 'kernel'), hasattr(get_ipython(), '_repr_html_'), 'IPython' in __import__('sys').modules", value: "(False, False, False)"},
				{code: "%nonesuch", error: "SyntaxError", value2: "~%nonesuch is not a magic of this kernel"},
				{code: "[n for n in dir() if n[0] != '_'], In", value: "(['In'], 'mine')"},
				{code: "kept = 2\n%psearch kep*", out: "~kept"},
				{code: "def f():\n    'what it does'\n%pdoc f", out: "~what it does"},
				{code: "from IPython.core.magic import register_line_magic\n@register_line_magic\ndef twice(line): return int(line) * 2"},
				{code: "%twice 21", value: "42"},
				{code: "n = %twice 4\nn + 1", value: "9"},
				{code: "from IPython import get_ipython\nget_ipython().user_ns['kept']", value: "2"},
				{code: "6 * 7", value: "42"},
				{code: "_ + 1", value: "43"},
				{code: "_, __", value: "(43, 42)"},
				{code: "get_ipython().ast_node_interactivity", value: "'last_expr'"},
				{code: "1/0", error: "ZeroDivisionError", trace: "~line 1"},
				{code: "print(kept); kept", out: "2\n", value: "2"},
			})
		})
	}
	switch {
	case tried > 0:
	case os.Getenv("GLOVEBOX_TEST_COMPLETE") != "":
		t.Fatal("no Python here has IPython; scripts/setup test installs it")
	default:
		t.Skip("no Python here has IPython")
	}
}
