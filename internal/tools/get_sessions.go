package tools

import (
	"context"

	"github.com/glovebox-dev/glovebox/internal/sandbox"
)

var getSessions = define(info{
	name:        "get_sessions",
	title:       "List sessions",
	description: "List the sessions with their template, size, times and status, the newest first; with a session_id only that one, if it is there. A paused or hibernated one wakes with its variables and files when it is called.",
	set:         Sessions, family: sessionErrors, readOnly: true, idempotent: true,
}, func(_ context.Context, c *Call, in getSessionsIn) (getSessionsOut, error) {
	out := getSessionsOut{Sessions: []sessionItem{}}
	for _, b := range c.Sandboxes.Sandboxes(c.Owner, sandbox.KindSession) {
		if in.SessionID != "" && in.SessionID != b.ID {
			continue
		}
		out.Sessions = append(out.Sessions, sessionItem{
			SessionID: b.ID, Template: string(b.Template), Flavor: string(b.Flavor),
			CreatedAt: clock(b.Created), LastAccessed: clock(b.LastUsed), Status: string(b.State),
		})
	}
	return out, nil
})

type getSessionsIn struct {
	SessionID string `json:"session_id,omitempty" jsonschema:"only this session"`
}

type getSessionsOut struct {
	Sessions []sessionItem `json:"sessions" jsonschema:"the sessions, the newest first"`
}

type sessionItem struct {
	SessionID    string `json:"session_id" jsonschema:"id of the session"`
	Template     string `json:"template" jsonschema:"python or node"`
	Flavor       string `json:"flavor" jsonschema:"small, medium or large"`
	CreatedAt    string `json:"created_at" jsonschema:"when it was made, UTC"`
	LastAccessed string `json:"last_accessed" jsonschema:"when it was last used, UTC"`
	Status       string `json:"status" jsonschema:"creating, ready, running, paused, hibernated, error or stopped"`
}

func (o getSessionsOut) present() presentation { return listing(o.Sessions) }

// listing is the text of a result that is a list.
func listing(list any) presentation {
	data, err := encode(list)
	if err != nil {
		return presentation{asJSON: true}
	}
	return presentation{text: indent(data)}
}
