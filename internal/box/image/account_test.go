package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDirectory_Accounts: the operator learns that a directory has no account for user code.
// No text, link or pipe in its place is followed out of the directory, holds up the start or
// is an error.
func TestDirectory_Accounts(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte("user:x:1000:1000::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	text := func(s string) func(string) error {
		return func(file string) error { return os.WriteFile(file, []byte(s), 0o644) }
	}
	const none = "no account with the id 1000"
	for name, test := range map[string]struct {
		make func(file string) error
		want string // "": no warning
	}{
		"the account":         {text("root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh"), ""},
		"no file":             {func(string) error { return nil }, "is missing"},
		"empty":               {text(""), none},
		"user is root":        {text("user:x:0:0::/etc:/bin/sh\n"), none},
		"odd lines":           {text("::::\n1000\n1000:1000\n\x00:\x1b:01000:\n" + strings.Repeat(":", 100_000)), none},
		"one long line":       {text(strings.Repeat("a", MaxAccounts)), none},
		"larger than allowed": {text(strings.Repeat("a:x:5:5::/:\n", MaxAccounts/8) + "user:x:1000:1000::/:\n"), "more than 1048576 bytes"},
		"a directory":         {func(file string) error { return os.Mkdir(file, 0o755) }, "is no file"},
		"a pipe":              {func(file string) error { return unix.Mkfifo(file, 0o644) }, "is no file"},
		"a link to outside":   {func(file string) error { return os.Symlink(outside, file) }, ""},
		"a loop":              {func(file string) error { return os.Symlink("passwd", file) }, ""},
		"a link inside": {func(file string) error {
			if err := os.Symlink("other", file); err != nil {
				return err
			}
			return text("www:x:33:33::/:\n")(filepath.Join(filepath.Dir(file), "other"))
		}, none},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := test.make(filepath.Join(dir, "etc/passwd")); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			var img *Image
			var err error
			go func() { img, err = Directory(dir); close(done) }()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Fatal("the directory is not opened within 30 s")
			}
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(img.Warnings, "\n")
			if test.want == "" && all != "" || !strings.Contains(all, test.want) || test.want != "" && !strings.Contains(all, "Add the line user:x:1000:1000:") {
				t.Errorf("warnings %.400q, want %q in them", all, test.want)
			}
		})
	}
}
