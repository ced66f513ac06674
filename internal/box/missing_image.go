package box

import (
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/engine"
	"github.com/glovebox-dev/glovebox/internal/box/machine"
)

// MissingImageError is the error of Parts.Images for an image that this host had and may have
// again. Its boxes and snapshots wait for that: they are never restored on another file system,
// which has other programs.
type MissingImageError struct {
	What   string // a clause for clients: "its image app:1 was removed"
	Remedy string // what the operator can do, as an imperative for clients: "pull it again"
	Err    error  // for the operator, with paths of the host
}

// Error returns the text of Err, for the operator. Clients get What.
func (e *MissingImageError) Error() string {
	if e.Err == nil {
		return e.What
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *MissingImageError) Unwrap() error { return e.Err }

// isMissingImage reports whether err is about an image that this host may have again.
func isMissingImage(err error) bool {
	_, ok := errors.AsType[*MissingImageError](err)
	return ok
}

// explainMissing returns err, the error of making a machine with k, or the
// *MissingImageError if that is why: an engine says only that it cannot open a file.
func (f *machineFactory) explainMissing(err error, k *machine.Maker, t Interpreter) error {
	if !errors.Is(err, engine.ErrInvalid) || f.parts.Images == nil {
		return err
	}
	_, _, found := f.parts.Images(k.Root.Key, t.Language())
	if missing, ok := errors.AsType[*MissingImageError](found); ok {
		return missing
	}
	return err
}

// missingImage returns the error of a start without the image of the box.
func (s *spec) missingImage(op string, missing *MissingImageError) error {
	what := s.startFailed()
	hint := fmt.Sprintf("The operator can %s. Then call again.", missing.Remedy)
	if s.origin.record != nil {
		what = fmt.Sprintf("The %s %s cannot wake", s.key.kind, s.key.id)
		hint += " Nothing of it is lost; until then, its files can be read, and a new one works."
	}
	return s.error(CodeStartFailed, op, what+": "+missing.What, hint, nil) // clients do not see causes
}
