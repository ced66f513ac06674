package kernel

import (
	"fmt"
	"strings"
	"testing"
)

// TestPython_wideTables checks that the text of a data frame has its columns, up to a bound, and
// that the user may change that.
func TestPython_wideTables(t *testing.T) {
	tested := false
	for _, py := range pythons(t) {
		k := start(t, Python, py)
		if res, _ := run(t, k, "import pandas as pd"); !res.OK {
			continue
		}
		tested = true
		for code, want := range map[string]int{
			"pd.DataFrame([['some text'] * 25], columns=['column%d' % i for i in range(25)])":                                              25,
			"pd.DataFrame([['some text'] * 500], columns=['column%d' % i for i in range(500)])":                                            30,
			"with pd.option_context('display.max_columns', 4): print(pd.DataFrame([[1] * 9], columns=['column%d' % i for i in range(9)]))": 4,
		} {
			_, rec := run(t, k, code)
			got := strings.Count(rec.value()+rec.out.String(), "column")
			if whole := fmt.Sprintf("x %d columns]", 500); strings.Contains(rec.value(), whole) {
				got--
			}
			if strings.Contains(rec.out.String(), "x 9 columns]") {
				got--
			}
			if got != want {
				t.Errorf("%s: %d columns, want %d:\n%s%s", code, got, want, rec.value(), rec.out.String())
			}
		}
	}
	if !tested {
		t.Skip("no Python with pandas")
	}
}
