package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/box"
)

var listContexts = define(info{
	name:        "list_contexts",
	title:       "List contexts",
	description: "List the user's contexts, of all conversations, with their names, languages, times and status, the newest first. " + contextsWake,
	wordings:    []wording{{noHibernation, contextsWake, contextsPaused}},
	set:         Contexts, family: runErrors, readOnly: true, idempotent: true,
}, func(_ context.Context, c *Call, _ struct{}) (listContextsOut, error) {
	out := listContextsOut{Contexts: []contextItem{}}
	boxes, err := c.Boxes.List(c.Owner, box.KindContext)
	if err != nil {
		return out, err
	}
	for _, info := range boxes {
		status := contextStatus(info.State)
		if status == "" {
			continue
		}
		out.Total++
		if len(out.Contexts) == maxItems {
			continue
		}
		out.Contexts = append(out.Contexts, contextItem{
			ContextID: info.ID, Name: info.Name, Description: brief(info.Description, maxNote), Language: info.Language,
			Status: status, CreatedAt: formatTime(info.Created), LastUsed: formatTime(info.LastUsed),
		})
	}
	return out, nil
})

// maxNote bounds a description in a list, in characters.
const maxNote = 200

// contextStatus returns the status for a state, "" for a context that cannot be used.
func contextStatus(s box.State) string {
	switch s {
	case box.StateReady, box.StateRunning:
		return "active"
	case box.StatePaused, box.StateHibernated, box.StateElsewhere, box.StateLeaving:
		return string(s)
	}
	return ""
}

type listContextsOut struct {
	Contexts []contextItem `json:"contexts" jsonschema:"the newest contexts, at most 50"`
	Total    int           `json:"total" jsonschema:"how many there are"`
}

type contextItem struct {
	ContextID   string `json:"context_id" jsonschema:"id of the context, for run_code"`
	Name        string `json:"name" jsonschema:"its name"`
	Description string `json:"description" jsonschema:"the note"`
	Language    string `json:"language" jsonschema:"python or javascript"`
	Status      string `json:"status" jsonschema:"active, paused, hibernated, in use by another server or being saved"`
	CreatedAt   string `json:"created_at" jsonschema:"when it was made, UTC"`
	LastUsed    string `json:"last_used" jsonschema:"when code last ran in it, UTC"`
}
