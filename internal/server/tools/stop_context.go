package tools

import (
	"context"
	"strings"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var stopContext = define(info{
	name:        "stop_context",
	title:       "Stop a context",
	description: "End a context and free what it uses; its variables and files are gone. Waits up to 30 seconds for code that runs in it and never interrupts it.",
	set:         Contexts, family: stopErrors, destructive: true, idempotent: true,
}, func(ctx context.Context, c *Call, in stopContextIn) (stopContextOut, error) {
	id, err := c.contextID(in.ContextID)
	if err != nil {
		return stopContextOut{}, err
	}
	kind, err := c.Boxes.Find(c.Owner, id)
	if err != nil {
		return stopContextOut{}, err
	}
	if kind == "" {
		kind = box.KindContext
	}
	there, err := c.Boxes.Stop(ctx, c.Owner, kind, id)
	if err != nil {
		return stopContextOut{}, err
	}
	if !there {
		return stopContextOut{}, &box.Error{
			Code: box.CodeNotFound, Op: "stop context", Msg: "Context not found: " + clip(in.ContextID), Hint: strings.TrimSpace(c.didYouMean(in.ContextID)),
			Context: map[string]string{"context_id": clip(in.ContextID)},
		}
	}
	return stopContextOut{ContextID: in.ContextID, Status: "stopped", Message: "Context stopped successfully"}, nil
})

type stopContextIn struct {
	ContextID string `json:"context_id" jsonschema:"id or unique name of the context to end" min:"1" alias:"session_id"`
}

type stopContextOut struct {
	ContextID string `json:"context_id" jsonschema:"the context that was asked for"`
	Status    string `json:"status" jsonschema:"stopped"`
	Message   string `json:"message" jsonschema:"what happened, for people"`
}
