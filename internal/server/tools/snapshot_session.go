package tools

import (
	"context"
	"fmt"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var snapshotSession = define(info{
	name:  "snapshot_session",
	title: "Snapshot a session",
	description: "Keep the state of a session, that is variables, imports and files, to go back to with restore_session. " +
		"Take one before something risky: installing, deleting, a long transformation. The session goes on; code that runs in it is waited for. Shared directories are not part of it. " +
		"The snapshot outlives the session and a restart of the server, until delete_snapshot. Takes about 0.2 seconds and tens of MB of disk, more of both with thousands of files.",
	set: Snapshots, needs: Sessions, family: sessionErrors,
}, func(ctx context.Context, c *Call, in snapshotSessionIn) (snapshotSessionOut, error) {
	k, hold, err := c.Boxes.SaveSnapshot(ctx, c.Owner, box.KindSession, in.SessionID, box.SnapshotOptions{Name: in.Name, Description: in.Description})
	if err != nil {
		return snapshotSessionOut{}, err
	}
	c.keep(hold)
	return snapshotSessionOut{newSnapshotOut(k, copyLossOf(hold, box.KindSession)), k.BoxID, k.Name}, nil
})

type snapshotSessionIn struct {
	SessionID   string `json:"session_id" jsonschema:"session to keep the state of" min:"1"`
	Name        string `json:"name,omitempty" jsonschema:"name of the snapshot, such as before-cleaning; a unique one can be used in place of its id"`
	Description string `json:"description,omitempty" jsonschema:"a note that lists of snapshots show" max:"4096"`
}

type snapshotSessionOut struct {
	snapshotOut
	of   string // the session
	name string // may be empty
}

func (o snapshotSessionOut) present() presentation {
	about := fmt.Sprintf("%d MB", (o.SizeBytes+1e6-1)/1e6)
	if o.name != "" {
		about = "named " + o.name + ", " + about
	}
	return presentation{text: fmt.Sprintf("Took snapshot %s of session %s (%s)", o.SnapshotID, o.of, about), notes: o.Notes}
}
