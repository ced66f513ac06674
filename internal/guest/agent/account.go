package agent

import (
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxAccounts bounds what is read of /etc/passwd.
	maxAccounts = 1 << 20
	// maxUserName bounds a user's name: Linux programs do not accept longer ones.
	maxUserName = 255
)

// userName returns the user's name from the guest's own /etc/passwd.
func userName(uid int) string {
	if uid < 0 {
		uid = os.Geteuid()
	}
	text, err := readBounded("/etc/passwd", maxAccounts)
	if err == nil {
		if name := accountName(string(text), uid); name != "" {
			return name
		}
	}
	if uid == 0 {
		return "root"
	}
	return "user"
}

// accountName returns the name of the first account with an id in the text of /etc/passwd;
// "" if there is none, or if it is no name. The file is an image's: a name of 128 KiB or
// with a NUL in the environment would fail every program that starts.
func accountName(text string, uid int) string {
	id := strconv.Itoa(uid)
	for line := range strings.Lines(text) {
		if f := strings.SplitN(line, ":", 4); len(f) == 4 && f[2] == id {
			if isUserName(f[0]) {
				return f[0]
			}
			return ""
		}
	}
	return ""
}

// isUserName reports whether a text is a name of a user: printable, without blanks.
func isUserName(name string) bool {
	return name != "" && len(name) <= maxUserName && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r)
	})
}
