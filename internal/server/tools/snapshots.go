package tools

import (
	"cmp"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
)

// copyLoss says what a copy of a box lacks, because the box had lost it before or because
// the copy could not bring it along.
type copyLoss struct {
	StateLost  bool     `json:"state_lost,omitempty" jsonschema:"whether earlier state is gone"`
	LostReason string   `json:"lost_reason,omitempty" jsonschema:"why"`
	Notes      []string `json:"notes,omitempty" jsonschema:"further facts"`
}

// copyLossOf describes what the hold of the original, which is of that kind, reports.
func copyLossOf(hold box.Hold, kind box.Kind) (l copyLoss) {
	l.LostReason, l.Notes = describeLoss(hold, string(kind))
	l.StateLost = l.LostReason != ""
	return l
}

// and adds what the copy itself could not bring along.
func (l copyLoss) and(r *box.Rescue) copyLoss {
	if r != nil {
		l.StateLost, l.LostReason = true, cmp.Or(l.LostReason, rescueReason(r))
	}
	return l
}

// copiedContextOut describes a context made by a fork or from a snapshot.
type copiedContextOut struct {
	ContextID string `json:"context_id" jsonschema:"id of the context, for run_code"`
	Name      string `json:"name" jsonschema:"its name"`
	Language  string `json:"language" jsonschema:"python or javascript"`
	Message   string `json:"message" jsonschema:"what happened, for people"`
	copyLoss

	source box.Source
}

func (o copiedContextOut) present() presentation {
	return presentation{asJSON: true, meta: mcp.Meta{metaSource: string(o.source)}}
}

func newCopiedContextOut(b *box.Box, loss copyLoss, message string) copiedContextOut {
	info := b.Info()
	message += notCopied(b)
	return copiedContextOut{ContextID: info.ID, Name: info.Name, Language: info.Language, Message: message, copyLoss: loss.and(b.Rescued()), source: info.Source}
}

// notCopied describes the state that a copy lacks, "" if none.
func notCopied(b *box.Box) string {
	if r := b.Rescued(); r != nil {
		return ". " + r.Explain()
	}
	return ""
}

// copiedSessionOut describes a session made by a fork or from a snapshot.
type copiedSessionOut struct {
	SessionID string `json:"session_id" jsonschema:"session to continue in"`
	Language  string `json:"language" jsonschema:"python or javascript"`
	Template  string `json:"template" jsonschema:"python, node or a named template"`
	Flavor    string `json:"flavor" jsonschema:"small, medium or large"`
	copyLoss

	text   string
	source box.Source
}

func newCopiedSessionOut(b *box.Box, loss copyLoss, text string) copiedSessionOut {
	info := b.Info()
	return copiedSessionOut{
		SessionID: info.ID, Language: info.Language, Template: templateName(info), Flavor: string(info.Flavor),
		copyLoss: loss.and(b.Rescued()), text: text + notCopied(b), source: info.Source,
	}
}

func (o copiedSessionOut) present() presentation {
	return presentation{text: o.text, notes: o.Notes, meta: mcp.Meta{metaSource: string(o.source)}}
}

// snapshotOut describes a new snapshot.
type snapshotOut struct {
	SnapshotID string `json:"snapshot_id" jsonschema:"id of the snapshot, to restore or delete it"`
	CreatedAt  string `json:"created_at" jsonschema:"when it was taken, UTC"`
	SizeBytes  int64  `json:"size_bytes" jsonschema:"bytes on disk"`
	copyLoss
}

func newSnapshotOut(k box.SavedSnapshot, loss copyLoss) snapshotOut {
	return snapshotOut{SnapshotID: k.ID, CreatedAt: formatTime(k.Created), SizeBytes: k.Bytes, copyLoss: loss}
}
