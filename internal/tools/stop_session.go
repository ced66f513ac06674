package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

var stopSession = define(info{
	name:        "stop_session",
	title:       "Stop a session",
	description: "End a session and free what it uses. Its variables and files are gone; code that runs in it is ended. Stopping a session that is not there does no harm.",
	set:         Sessions, family: sessionErrors, destructive: true, idempotent: true,
}, func(ctx context.Context, c *Call, in stopSessionIn) (stopSessionOut, error) {
	there, err := c.Sandboxes.Stop(ctx, c.Owner, sandbox.KindSession, in.SessionID)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return stopSessionOut{}, err
	}
	return stopSessionOut{SessionID: in.SessionID, Success: there && err == nil}, nil
})

type stopSessionIn struct {
	SessionID string `json:"session_id" jsonschema:"session to end" min:"1"`
}

type stopSessionOut struct {
	SessionID string `json:"session_id" jsonschema:"the session that was asked for"`
	Success   bool   `json:"success" jsonschema:"whether there was such a session"`
}

func (o stopSessionOut) present() presentation {
	if !o.Success {
		return presentation{text: "Session " + clip(o.SessionID) + " not found"}
	}
	return presentation{text: "Session " + o.SessionID + " stopped successfully"}
}
