package tools

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

// TestJSONSize compares the size that is charged with that of the real encoding.
func TestJSONSize(t *testing.T) {
	for _, text := range []string{"", "plain", "a\"b\\c\n\r\t\b\f", "\x00\x01\x1b\x1f\x7f", "<&>", "é漢\U0001f600", "\u2027\u2028\u2029\u202a", strings.Repeat("\x1b[0m", 1000)} {
		data, err := plainjson.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := jsonSize([]byte(text)), int64(len(data)-2); got != want {
			t.Errorf("%.40q takes %d bytes, jsonSize says %d", text, want, got)
		}
	}
}

// TestDownload_NoteSizeIsText: the note about large content names a size of which the content
// is text in any encoding.
func TestDownload_NoteSizeIsText(t *testing.T) {
	if n := base64.StdEncoding.EncodedLen(largePart); n != largeContent || int64(n) != base64Size(largePart) {
		t.Errorf("%d bytes take %d as base64, base64Size says %d, want %d", largePart, n, base64Size(largePart), largeContent)
	}
}
