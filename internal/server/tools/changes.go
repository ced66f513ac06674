package tools

import (
	"errors"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// changesBefore returns notes for a program or command that failed. One is about calls of tools that
// may change something: a model that repeats the program would make those calls again. One is about
// calls that the program left before their servers got them: they changed nothing.
func (c *Call) changesBefore(success bool) []string {
	if success || c.run == nil {
		return nil
	}
	var notes []string
	if changed := c.run.Changed(); changed != "" {
		notes = append(notes, "Before it failed, the program had called "+changed+". To repeat the program would make these calls again.")
	}
	if uncalled := c.run.Uncalled(); uncalled != "" {
		notes = append(notes, "These tools were not called, because the program ended before their server was ready or the call was approved: "+uncalled+".")
	}
	return notes
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
	said.Hint = strings.TrimSpace(strings.Join(notes, " ") + " " + said.Hint)
	return &said
}
