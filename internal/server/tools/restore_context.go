package tools

import (
	"context"
	"errors"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var restoreContext = define(info{
	name:  "restore_context",
	title: "Restore a context",
	description: "Go back to a snapshot of snapshot_context, instead of rebuilding what was there. " +
		"With context_id that context is rolled back: it keeps its id and name, and what it did since is lost; it waits up to 30 seconds for code that runs in it. " +
		"Without context_id a new context is made of the snapshot and nothing is lost.",
	set: Snapshots, needs: Contexts, family: createErrors, destructive: true,
}, func(ctx context.Context, c *Call, in restoreContextIn) (restoreContextOut, error) {
	if in.ContextID != "" && (in.Name != "" || in.Description != "") {
		return restoreContextOut{}, invalid("context_id", "Pass either context_id or name and description: a context that is rolled back keeps its own")
	}
	into, err := c.contextID(in.ContextID)
	if err != nil {
		return restoreContextOut{}, err
	}
	b, err := c.Boxes.Restore(ctx, c.Owner, box.KindContext, in.SnapshotID, box.RestoreOptions{
		Into: into, Name: in.Name, Description: in.Description,
	})
	if e, ok := errors.AsType[*box.Error](err); ok && e.Code == box.CodeNotFound && e.Context["context_id"] != "" {
		e.Hint = "Leave out context_id to make a new context of the snapshot."
	}
	if err != nil {
		return restoreContextOut{}, err
	}
	message := "Context made of the snapshot successfully"
	if in.ContextID != "" {
		message = "Context rolled back to the snapshot successfully"
	}
	return restoreContextOut{newCopiedContextOut(b, copyLoss{}, message), in.ContextID != ""}, nil
})

type restoreContextIn struct {
	SnapshotID  string `json:"snapshot_id" jsonschema:"id or unique name of the snapshot" min:"1"`
	ContextID   string `json:"context_id,omitempty" jsonschema:"context to roll back, by id or unique name; none makes a new context"`
	Name        string `json:"name,omitempty" jsonschema:"name of the new context; none means that of the snapshot"`
	Description string `json:"description,omitempty" jsonschema:"note on the new context; none means that of the snapshot" max:"4096"`
}

type restoreContextOut struct {
	copiedContextOut
	RolledBack bool `json:"rolled_back" jsonschema:"whether the context was there before"`
}
