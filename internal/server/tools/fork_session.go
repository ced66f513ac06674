package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var forkSession = define(info{
	name:  "fork_session",
	title: "Fork a session",
	description: "Copy a living session: variables, imports, files and background processes. From then on the two are independent; " +
		"use it to try two ways at once from the same loaded data. It waits for code that runs in the session and does not disturb it. " +
		"Takes about 0.2 seconds, longer with thousands of files, and the memory of another session.",
	set: Snapshots, needs: Sessions, family: sessionErrors,
}, func(ctx context.Context, c *Call, in forkSessionIn) (copiedSessionOut, error) {
	b, hold, err := c.Boxes.Fork(ctx, c.Owner, box.KindSession, in.SessionID, box.ForkOptions{ID: in.NewSessionID})
	if err != nil {
		return copiedSessionOut{}, err
	}
	c.keep(hold)
	return newCopiedSessionOut(b, copyLossOf(hold, box.KindSession), "Session "+b.ID()+" is a copy of session "+in.SessionID+"; the two are independent"), nil
})

type forkSessionIn struct {
	SessionID    string `json:"session_id" jsonschema:"session to copy" min:"1"`
	NewSessionID string `json:"new_session_id,omitempty" jsonschema:"id of the copy, which no session has yet; none means a generated id"`
}
