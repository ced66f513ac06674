package box

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// TestShare: what a model gets of displayed text and standard output together is no more than of
// output alone; each keeps a part, and what is cut is in a file.
func TestShare(t *testing.T) {
	const limit, slack = 24 << 10, 24<<10/16 + 400 // of the marks
	show := func(n int, mark string) protocol.Display {
		return protocol.Display{Data: map[string]string{"text/plain": mark + strings.Repeat("d", n-2*len(mark)) + mark}, Result: true}
	}
	for name, c := range map[string]struct {
		before, shown, after int
		path                 string // of the agent's file
		documents            int
	}{
		"little":                       {1000, 1000, 1000, "", 0},
		"a long value":                 {0, 200 << 10, 0, "", 1},
		"a long value, then output":    {0, 16 << 10, 20 << 10, "", 2},
		"output, then a long value":    {20 << 10, 16 << 10, 0, "", 2},
		"output around a long value":   {10 << 10, 16 << 10, 10 << 10, "", 2},
		"much output and a long value": {16 << 10, 200 << 10, 8 << 10, "/home/user/out.txt", 1},
		"much output, a short value":   {16 << 10, 100, 8 << 10, "/home/user/out.txt", 0},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			out := newCollector(&cfg, nil)
			out.Output(protocol.Stdout, []byte("BEGIN"+strings.Repeat("b", c.before)))
			out.Display(show(c.shown, "VALUE"))
			out.Output(protocol.Stdout, []byte(strings.Repeat("a", c.after)+"END"))
			agent := protocol.Output{Path: c.path}
			out.fitOutput(agent)
			text, _ := out.stdout.text(agent, nil)
			if len(text) > limit+slack {
				t.Errorf("%d bytes", len(text))
			}
			for _, part := range []string{"BEGIN", "VALUE", "END"} {
				if !strings.Contains(text, part) {
					t.Errorf("the text lacks %s", part)
				}
			}
			if c.documents == 0 && c.path == "" && strings.Contains(text, "left out") {
				t.Error("something is left out")
			}
			if len(out.documents) != c.documents {
				t.Errorf("%d documents: %+v", len(out.documents), out.documentNotes())
			}
			for _, d := range out.documents {
				if !strings.Contains(d.data, "VALUE") && (!strings.HasPrefix(d.data, "BEGIN") || !strings.HasSuffix(d.data, "END")) {
					t.Errorf("the document %s is not whole", d.what)
				}
			}
		})
	}
}
