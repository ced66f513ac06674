package tools

import "context"

var deleteSnapshot = define(info{
	name:        "delete_snapshot",
	title:       "Delete a snapshot",
	description: "Delete a snapshot and free its disk; nothing can be restored from it any more. Contexts and sessions that were made of it live on.",
	set:         Snapshots, family: snapshotErrors, destructive: true, idempotent: true,
}, func(_ context.Context, c *Call, in deleteSnapshotIn) (deleteSnapshotOut, error) {
	if err := c.Boxes.DeleteSnapshot(c.Owner, in.SnapshotID); err != nil {
		return deleteSnapshotOut{}, err
	}
	return deleteSnapshotOut{SnapshotID: in.SnapshotID, Status: "deleted"}, nil
})

type deleteSnapshotIn struct {
	SnapshotID string `json:"snapshot_id" jsonschema:"id or unique name of the snapshot to delete" min:"1"`
}

type deleteSnapshotOut struct {
	SnapshotID string `json:"snapshot_id" jsonschema:"the snapshot that was asked for"`
	Status     string `json:"status" jsonschema:"deleted"`
}
