package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var listSnapshots = define(info{
	name:  "list_snapshots",
	title: "List snapshots",
	description: "List the snapshots that are kept, the newest first, with what they are of and their size on disk. " +
		"One with a context_id is for restore_context, one with a session_id for restore_session.",
	set: Snapshots, family: snapshotErrors, readOnly: true, idempotent: true,
}, func(_ context.Context, c *Call, _ struct{}) (listSnapshotsOut, error) {
	kept, err := c.Boxes.Snapshots(c.Owner)
	if err != nil {
		return listSnapshotsOut{}, err
	}
	out := listSnapshotsOut{Snapshots: []snapshotItem{}, Total: len(kept)}
	for _, k := range kept[:min(len(kept), maxItems)] {
		out.Snapshots = append(out.Snapshots, newSnapshotItem(k))
	}
	return out, nil
})

type listSnapshotsOut struct {
	Snapshots []snapshotItem `json:"snapshots" jsonschema:"the newest snapshots, at most 50"`
	Total     int            `json:"total" jsonschema:"how many there are"`
}

// snapshotItem describes a snapshot. It has the id of the context or of the session
// that it was taken of.
type snapshotItem struct {
	SnapshotID  string `json:"snapshot_id" jsonschema:"id of the snapshot"`
	Name        string `json:"name" jsonschema:"its name, if it has one"`
	Description string `json:"description" jsonschema:"the note"`
	ContextID   string `json:"context_id,omitempty" jsonschema:"context that it was taken of"`
	SessionID   string `json:"session_id,omitempty" jsonschema:"session that it was taken of"`
	Language    string `json:"language" jsonschema:"python or javascript"`
	Flavor      string `json:"flavor" jsonschema:"small, medium or large"`
	CreatedAt   string `json:"created_at" jsonschema:"when it was taken, UTC"`
	SizeBytes   int64  `json:"size_bytes" jsonschema:"bytes on disk"`
}

func newSnapshotItem(k box.SavedSnapshot) snapshotItem {
	item := snapshotItem{
		SnapshotID: k.ID, Name: k.Name, Description: brief(k.Description, maxNote),
		Language: k.Language, Flavor: string(k.Flavor), CreatedAt: formatTime(k.Created), SizeBytes: k.Bytes,
	}
	if k.Kind == box.KindContext {
		item.ContextID = k.BoxID
	} else {
		item.SessionID = k.BoxID
	}
	return item
}
