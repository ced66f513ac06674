package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var stopSession = define(info{
	name:        "stop_session",
	title:       "Stop a session",
	description: "End a session and free what it uses. Its variables and files are gone; code that runs in it is ended. " + idleKept,
	wordings:    []wording{{noHibernation, idleKept, idleEnded}},
	set:         Sessions, family: sessionErrors, destructive: true, idempotent: true,
}, func(ctx context.Context, c *Call, in stopSessionIn) (stopSessionOut, error) {
	kind, err := c.Boxes.Find(c.Owner, in.SessionID)
	if err != nil {
		return stopSessionOut{}, err
	}
	if kind == "" {
		kind = box.KindSession
	}
	there, err := c.Boxes.Stop(ctx, c.Owner, kind, in.SessionID)
	if err != nil && box.CodeOf(err) != box.CodeNotFound {
		return stopSessionOut{}, err
	}
	out := stopSessionOut{SessionID: in.SessionID, Success: there && err == nil}
	if !out.Success {
		if out.near = c.didYouMean(in.SessionID); out.near != "" {
			out.near = "." + out.near
		}
	}
	return out, nil
})

type stopSessionIn struct {
	SessionID string `json:"session_id" jsonschema:"session to end" min:"1" alias:"context_id"`
}

type stopSessionOut struct {
	SessionID string `json:"session_id" jsonschema:"the session that was asked for"`
	Success   bool   `json:"success" jsonschema:"whether there was such a session"`

	near string
}

func (o stopSessionOut) present() presentation {
	if !o.Success {
		return presentation{text: "Session " + clip(o.SessionID) + " not found" + o.near}
	}
	return presentation{text: "Session " + o.SessionID + " stopped successfully"}
}
