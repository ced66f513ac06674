package mcpcli

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/mcpkit/consent"
)

// The text about files speaks of files only if it has listed some.
func TestDescribeFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		files []consent.File
		want  string
	}{
		"none":    {nil, "The program, and what it loads"},
		"missing": {[]consent.File{{Path: "/p/.npmrc"}}, "If a local file appears"},
		"present": {[]consent.File{{Path: "/p/a.js", SHA256: strings.Repeat("0", 64)}, {Path: "/p/.npmrc"}}, "If these files change"},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			new(app).describeFiles(&b, true, tt.files)
			if got := b.String(); !strings.Contains(got, tt.want) || strings.Contains(got, "these files") != strings.Contains(got, "  file ") {
				t.Errorf("got\n%s", got)
			}
		})
	}
}
