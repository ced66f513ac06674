package agent

import (
	"strings"
	"testing"
)

// TestAccountName_OfHostileImages: no text of /etc/passwd makes a name that programs cannot
// have in their environment.
func TestAccountName_OfHostileImages(t *testing.T) {
	const root = "root:x:0:0:root:/root:/bin/sh\n"
	for _, test := range []struct{ text, want string }{
		{"", ""},
		{root, ""},
		{root + "ada:x:1000:1000::/home/ada:/bin/sh", "ada"},
		{"DOMAIN\\jürgen:x:1000:1000::/:\n", "DOMAIN\\jürgen"},
		{"a:x:1000:1000::/:\nb:x:1000:1000::/:\n", "a"},
		{"user:x:0:0::/etc:\n", ""},
		{":x:1000:1000::/:\n", ""},
		{"a\x00b:x:1000:1000::/:\n", ""},
		{"a b:x:1000:1000::/:\n", ""},
		{"a\x1b[2J:x:1000:1000::/:\n", ""},
		{"\xff:x:1000:1000::/:\n", ""},
		{"::::\n1000\n:1000:1000\nx:x:1000\n", ""},
		{strings.Repeat("a", maxUserName) + ":x:1000:1000::/:\n", strings.Repeat("a", maxUserName)},
		{strings.Repeat("a", maxUserName+1) + ":x:1000:1000::/:\n", ""},
		{strings.Repeat("a", 200<<10) + ":x:1000:1000::/:\n", ""},
		{strings.Repeat(":", maxAccounts), ""},
	} {
		if got := accountName(test.text, 1000); got != test.want {
			t.Errorf("%.60q: got the name %.60q, want %.60q", test.text, got, test.want)
		}
	}
}
