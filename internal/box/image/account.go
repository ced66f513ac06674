package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/engine"
)

// MaxAccounts bounds /etc/passwd and /etc/group of an image, in bytes.
const MaxAccounts = 1 << 20

// HasAccount reports whether the text of /etc/passwd or /etc/group has the id that user
// code runs as.
func HasAccount(text string) bool {
	id := strconv.Itoa(engine.UserID)
	for line := range strings.Lines(text) {
		if f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 4); len(f) > 2 && f[2] == id {
			return true
		}
	}
	return false
}

// accountWarning returns what the operator should do about the accounts of an image that
// is a directory; "" if nothing. The directory is not changed, and nobody but programs in
// boxes believes what its accounts say.
func accountWarning(root *os.Root) string {
	const name = "etc/passwd"
	fix := fmt.Sprintf("Programs that ask for the name of their user fail. Add the line user:x:%d:%d:user:/home/user:/bin/sh.", engine.UserID, engine.UserID)
	file := filepath.Join(root.Name(), name)
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file + " is missing. " + fix
	case err != nil:
		return "" // such as an absolute link, which can only be followed inside the guest
	case !info.Mode().IsRegular(): // opening another could block
		return file + " is no file. " + fix
	case info.Size() > MaxAccounts:
		return fmt.Sprintf("%s has more than %d bytes, and is not read. %s", file, MaxAccounts, fix)
	}
	f, err := root.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxAccounts))
	if err != nil || HasAccount(string(text)) {
		return ""
	}
	return fmt.Sprintf("%s has no account with the id %d. %s", file, engine.UserID, fix)
}
