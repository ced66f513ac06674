package tools

import (
	"errors"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// changesBefore returns the note for a program or command that failed after calls of tools that may
// change something: a model that repeats it would make those calls again. There is none if it
// succeeded or made no such call.
func (c *Call) changesBefore(success bool) []string {
	if success || c.run == nil {
		return nil
	}
	if changed := c.run.Changed(); changed != "" {
		return []string{"Before it failed, the program had called " + changed + ". To repeat the program would make these calls again."}
	}
	return nil
}

// withChanges adds the note of changesBefore to the error of a program or command that began and
// has no result.
func (c *Call) withChanges(err error) error {
	e, ok := errors.AsType[*box.Error](err)
	notes := c.changesBefore(false)
	if !ok || len(notes) == 0 {
		return err
	}
	said := *e
	if suggest := errorSpecOf(e).suggest; said.Hint == "" && len(suggest) > 0 {
		said.Hint = suggest[0] // a hint takes its place
	}
	said.Hint = strings.TrimSpace(notes[0] + " " + said.Hint)
	return &said
}
