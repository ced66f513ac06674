package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

const (
	// localName is the directory of the local user, whose name as an owner is "".
	localName = "_local"
	// maxPrefix bounds the readable part of a name.
	maxPrefix = 40
	// hashBytes is the part of the hash in a name: no two owners with the same one can be found.
	hashBytes = 16
)

// plain matches the owners whose directory has their own name. It has neither the "." nor
// the "_" of other names, and no capital letters, which some file systems do not tell apart.
var plain = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)

// DirName returns the name of an owner's directory: the owner itself, if it has only
// small letters, digits and "-"; otherwise what is readable of it, "." and a hash. Two
// owners never share a name, also not on a file system that ignores case.
func DirName(owner string) string {
	switch {
	case owner == "":
		return localName
	case plain().MatchString(owner):
		return owner
	}
	sum := sha256.Sum256([]byte(owner))
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, owner[:min(len(owner), maxPrefix)])
	if readable = strings.Trim(readable, "-"); readable == "" {
		readable = "owner"
	}
	return readable + "." + hex.EncodeToString(sum[:hashBytes])
}
