package secret

import "github.com/glovebox-dev/glovebox/internal/loglimit"

const (
	// lineBurst is the number of events that an owner gets at once, of each kind and
	// secret: programs make requests by the thousand, and events end in a log.
	lineBurst = 5
	// maxLines bounds what is remembered: the secrets of more than forty owners.
	maxLines = 4096
)

// A lineKey is what has a limit of its own.
type lineKey struct {
	owner, secret string
	kind          Kind
}

func newLines(burst int) *loglimit.Table[lineKey] {
	return loglimit.NewTable[lineKey](burst, maxLines)
}
