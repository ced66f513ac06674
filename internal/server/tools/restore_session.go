package tools

import (
	"context"
	"errors"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var restoreSession = define(info{
	name:  "restore_session",
	title: "Restore a session",
	description: "Go back to a snapshot of snapshot_session, instead of rebuilding what was there. " +
		"With the session_id of a session that is there, it is rolled back: it keeps its id, and what it did since is lost; it waits up to 30 seconds for code that runs in it. " +
		"With any other session_id a new session of that id is made of the snapshot, with none a new one with a generated id; nothing is lost then.",
	set: Snapshots, needs: Sessions, family: sessionErrors, destructive: true,
}, func(ctx context.Context, c *Call, in restoreSessionIn) (restoreSessionOut, error) {
	back := in.SessionID != ""
	b, err := c.Boxes.Restore(ctx, c.Owner, box.KindSession, in.SnapshotID, box.RestoreOptions{Into: in.SessionID})
	if noSuchSession(err) {
		back = false
		b, err = c.Boxes.Restore(ctx, c.Owner, box.KindSession, in.SnapshotID, box.RestoreOptions{ID: in.SessionID})
	}
	if err != nil {
		return restoreSessionOut{}, err
	}
	text := "Session " + b.ID() + " is made of snapshot " + in.SnapshotID
	if back {
		text = "Session " + b.ID() + " is rolled back to snapshot " + in.SnapshotID
	}
	return restoreSessionOut{newCopiedSessionOut(b, copyLoss{}, text), back}, nil
})

// noSuchSession reports whether err says that a session, not a snapshot, is not
// there.
func noSuchSession(err error) bool {
	e, ok := errors.AsType[*box.Error](err)
	return ok && e.Code == box.CodeNotFound && e.Context["session_id"] != ""
}

type restoreSessionIn struct {
	SnapshotID string `json:"snapshot_id" jsonschema:"id or unique name of the snapshot" min:"1"`
	SessionID  string `json:"session_id,omitempty" jsonschema:"session to roll back, or id of the new session; none means a new session with a generated id"`
}

type restoreSessionOut struct {
	copiedSessionOut
	RolledBack bool `json:"rolled_back" jsonschema:"whether the session was there before"`
}
