package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/plainjson"
)

var getSessions = define(info{
	name:        "get_sessions",
	title:       "List sessions",
	description: "List the user's sessions, of all conversations, newest first, with language, size, times and status. " + wakes,
	wordings:    []wording{{noHibernation, wakes, pausedOne}},
	set:         Sessions, family: sessionErrors, readOnly: true, idempotent: true,
}, func(_ context.Context, c *Call, in getSessionsIn) (getSessionsOut, error) {
	out := getSessionsOut{Sessions: []sessionItem{}}
	boxes, err := c.Boxes.List(c.Owner, box.KindSession)
	if err != nil {
		return out, err
	}
	for _, info := range boxes {
		if in.SessionID != "" && in.SessionID != info.ID {
			continue
		}
		out.Total++
		if len(out.Sessions) == maxItems {
			continue
		}
		status := string(info.State)
		if c.approver != nil {
			if _, waits := c.approver.Waiting(string(c.Owner), info.ID); waits {
				status = waitingForApproval
			}
		}
		out.Sessions = append(out.Sessions, sessionItem{
			SessionID: info.ID, Language: info.Language, Template: templateName(info), Flavor: string(info.Flavor),
			CreatedAt: formatTime(info.Created), LastAccessed: formatTime(info.LastUsed), Status: status,
		})
	}
	if out.Total == len(out.Sessions) {
		out.Total = 0
	}
	return out, nil
})

// waitingForApproval is the status of a session whose program waits for its user's answer.
const waitingForApproval = "waiting for approval"

// maxItems bounds the entries of a list: thousands of boxes may be on disk.
const maxItems = 50

type getSessionsIn struct {
	SessionID string `json:"session_id,omitempty" jsonschema:"only this session"`
}

type getSessionsOut struct {
	Sessions []sessionItem `json:"sessions" jsonschema:"the newest sessions, at most 50"`
	Total    int           `json:"total,omitempty" jsonschema:"how many there are, if not all are listed"`
}

type sessionItem struct {
	SessionID    string `json:"session_id" jsonschema:"id of the session"`
	Language     string `json:"language" jsonschema:"python or javascript"`
	Template     string `json:"template" jsonschema:"python, node or a named template"`
	Flavor       string `json:"flavor" jsonschema:"small, medium or large"`
	CreatedAt    string `json:"created_at" jsonschema:"when it was made, UTC"`
	LastAccessed string `json:"last_accessed" jsonschema:"when it was last used, UTC"`
	Status       string `json:"status" jsonschema:"creating, ready, running, waiting for approval, paused, hibernated, in use by another server, being saved, error or stopped"`
}

// present formats the list as JSON, as the microsandbox server does, with a line for each
// session.
func (o getSessionsOut) present() presentation {
	p := presentation{text: "[]"}
	var lines []string
	for _, one := range o.Sessions {
		line, err := plainjson.Marshal(one)
		if err != nil {
			return presentation{asJSON: true}
		}
		lines = append(lines, string(line))
	}
	if len(lines) > 0 {
		p.text = "[\n" + strings.Join(lines, ",\n") + "\n]"
	}
	if n := len(o.Sessions); n < o.Total {
		p.more = []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("These are the newest %d of %d sessions.", n, o.Total)}}
	}
	return p
}

// listing formats a list as JSON.
func listing(list any) presentation {
	data, err := plainjson.Marshal(list)
	if err != nil {
		return presentation{asJSON: true}
	}
	return presentation{text: indent(data)}
}
