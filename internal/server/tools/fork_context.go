package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var forkContext = define(info{
	name:  "fork_context",
	title: "Fork a context",
	description: "Copy a living context: variables, imports, files and background processes. From then on the two are independent; " +
		"use it to try two ways at once from the same loaded data. It waits for code that runs in the context and does not disturb it. " +
		"Takes about 0.2 seconds, longer with thousands of files, and the memory of another context.",
	set: Snapshots, needs: Contexts, family: createErrors,
}, func(ctx context.Context, c *Call, in forkContextIn) (copiedContextOut, error) {
	id, err := c.contextID(in.ContextID)
	if err != nil {
		return copiedContextOut{}, err
	}
	b, hold, err := c.Boxes.Fork(ctx, c.Owner, box.KindContext, id, box.ForkOptions{Name: in.Name, Description: in.Description})
	if err != nil {
		return copiedContextOut{}, err
	}
	c.keep(hold)
	return newCopiedContextOut(b, copyLossOf(hold, box.KindContext), "Context forked successfully; the two are independent"), nil
})

type forkContextIn struct {
	ContextID   string `json:"context_id" jsonschema:"id or unique name of the context to copy" min:"1"`
	Name        string `json:"name,omitempty" jsonschema:"name of the copy; none means that of the context with copy after it"`
	Description string `json:"description,omitempty" jsonschema:"note on the copy; none means that of the context" max:"4096"`
}
